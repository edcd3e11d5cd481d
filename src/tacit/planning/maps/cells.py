"""Times to the target in all cells of a map, from paces in as few of them as the bounds allow.

A faster network or a shorter step never makes a strategy slower. So a measured cell bounds the time in every cell that
is slower or faster in both directions, and a candidate is simulated in a cell only if it could be among the best two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tacit.planning.pace import pace
from tacit.planning.plan import Row
from tacit.planning.results import Interval
from tacit.profiles.profile import Profile
from tacit.workloads.workload import Workload

_CLOSE: Final = 1.01
"""Bounds that differ by less than this factor count as the time."""
Place = tuple[int, int]


@dataclass(frozen=True)
class Base:
    """A candidate with its time to the target on one profile, and its pace there with the first draw of delays."""

    row: Row
    step_s: float

    @property
    def interval(self) -> Interval:
        assert self.row.shortest_s is not None
        return self.row.shortest_s


def base_of(row: Row, workload: Workload, profile: Profile) -> Base:
    """Return a row that reached the target on ``profile`` as the base of times elsewhere."""
    return Base(row, step_s_on(row, workload, profile))


def step_s_on(row: Row, workload: Workload, profile: Profile) -> float:
    """Return the time of a step on another profile of as many workers, with the first draw of delays."""
    return pace(workload, row.strategy, profile.of_ranks(row.ranks).cluster()).step_s


class Times:
    """Median times of all candidates in a grid whose indices grow with slowness, known or between bounds.

    step_s: of a candidate (its index) at a place. ``baseline``: the candidate that is simulated in every cell.
    """

    def __init__(
        self, bases: Sequence[Base], shape: tuple[int, int], step_s: Callable[[int, Place], float], baseline: int | None
    ) -> None:
        self._bases, self._step_s, self._baseline = bases, step_s, baseline
        self._low = np.zeros((len(bases), *shape))
        self._high = np.full((len(bases), *shape), np.inf)
        self.simulated = 0

    def best_two(self, place: Place) -> list[int]:
        """Return the candidates with the shortest times at ``place``, at most two."""
        if self._baseline is not None:
            self._settle(self._baseline, place)
        at = (slice(None), *place)
        for index in np.argsort(self._low[at] + np.minimum(self._high[at], 1e9), kind="stable"):
            second = np.sort(self._high[at])[1] if len(self._bases) > 1 else np.inf
            if self._low[(index, *place)] <= second:
                self._settle(int(index), place)
        settled = [index for index in range(len(self._bases)) if self._is_known(index, place)]
        return sorted(settled, key=lambda index: (self.median_s(index, place), index))[:2]

    def interval(self, index: int, place: Place) -> Interval:
        """Return the time of a candidate at a place where it is known."""
        own = self._bases[index].interval
        return own.scaled(self.median_s(index, place) / own.median)

    def median_s(self, index: int, place: Place) -> float:
        """Return the median time, or the middle of its close bounds."""
        at = (index, *place)
        return float(np.sqrt(self._low[at] * self._high[at]))

    def _is_known(self, index: int, place: Place) -> bool:
        at = (index, *place)
        return bool(self._low[at] > 0 and self._high[at] <= _CLOSE * self._low[at])

    def _settle(self, index: int, place: Place) -> None:
        if self._is_known(index, place):
            return
        base, (i, j) = self._bases[index], place
        time_s = base.interval.median * self._step_s(index, place) / base.step_s
        self.simulated += 1
        low, high = self._low[index], self._high[index]
        low[i:, j:] = np.maximum(low[i:, j:], time_s)
        high[: i + 1, : j + 1] = np.minimum(high[: i + 1, : j + 1], time_s)
        low[place] = high[place] = time_s


def coarse_to_fine(shape: tuple[int, int]) -> Iterator[Place]:
    """Yield all places, corners first, then the middles between them, so that bounds are useful early."""
    seen: set[Place] = set()
    step = 1
    while step < max(shape):
        step *= 2
    while step >= 1:
        rows, columns = ({*range(0, size, step), size - 1} for size in shape)
        for place in sorted((i, j) for i in rows for j in columns):
            if place not in seen:
                seen.add(place)
                yield place
        step //= 2
