"""Say where each worker waits when a wait takes long: in which call, and at which line of the script.

A wait costs two assignments. A thread looks at them about once a second, and only where a wait is long does it write to
the store:

    waiting/RANK    the ``Place`` at which this worker waits; null where it does not wait, or not for long
"""

from __future__ import annotations

import json
import logging
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread, get_ident
from types import FrameType
from typing import Final, NamedTuple

import torch

from tacit.runtime.environment import Environment
from tacit.runtime.failures.timeouts import AdaptiveTimeout

_log: Final = logging.getLogger("tacit")
_LOOK_S: Final = 1.0
_PUBLISH_AFTER: Final = (
    0.25  # parts of ``AdaptiveTimeout.notice_s``; early, so that a worker that has just arrived is not called absent
)
_ABSENT_AFTER: Final = 3.0  # an absent worker may compute or load data, so this notice comes later
_SHOWN_RANKS: Final = 8
_MESSAGES: Final = "messages"
_END: Final = "the end of "
_RULE: Final = "every rank must make the same calls in the same order"
_FOREIGN: Final = tuple(
    str(path) for path in (Path(__file__).parents[1], Path(torch.__file__).parent, sysconfig.get_path("stdlib"))
)
_METHODS: Final = {
    "_before": "optimizer.step()",
    "_after": "optimizer.step()",
    "__exit__": "session.close()",
    "__init__": "tacit.attach()",
}


class Wait(NamedTuple):
    """A wait under way. group, number: which call it is, the same on all ``ranks``; ``can_pass``: members need not all
    be in it at once.
    """

    what: str
    group: str
    number: int
    ranks: tuple[int, ...]
    can_pass: bool
    since_s: float
    thread: int


@dataclass(frozen=True)
class Place:
    """A wait as others see it. method: the public method that waits; ``line``: of the script; both empty where unknown."""

    what: str
    group: str
    number: int
    ranks: tuple[int, ...]
    can_pass: bool
    method: str
    line: str

    def is_same_call(self, other: Place) -> bool:
        """Whether two workers wait in one call.

        Messages have no common calls; two receivers never count as being in different ones.
        """
        if self.group == other.group == _MESSAGES:
            return True
        return (self.group, self.number, self.what) == (other.group, other.number, other.what)

    def needs(self, other: Place) -> bool:
        """Whether this wait cannot end before a member that waits at ``other`` comes to it."""
        has_passed = self.can_pass and other.group == self.group and other.number > self.number
        return self.group != _MESSAGES and not self.is_same_call(other) and not has_passed

    def text(self) -> str:
        details = "; ".join(part for part in (self.what if self.method else "", self.line) if part)
        return f"{self.method or self.what} ({details})" if details else self.what


def in_deadlock(places: Mapping[int, Place]) -> set[int]:
    """Return the workers whose waits cannot end, because each needs one that waits in another call."""
    needed = {
        rank: {other for other in place.ranks if other in places and place.needs(places[other])}
        for rank, place in places.items()
    }
    blocked = set(places)
    while free := {rank for rank in blocked if not needed[rank] & blocked}:
        blocked -= free
    return blocked


class WaitNotices:
    """One process's part: where it waits, and what it reads about the others. All must be made before ``start``."""

    def __init__(self, environment: Environment, patience: AdaptiveTimeout) -> None:
        self._environment, self._patience, self._rank = environment, patience, environment.rank
        self._keys = [f"waiting/{rank}" for rank in range(environment.size)]
        self._current: Wait | None = None
        self._published: Wait | None = None
        self._noticed: Wait | None = None
        self._longest_s, self._look_again_s = 0.0, 0.0
        self._stop = Event()
        self._thread = Thread(target=self._watch, name="tacit-wait-notices", daemon=True)
        self._environment.publish("waiting", None)  # so that nobody who reads blocks

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)  # it may be in a call of a store whose host is stopped

    # In the worker's thread.

    def begin(self, what: str, group: str, number: int, ranks: tuple[int, ...], *, can_pass: bool = False) -> None:
        self._current = Wait(what, group, number, ranks, can_pass, time.monotonic(), get_ident())

    def begin_message(self, what: str, source: int | None) -> None:
        ranks = tuple(range(self._environment.size)) if source is None else (source,)
        self._current = Wait(what, _MESSAGES, 0, ranks, True, time.monotonic(), get_ident())

    def end(self) -> None:
        """The wait has succeeded."""
        self._current = None

    def fail(self) -> None:
        """The wait has failed, which ends the run: publish where it was, for good."""
        self._stop.set()
        wait = self._current
        if wait is not None:
            with suppress(RuntimeError):  # the store's host is gone
                self._environment.publish("waiting", asdict(_place(wait)))

    def differences(self) -> str | None:
        """Return who waits where and the rule, as the end of a sentence; None unless workers wait in different calls."""
        try:
            places = self._places()
        except RuntimeError:  # the store's host is gone
            return None
        blocked = in_deadlock(places)
        if not places or (not blocked and all(places[self._rank].is_same_call(place) for place in places.values())):
            return None
        shown = ", ".join(_where(places))
        return f"{shown}; {_RULE}" + ("" if blocked else "; where they do, a larger timeout_s waits longer")

    # In the thread that looks.

    @property
    def _notice_s(self) -> float:
        return self._patience.notice_s(self._longest_s)

    def _watch(self) -> None:
        with suppress(RuntimeError):  # the store's host is gone
            while not self._stop.wait(min(_LOOK_S, _PUBLISH_AFTER * self._notice_s)):
                self._look()

    def _look(self) -> None:
        wait, now_s = self._current, time.monotonic()
        if self._published is not None and self._published is not wait:
            self._longest_s = max(self._longest_s, now_s - self._published.since_s)
            self._published = None
            self._environment.publish("waiting", None)
        if wait is None:
            return
        waited_s, notice_s = now_s - wait.since_s, self._notice_s
        if self._published is not wait and waited_s >= _PUBLISH_AFTER * notice_s:
            place = _place(wait)
            if self._current is wait:  # else the frames may be those of something else
                self._environment.publish("waiting", asdict(place))
                self._published, self._look_again_s = wait, 0.0
        if (
            self._published is wait
            and self._noticed is not wait
            and waited_s >= notice_s
            and now_s >= self._look_again_s
        ):
            self._look_again_s = now_s + waited_s / 4
            notice = self._notice(waited_s, is_late=waited_s >= _ABSENT_AFTER * notice_s)
            if notice is not None and self._current is wait:
                self._noticed = wait
                _log.warning(notice)

    def _notice(self, waited_s: float, *, is_late: bool) -> str | None:
        """Return what to say about this worker's wait; None where it is normal, not yet known, or for a lower rank to
        say.
        """
        places = self._places()
        mine = places[self._rank]  # this worker has published its own
        here = [rank for rank in mine.ranks if rank in places and places[rank].is_same_call(mine)]
        if blocked := in_deadlock(places):
            speaker, absent = min(blocked), []
        else:
            speaker, absent = min(here, default=-1), [rank for rank in mine.ranks if rank not in places]
            is_evaluating = mine.method.startswith(_END)  # all have entered: one of them may evaluate for long
            if not is_late or len(here) == len(mine.ranks) or mine.group == _MESSAGES or is_evaluating:
                return None
        if speaker != self._rank:
            return None
        parts = [f"worker {self._rank} has waited {waited_s:.0f} s in {mine.text()}"]
        if others := [rank for rank in here if rank != self._rank]:
            parts.append(f"{_workers(others)} {'wait' if others[1:] else 'waits'} there too")
        parts += _where({rank: places[rank] for rank in places if rank not in here})
        if absent:
            parts.append(f"{_workers(absent)} {'have' if absent[1:] else 'has'} not come to it yet")
        return f"{'; '.join(parts)}. {_RULE.capitalize()}."

    def _places(self) -> dict[int, Place]:
        """Return where workers wait: this one, and of the others those whose waits concern it."""
        found = [json.loads(text) for text in self._environment.store.multi_get(self._keys)]
        places = {rank: Place(**e | {"ranks": tuple(e["ranks"])}) for rank, e in enumerate(found) if e is not None}
        mine = places.get(self._rank)
        return {} if mine is None else {rank: p for rank, p in places.items() if rank in {self._rank, *mine.ranks}}


def _place(wait: Wait) -> Place:
    """Look at the frames of the thread that waits.

    The method is the outermost of the session, the line the innermost of the user.
    """
    method = line = ""
    frame: FrameType | None = sys._current_frames().get(wait.thread)
    while frame is not None:
        if frame.f_globals.get("__name__") == "tacit.session.session":
            name = frame.f_code.co_name
            method = _METHODS.get(name, method if name.startswith("_") else f"session.{name}()")
            caller = frame.f_back
            if name == "reported_model" and caller is not None and caller.f_code.co_name == "__exit__":
                method = _END + method
        elif not line and not _is_foreign(frame.f_code.co_filename):
            line = f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
        frame = frame.f_back
    return Place(wait.what, wait.group, wait.number, wait.ranks, wait.can_pass, method, line)


def _is_foreign(file: str) -> bool:
    return file.startswith((*_FOREIGN, "<")) or "site-packages" in file or "dist-packages" in file


def _where(places: Mapping[int, Place]) -> list[str]:
    """Return «worker 1 waits in …» for each place, workers at the same place together."""
    by_text: dict[str, list[int]] = {}
    for rank, place in places.items():
        by_text.setdefault(place.text(), []).append(rank)
    return [f"{_workers(ranks)} {'wait' if ranks[1:] else 'waits'} in {text}" for text, ranks in by_text.items()]


def _workers(ranks: Iterable[int]) -> str:
    *first, last = map(str, ranks)
    if not first:
        return f"worker {last}"
    if len(first) >= _SHOWN_RANKS:
        first, last = first[:_SHOWN_RANKS], f"{len(first) + 1 - _SHOWN_RANKS} more"
    return f"workers {', '.join(first)} and {last}"
