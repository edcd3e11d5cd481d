"""The speeds of learners as the server measures them: numbers of updates between two uses of a learner's gradients.

An update with K of P learners uses fast learners more often than slow ones. If learners hold different data, the model
converges to the minimum of a speed-weighted mean of their losses. ``UpdateIntervals`` measures what ``RescaledRate``
needs to correct this; ``SpeedBiasCheck`` warns of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tacit.core.worker import Server
from tacit.errors import SpeedBias
from tacit.strategies.servers.messages import Pushed

if TYPE_CHECKING:
    from tacit.strategies.servers.strategy import ParameterServerStrategy

_WINDOW: Final = 100
"""Number of uses over which a learner's interval is averaged; a learner's speed may change during a run."""
_USES: Final = 50
"""Mean number of uses per learner at which the counts are compared."""
_RATIO: Final = 2.0
"""Ratio of uses from which the check warns. Random compute times alone do not reach it."""


class UpdateIntervals:
    """The mean number of updates between two uses of each learner.

    memory: where the numbers are stored, a part of the server's state and so of its checkpoints.
    """

    def __init__(self, memory: dict[str, float]) -> None:
        self._memory = memory

    def record(self, rank: int, update: int) -> None:
        """Record that update number ``update``, counted from 1, uses a gradient of ``rank``."""
        memory, uses, time, last = self._memory, f"uses/{rank}", f"time/{rank}", f"last/{rank}"
        memory[uses] = min(memory.get(uses, 0.0) + 1, _WINDOW)
        mean = memory.get(time, 0.0)
        memory[time] = mean + (update - memory.get(last, 0.0) - mean) / memory[uses]
        memory[last] = update

    def relative(self, rank: int, learners: Iterable[int]) -> float:
        """Return the interval of ``rank``, divided by the mean interval of those ``learners`` that were used."""
        times = {other: self._memory[f"time/{other}"] for other in {rank, *learners} if f"time/{other}" in self._memory}
        return times[rank] * len(times) / sum(times.values())


class SpeedBiasCheck:
    """Counts the uses of each learner, and warns once if they differ much.

    It does nothing if the strategy is not biased, or if the world checks the data before the run.
    """

    def __init__(self, strategy: ParameterServerStrategy, server: Server) -> None:
        self._strategy, self._uses = strategy, [0] * server.size
        self._is_done = server.knows_split or not strategy.is_speed_biased(server.size)

    def add(self, batch: Iterable[Pushed], learners: Iterable[int]) -> None:
        """Count an update with the gradients of ``batch``; learners: those that are present."""
        if self._is_done:
            return
        for rank, _ in batch:
            self._uses[rank] += 1
        uses = {rank: self._uses[rank] for rank in learners}
        if not uses or sum(uses.values()) < _USES * len(uses):
            return
        self._is_done = True
        most, least = max(uses, key=lambda rank: uses[rank]), min(uses, key=lambda rank: uses[rank])
        if uses[most] >= _RATIO * uses[least]:
            warnings.warn(
                f"{self._strategy} has used {uses[most]} gradients of learner {most} and {uses[least]} of learner "
                f"{least}. If learners hold different data, the model fits the data of the fast ones better; "
                f"rate=RescaledRate() or Ringleader() weigh all learners alike.",
                SpeedBias,
                stacklevel=2,
            )
