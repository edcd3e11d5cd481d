"""How fast learners are, as a server sees it: updates between two uses of a learner's gradients.

An update of K of P uses fast learners more often than slow ones. Where learners hold different data, the model then
settles at the minimum of a speed-weighted mean of their losses. ``UseTimes`` measures what ``RescaledRate`` needs
against this, ``UseCounts`` warns of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Final

from tacit.errors import SpeedBias

_WINDOW: Final = 100
"""Uses over which a learner's time is averaged: learners may become slower or faster during a run."""
_USES: Final = 50
"""Uses of the average learner after which counts say something."""
_RATIO: Final = 2.0
"""How much more often one learner is used than another where that is worth a warning: random times alone do not get
there.
"""


class UseTimes:
    """The mean number of updates between two uses of each learner, kept in a server's ``memory`` and so in its
    checkpoints.
    """

    def __init__(self, memory: dict[str, float]) -> None:
        self._memory = memory

    def use(self, rank: int, update: int) -> None:
        """A gradient of ``rank`` is part of the ``update``-th update, counted from 1."""
        memory, uses, time, last = self._memory, f"uses/{rank}", f"time/{rank}", f"last/{rank}"
        memory[uses] = min(memory.get(uses, 0.0) + 1, _WINDOW)
        mean = memory.get(time, 0.0)
        memory[time] = mean + (update - memory.get(last, 0.0) - mean) / memory[uses]
        memory[last] = update

    def relative(self, rank: int, learners: Iterable[int]) -> float:
        """Return the time of ``rank`` over the mean time of those ``learners`` that were used so far."""
        times = {other: self._memory[f"time/{other}"] for other in {rank, *learners} if f"time/{other}" in self._memory}
        return times[rank] * len(times) / sum(times.values())


class UseCounts:
    """Counts uses, and warns once when they differ much: for servers that do not know whether learners hold different
    data.
    """

    def __init__(self, strategy: object, size: int) -> None:
        self._strategy, self._uses, self._is_over = strategy, [0] * size, False

    def add(self, ranks: Iterable[int], is_here: Sequence[bool]) -> None:
        """Gradients of ``ranks`` are part of an update."""
        if self._is_over:
            return
        for rank in ranks:
            self._uses[rank] += 1
        uses = {rank: self._uses[rank] for rank, here in enumerate(is_here) if here}
        if not uses or sum(uses.values()) < _USES * len(uses):
            return
        self._is_over = True  # one look is enough
        most, least = max(uses, key=lambda rank: uses[rank]), min(uses, key=lambda rank: uses[rank])
        if uses[most] >= _RATIO * uses[least]:
            warnings.warn(
                f"{self._strategy} has used {uses[most]} gradients of learner {most} and {uses[least]} of learner {least}. If learners hold "
                f"different data, the model fits that of the fast ones better; rate=RescaledRate() or Ringleader() weigh all learners alike.",
                SpeedBias,
                stacklevel=2,
            )
