"""Who is still there: survivors give a sign of life through the store, and an error names those who do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from tacit.errors import PeerLost, RunError, TimedOut
from tacit.runtime.environment import Environment

_ANSWER_S: Final = 3.0
"""How long survivors wait for each other's sign of life before they call the others lost."""


class RollCall:
    """One process's questions to all others when something has gone wrong. ``now_s`` is the run's clock."""

    def __init__(self, environment: Environment, now_s: Callable[[], float]) -> None:
        self._environment, self._now_s = environment, now_s

    def missing(self) -> list[int]:
        """Return the ranks that give no sign of life."""
        environment = self._environment
        with suppress(RuntimeError):
            environment.publish("alive", True)
        until_s = time.monotonic() + _ANSWER_S
        answered = set(environment.published("alive")) | {environment.rank}
        while len(answered) < environment.size and time.monotonic() < until_s:
            time.sleep(0.02)
            answered |= set(environment.published("alive"))
        return [rank for rank in range(environment.size) if rank not in answered]

    def raise_if_missing(self, what: str) -> None:
        """Raise ``PeerLost`` where somebody gives no sign of life."""
        at_s = self._now_s()
        for rank in self.missing():
            raise self._lost(rank, what, at_s)

    def explained(self, error: RuntimeError, ranks: Sequence[int], what: str, timeout_s: float) -> RunError:
        """Return what a failed collective of ``ranks`` means: who of them does not answer, and why."""
        at_s = self._now_s()
        missing = [rank for rank in self.missing() if rank in ranks]
        told = self._environment.published("reason")
        told.pop(self._environment.rank, None)
        # Who timed out was not the first to end: it waited in vain too.
        first = [rank for rank, why in told.items() if not why.startswith(TimedOut.__name__)]
        if not first and ("timed out" in str(error).lower() or "timeout" in str(error).lower()):
            return TimedOut(what, missing, timeout_s)
        missing = missing or first or list(told)
        if not missing:
            return RunError(f"{what} failed although all workers answer: {error}")
        return self._lost(missing[0], what, at_s)

    def _lost(self, rank: int, what: str, at_s: float) -> PeerLost:
        told = self._environment.published("reason").get(rank)
        reason = (told or "its process ended without a word").rstrip(".")
        way_out = f"{reason}. Start the run again; it goes on from its checkpoint where it has one."
        return PeerLost(rank, at_s, what, way_out, told)

    def leave(self, failure: BaseException) -> None:
        """Tell the others why this process ends; those who lost somebody know it already."""
        if not isinstance(failure, PeerLost):
            with suppress(RuntimeError):
                self._environment.publish("reason", f"{type(failure).__name__}: {failure}")
