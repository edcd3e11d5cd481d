"""Why a run ends before its time: one cause, the same for all workers.

A worker that ends publishes the cause in the store, unless another worker has published one, then marks itself as
leaving, and only then closes its groups and sockets. So a process that is gone without such a mark was lost, and never
one that has only ended earlier than others.

    cause           the first one published, for all
    leaving/RANK    this worker knows that the run ends; what becomes of its process after that means nothing
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from threading import Event, Thread
from typing import Final

from tacit.errors import Interrupted, PeerLost, RunError, TimedOut
from tacit.runtime.environment import Environment
from tacit.runtime.failures.liveness import Liveness

_CAUSE_S: Final = 15.0
"""How long a worker whose round failed waits for a cause: for somebody who is gone, or somebody who says why it ends.
"""
_ARRIVAL_S: Final = 3.0
"""How long a worker whose round timed out waits for the others to notice before it names those that did not."""
_SETTLE_S: Final = 0.5
"""How long to look for further losses after the first."""
_LOOK_S: Final = 0.02
_WATCH_S: Final = 0.2
"""How often a worker that does not meet the others in rounds looks whether the run ends."""

LOST, FAILED, ASKED, TIMED_OUT = "lost", "failed", "asked", "timed out"


@dataclass(frozen=True)
class Cause:
    """What ended a run. kind: LOST, FAILED, ASKED (to end, by SIGTERM) or TIMED_OUT; ranks: who was lost, failed, was
    asked, or did not come.
    """

    kind: str
    ranks: Sequence[int]
    reason: str | None = None  # of one that failed: its error; of a time-out: who waits where, if in different calls
    name: str = ""  # of this ending, so that all can write what they keep of the run to one place


class FailureCauses:
    """One process's view of how the run ends.

    ``now_s`` is the run's clock; no ``liveness``: a process alone, or one that is no worker.
    """

    def __init__(self, environment: Environment, now_s: Callable[[], float], liveness: Liveness | None = None) -> None:
        self._environment, self._now_s, self.liveness = environment, now_s, liveness
        self._own: Cause | None = None  # where the store cannot be reached any more
        self._watch: Thread | None = None
        self._stop = Event()

    # What others have published.

    def cause(self) -> Cause | None:
        """Return what ends the run; None as far as this worker knows."""
        return self._published() or self._own

    def name(self) -> str | None:
        """Return the name of the run's ending; None where none is published, or none can be read."""
        cause = self._published()
        return None if cause is None else cause.name

    def _published(self) -> Cause | None:
        text = self._environment.find("cause")
        return None if text is None else Cause(**json.loads(text))

    def lost(self) -> list[int]:
        """Return the workers that are gone and did not say that they end.

        First gone, then not leaving: the order matters.
        """
        if self.liveness is None:
            return []
        others = [rank for rank in range(self._environment.size) if rank != self._environment.rank]
        gone = [rank for rank in others if self.liveness.is_gone(rank)]
        lost = [rank for rank in gone if not self.is_leaving(rank)]
        # The store went down with worker 0: whether others that are gone had marked themselves before cannot be known.
        return [0] if self._environment.store_is_gone and 0 in lost else lost

    def is_leaving(self, rank: int) -> bool:
        return self._environment.has(f"leaving/{rank}")

    # What this worker publishes.

    def agree(self, cause: Cause) -> Cause:
        """Publish ``cause`` unless there is one; return the one that stands."""
        mine = self._own = self._own or replace(cause, name=secrets.token_hex(4))
        text = self._environment.decide("cause", json.dumps(asdict(mine)))
        return mine if text is None else Cause(**json.loads(text))

    def leave(self, failure: BaseException | None = None) -> None:
        """Say that this worker ends, because of ``failure`` where it does not end as planned.

        Before its groups and sockets are closed.
        """
        if failure is not None:
            self.agree(self._cause_of(failure))
        self._environment.mark("leaving")

    def _cause_of(self, failure: BaseException) -> Cause:
        me = self._environment.rank
        match failure:
            case PeerLost(reason=None):
                return Cause(LOST, sorted({*failure.ranks, *self.lost()}))
            case PeerLost():
                return Cause(FAILED, failure.ranks, failure.reason)
            case KeyboardInterrupt():
                return Cause(ASKED, [me])
            case TimedOut():
                return Cause(TIMED_OUT, failure.missing, failure.places)
            case _:
                return Cause(FAILED, [me], f"{type(failure).__name__}: {failure}")

    # When a round has failed.

    def find(self, *, is_timeout: bool, places: Callable[[], str | None]) -> Cause | None:
        """Return why a round failed; None if that does not come out. Others must have been let go: this worker's groups
        are closed.

        places: returns who waits where, if in different calls.
        """
        begun_s = time.monotonic()
        while (waited_s := time.monotonic() - begun_s) < _CAUSE_S:
            if (cause := self.cause()) is not None:
                return self._with_losses(cause)
            if self.lost():
                return self._with_losses(self.agree(Cause(LOST, self._all_lost())))
            missing = self._missing()
            if is_timeout and (waited_s > _ARRIVAL_S or not missing):
                return self.agree(Cause(TIMED_OUT, missing, places()))
            time.sleep(_LOOK_S)
        return None

    def error_of(self, cause: Cause, what: str, timeout_s: float) -> RunError | Interrupted:
        """Return ``cause`` as what a worker raises that waits for ``what``."""
        if cause.kind == ASKED:
            is_me = self._environment.rank in cause.ranks
            return Interrupted("terminated (SIGTERM)" if is_me else f"worker {cause.ranks[0]} was asked to end")
        if cause.kind == TIMED_OUT:
            return TimedOut(what, cause.ranks, timeout_s, cause.reason)
        reason = (cause.reason or "its process ended without a word").rstrip(".")
        if cause.reason is None and len(cause.ranks) > 1:
            reason = "their processes ended without a word"
        way_out = f"{reason}. Start the run again; it goes on from its checkpoint where it has one."
        return PeerLost(cause.ranks[0], self._now_s(), what, way_out, cause.reason, ranks=cause.ranks)

    def _all_lost(self) -> list[int]:
        """Return those lost once every other worker is known to be lost or leaving, or has had time enough to be."""
        until_s = time.monotonic() + _SETTLE_S
        while set(self._missing()) - set(lost := self.lost()) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        return lost

    def _with_losses(self, cause: Cause) -> Cause:
        """Return ``cause`` with those who were lost after it was published."""
        return replace(cause, ranks=sorted({*cause.ranks, *self.lost()})) if cause.kind == LOST else cause

    def _missing(self) -> list[int]:
        """Return the others that have not said that they end."""
        me = self._environment.rank
        return [rank for rank in range(self._environment.size) if rank != me and not self.is_leaving(rank)]

    # While workers are not in rounds.

    def watch(self, is_asked: Callable[[], bool], found: Callable[[Cause], None]) -> None:
        """Call ``found`` from a thread once the run ends, here (``is_asked``, by SIGTERM) or elsewhere."""

        def look() -> None:
            while not self._stop.wait(_WATCH_S):
                cause = self.agree(self.asked()) if is_asked() else self.cause()
                if cause is not None:
                    found(cause)
                    return

        self._watch = Thread(target=look, name="tacit-endings", daemon=True)
        self._watch.start()

    def asked(self) -> Cause:
        """Return what it means that this worker was asked to end: torchrun asks all when one was lost."""
        lost = self.lost()
        return Cause(LOST, lost) if lost else Cause(ASKED, [self._environment.rank])

    def close(self) -> None:
        self._stop.set()
        if self._watch is not None:
            self._watch.join()
        if self.liveness is not None:
            self.liveness.close()
