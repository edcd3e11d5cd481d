"""Causes of failure: why a run ends early, one cause for all workers.

A worker that ends publishes the cause in the store, unless another worker has published one. It then marks itself as
leaving, and only then closes its groups and sockets. So a process that is gone without this mark was lost.

    cause           the first cause published
    leaving/RANK    this worker knows that the run ends; the end of its process is no loss
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from threading import Event, Thread
from typing import Final, Protocol

from tacit.errors import Interrupted, PeerLost, RunError, TimedOut
from tacit.runtime.environment import Environment

_CAUSE_S: Final = 15.0
"""How long a worker whose collective failed waits for a cause: a lost worker, or a published error."""
_ARRIVAL_S: Final = 1.5
"""How long a worker whose collective timed out waits for the marks of others before it names those without one. Others
that wait hear of it at once, because its groups are closed; one and a half seconds allow for busy machines."""
_FURTHER_LOSSES_S: Final = 0.5
"""How long to look for further losses after the first."""
_LOOK_S: Final = 0.02
_WATCH_S: Final = 0.2
"""Period at which a worker without collectives checks whether the run ends."""


class ProcessLiveness(Protocol):
    """Which processes of the run have ended: ``Liveness`` from sockets, ``LaunchedLiveness`` from the launcher."""

    run_name: str

    def is_gone(self, rank: int) -> bool: ...

    def close(self) -> None: ...


LOST, FAILED, ASKED, TIMED_OUT = "lost", "failed", "asked", "timed out"


@dataclass(frozen=True)
class Cause:
    """Cause of the end of a run.

    kind: LOST, FAILED, ASKED (to end, by a signal) or TIMED_OUT. ranks: the workers that were lost, failed, were asked
    to end, or did not reach the call.
    """

    kind: str
    ranks: Sequence[int]
    reason: str | None = None  # FAILED: the error; TIMED_OUT: who waits where, if in different calls


def publish_cause(environment: Environment, cause: Cause) -> Cause:
    """Publish ``cause`` unless one is published; return the published one."""
    text = environment.decide("cause", json.dumps(asdict(cause)))
    return cause if text is None else Cause(**json.loads(text))


class FailureCauses:
    """One process's view of the end of the run.

    now_s: the run's clock. liveness: None in a run of one process, and in a process that is not a worker.
    """

    def __init__(
        self, environment: Environment, now_s: Callable[[], float], liveness: ProcessLiveness | None = None
    ) -> None:
        self._environment, self._now_s, self.liveness = environment, now_s, liveness
        self._own: Cause | None = None  # used if the store cannot be reached any more
        self._watch: Thread | None = None
        self._stop = Event()

    # What other workers have published.

    def cause(self) -> Cause | None:
        """Return the cause that ends the run; None if this worker knows of none."""
        return self._published() or self._own

    def cause_with(self, failure: BaseException) -> Cause | None:
        """Return the cause that ends the run; None if this worker knows of no more than ``failure``."""
        if (cause := self.cause()) is not None:
            return self._with_losses(cause)
        if isinstance(failure, PeerLost) and failure.reason is None and set(self.lost()) - set(failure.ranks):
            return Cause(LOST, sorted({*failure.ranks, *self.lost()}))
        return None

    def _published(self) -> Cause | None:
        text = self._environment.find("cause")
        return None if text is None else Cause(**json.loads(text))

    def lost(self) -> list[int]:
        """Return the workers whose process is gone and that are not marked as leaving.

        The mark is read after the check of the process: the order matters.
        """
        if self.liveness is None:
            return []
        others = [rank for rank in range(self._environment.size) if rank != self._environment.rank]
        gone = [rank for rank in others if self.liveness.is_gone(rank)]
        lost = [rank for rank in gone if not self.is_leaving(rank)]
        # The store was lost with worker 0, so the marks of other workers that are gone cannot be read.
        return [0] if self._environment.store_is_gone and 0 in lost else lost

    def is_leaving(self, rank: int) -> bool:
        return self._environment.has(f"leaving/{rank}")

    # What this worker publishes.

    def agree(self, cause: Cause) -> Cause:
        """Publish ``cause`` unless one is published; return the published one."""
        mine = self._own = self._own or cause
        return publish_cause(self._environment, mine)

    def leave(self, failure: BaseException | None = None) -> None:
        """Mark this worker as leaving, and publish ``failure`` if given. Call before groups and sockets close."""
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

    # When a collective has failed.

    def find(self, *, is_timeout: bool, places: Callable[[], str | None]) -> Cause | None:
        """Return why a collective failed; None if no cause is found. Call after this worker's groups are closed.

        places: returns who waits where, if in different calls.
        """
        begun_s = time.monotonic()
        while (waited_s := time.monotonic() - begun_s) < _CAUSE_S:
            if (cause := self.cause()) is not None:
                return self._with_losses(cause)
            if self.lost():
                return self._with_losses(self.agree(Cause(LOST, self._all_lost())))
            if self._environment.store_is_gone and self._environment.is_asked_to_end():  # as others: they cannot say so
                return self.agree(self.asked())
            missing = self._missing()
            if is_timeout and (waited_s > _ARRIVAL_S or not missing):
                return self.agree(Cause(TIMED_OUT, missing, places()))
            time.sleep(_LOOK_S)
        return None

    def error_of(self, cause: Cause, what: str, timeout_s: float) -> RunError | Interrupted:
        """Return the error that a worker raises for ``cause`` while it waits for ``what``."""
        if cause.kind == ASKED:
            if self._environment.rank not in cause.ranks:
                return Interrupted(f"worker {cause.ranks[0]} was asked to end")
            store = f"the store at {self._environment.master} is gone, and the launcher with it"
            return Interrupted(f"terminated (SIGTERM){f'; {store}' if self._environment.store_is_gone else ''}")
        if cause.kind == TIMED_OUT:
            return TimedOut(what, cause.ranks, timeout_s, cause.reason)
        reason = (cause.reason or "its process exited without reporting an error").rstrip(".")
        if cause.reason is None and len(cause.ranks) > 1:
            reason = "their processes exited without reporting an error"
        way_out = f"{reason}. Start the run again; it resumes from its checkpoint if it has one."
        return PeerLost(cause.ranks[0], self._now_s(), what, way_out, cause.reason, ranks=cause.ranks)

    def _all_lost(self) -> list[int]:
        """Return the lost workers once every other worker is lost or leaving, or a short time has passed."""
        until_s = time.monotonic() + _FURTHER_LOSSES_S
        while set(self._missing()) - set(lost := self.lost()) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        return lost

    def _with_losses(self, cause: Cause) -> Cause:
        """Return ``cause`` with the workers that were lost after it was published."""
        return replace(cause, ranks=sorted({*cause.ranks, *self.lost()})) if cause.kind == LOST else cause

    def _missing(self) -> list[int]:
        """Return the other workers that are not marked as leaving."""
        me = self._environment.rank
        return [rank for rank in range(self._environment.size) if rank != me and not self.is_leaving(rank)]

    # Without collectives.

    def watch(self, is_asked: Callable[[], bool], found: Callable[[Cause], None]) -> None:
        """Call ``found`` from a thread once the run ends: by SIGTERM here (``is_asked``) or a published cause."""

        def look() -> None:
            while not self._stop.wait(_WATCH_S):
                cause = self.agree(self.asked()) if is_asked() else self.cause()
                if cause is not None:
                    found(cause)
                    return

        self._watch = Thread(target=look, name="tacit-failure-causes", daemon=True)
        self._watch.start()

    def asked(self) -> Cause:
        """Return the cause of a SIGTERM to this worker: torchrun sends it to all when one worker is lost."""
        lost = self.lost()
        return Cause(LOST, lost) if lost else Cause(ASKED, [self._environment.rank])

    def close(self) -> None:
        self._stop.set()
        if self._watch is not None:
            self._watch.join()
        if self.liveness is not None:
            self.liveness.close()
