"""Notices that say where each worker waits when a wait takes long.

A wait costs two assignments. A thread reads them about once a second. Only a long wait is written to the store:

    waiting/RANK    the ``Wait`` of this worker; null if it does not wait, or not for long
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from threading import Event, Thread, get_ident
from typing import Final

from tacit.errors import TimedOut
from tacit.runtime.environment import Environment
from tacit.runtime.failures.timeouts import AdaptiveTimeout
from tacit.runtime.failures.waits import MESSAGES, Wait, call_site, deadlocked_ranks, waits_text, workers_text

_log: Final = logging.getLogger("tacit")
_LOOK_S: Final = 1.0
_PUBLISH_AFTER: Final = 0.25
"""Part of ``notice_s`` after which a wait is published: early, so that a worker that has just arrived is not reported
as absent.
"""
_ABSENT_AFTER: Final = 3.0
"""Multiple of ``notice_s`` after which absent workers are reported: later, because they may compute or load data."""
_RULE: Final = "every rank must make the same calls in the same order"


@dataclass(frozen=True, eq=False)
class _OwnWait:
    """This worker's current wait, without its call site."""

    wait: Wait
    since_s: float
    thread: int

    def located(self) -> Wait:
        method, line = call_site(self.thread)
        return replace(self.wait, method=method, line=line)


class WaitNotices:
    """One process's waits, published to the others, and its notices. Make all before calling ``start`` on one."""

    def __init__(self, environment: Environment, timeout: AdaptiveTimeout) -> None:
        self._environment, self._timeout, self._rank = environment, timeout, environment.rank
        self._keys = [f"waiting/{rank}" for rank in range(environment.size)]
        self._current: _OwnWait | None = None
        self._published: _OwnWait | None = None
        self._noticed: _OwnWait | None = None
        self._longest_s, self._look_again_s = 0.0, 0.0
        self._stop = Event()
        self._thread = Thread(target=self._watch, name="tacit-wait-notices", daemon=True)
        self._environment.publish("waiting", None)  # so that readers do not block

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)  # it may be in a call of a store whose host is stopped

    # In the worker's thread.

    def begin(self, what: str, group: str, number: int, ranks: tuple[int, ...], *, can_pass: bool = False) -> None:
        """Note that a wait in a collective begins."""
        self._current = _OwnWait(Wait(what, group, number, ranks, can_pass), time.monotonic(), get_ident())

    def begin_message(self, what: str, sources: Sequence[int], *, may_be_handled: bool) -> None:
        """Note that a wait for a message begins; ``may_be_handled``: peers may answer while they wait themselves."""
        self.begin(what, MESSAGES, 0, tuple(sources), can_pass=may_be_handled)

    def end(self) -> None:
        """Note that the wait has ended."""
        self._current = None

    def fail(self) -> None:
        """Note that the wait has failed, which ends the run: publish the wait and stop."""
        self._stop.set()
        if self._current is not None:
            with suppress(RuntimeError):  # the store's host is gone
                self._environment.publish("waiting", asdict(self._current.located()))

    def time_out_of(self, error: TimedOut) -> TimedOut:
        """Return ``error``, the time-out of a wait for a message, with the workers that hold the run up.

        These wait in no call themselves: a worker that has not answered may wait for another one.
        """
        self.fail()
        try:
            found = [json.loads(text) for text in self._environment.store.multi_get(self._keys)]
        except RuntimeError:  # the store's host is gone
            found = []
        absent = [rank for rank, wait in enumerate(found) if wait is None and rank != self._rank]
        return TimedOut(error.waiting_for, absent or error.missing, error.timeout_s, self.differences())

    def differences(self) -> str | None:
        """Return who waits where and the rule, to end a sentence; None unless workers wait in different calls."""
        try:
            waits = self._waits()
        except RuntimeError:  # the store's host is gone
            return None
        blocked = deadlocked_ranks(waits)
        if not waits or (not blocked and all(waits[self._rank].is_same_call(wait) for wait in waits.values())):
            return None
        shown = ", ".join(waits_text(waits))
        return f"{shown}; {_RULE}" + ("" if blocked else "; where they do, a larger timeout_s waits longer")

    # In the thread that writes notices.

    @property
    def _notice_s(self) -> float:
        return self._timeout.notice_s(self._longest_s)

    def _watch(self) -> None:
        with suppress(RuntimeError):  # the store's host is gone
            while not self._stop.wait(min(_LOOK_S, _PUBLISH_AFTER * self._notice_s)):
                self._look()

    def _look(self) -> None:
        own, now_s = self._current, time.monotonic()
        if self._published is not None and self._published is not own:
            self._longest_s = max(self._longest_s, now_s - self._published.since_s)
            self._published = None
            self._environment.publish("waiting", None)
        if own is None or own is self._noticed:
            return
        waited_s, notice_s = now_s - own.since_s, self._notice_s
        if self._published is not own and waited_s >= _PUBLISH_AFTER * notice_s:
            self._publish(own)
        if self._published is own and waited_s >= notice_s and now_s >= self._look_again_s:
            self._look_again_s = now_s + waited_s / 4
            notice = self._notice(waited_s, is_late=waited_s >= _ABSENT_AFTER * notice_s)
            if notice is not None and self._current is own:
                self._noticed = own
                _log.warning(notice)

    def _publish(self, own: _OwnWait) -> None:
        located = own.located()
        if self._current is own:  # otherwise the call site may belong to another call
            self._environment.publish("waiting", asdict(located))
            self._published, self._look_again_s = own, 0.0

    def _notice(self, waited_s: float, *, is_late: bool) -> str | None:
        """Return the notice about this worker's wait; None if the wait is normal or a lower rank writes the notice."""
        waits = self._waits()
        mine = waits[self._rank]  # this worker has published its own
        here = [rank for rank in mine.ranks if rank in waits and waits[rank].is_same_call(mine)]
        if blocked := deadlocked_ranks(waits):
            speaker, absent = min(blocked), []
        else:
            speaker, absent = min(here, default=-1), [rank for rank in mine.ranks if rank not in waits]
            is_normal = len(here) == len(mine.ranks) or mine.is_for_message or mine.is_end_of_evaluation
            if not is_late or is_normal:
                return None
        if speaker != self._rank:
            return None
        parts = [f"worker {self._rank} has waited {waited_s:.0f} s in {mine.text()}"]
        if others := [rank for rank in here if rank != self._rank]:
            parts.append(f"{workers_text(others)} {'wait' if others[1:] else 'waits'} there too")
        parts += waits_text({rank: wait for rank, wait in waits.items() if rank not in (self._rank, *here)})
        if absent:
            parts.append(f"{workers_text(absent)} {'have' if absent[1:] else 'has'} not reached this call yet")
        return f"{'; '.join(parts)}. {_RULE.capitalize()}."

    def _waits(self) -> dict[int, Wait]:
        """Return the waits of this worker and of the workers it waits for."""
        found = [json.loads(text) for text in self._environment.store.multi_get(self._keys)]
        waits = {rank: Wait(**one | {"ranks": tuple(one["ranks"])}) for rank, one in enumerate(found) if one}
        mine = waits.get(self._rank)
        return {} if mine is None else {rank: wait for rank, wait in waits.items() if rank in {self._rank, *mine.ranks}}
