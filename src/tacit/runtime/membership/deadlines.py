"""Deadlines that are learned: the median of what was observed, plus a multiple of its spread."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

_KEPT: Final = 64
_ENOUGH: Final = 5
"""Observations before which the initial deadline holds."""
_SPREADS: Final = 4.0


class LearnedDeadline:
    """A deadline for something that repeats.

    initial_s: before enough is known. least_s: the resolution below which a difference means nothing on a busy machine.
    """

    def __init__(self, *, initial_s: float, least_s: float) -> None:
        self._initial_s, self._least_s = initial_s, least_s
        self._seen: deque[float] = deque(maxlen=_KEPT)
        self._factor = 1.0

    @property
    def seconds(self) -> float:
        """The median plus a multiple of the spread, which is the distance from the median to the largest."""
        if len(self._seen) < _ENOUGH:
            return self._factor * self._initial_s
        middle = median(self._seen)
        return self._factor * max(self._least_s, middle + _SPREADS * (max(self._seen) - middle))

    def observe(self, seconds: float) -> None:
        self._seen.append(seconds)
        self._factor = 1.0

    def forget(self) -> None:
        """Forget all observations."""
        self._seen.clear()

    def was_wrong(self) -> None:
        """Double the deadline until the next observation: it has passed, and nobody was lost."""
        self._factor *= 2.0
