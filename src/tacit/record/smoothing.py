"""The running mean of losses of mini-batches, by which a run of a script reaches a target."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

LEAST: Final = 10
"""Mini-batches per worker of the cluster in a window, at least."""
SHARE: Final = 0.1


class Point(NamedTuple):
    """A mean loss, at the mean step and time of its mini-batches."""

    step: float
    time_s: float
    loss: float


class _Part(NamedTuple):
    batches: float
    step: float  # times the number of mini-batches, as is the time
    time_s: float
    loss: float  # times the weight
    weight: float


class RunningLoss:
    """The weighted mean loss over the last tenth of all mini-batches so far, and over ``least`` of them at least.

    A mean belongs to the middle of its window. So a curve is not delayed, however long the window is. All candidates of
    a plan have the same ``least``, so that those with few workers are not ahead by noise.
    """

    def __init__(self, least: int) -> None:
        self._least, self._all = least, 0
        self._parts: deque[_Part] = deque()
        self._sums = _Part(0, 0.0, 0.0, 0.0, 0.0)

    def add(self, step: float, time_s: float, loss: float, weight: float, batches: int = 1) -> Point | None:
        """Add the mean loss of some mini-batches; return the mean over the window, None until it is full."""
        self._all += batches
        self._change(_Part(batches, batches * step, batches * time_s, loss * weight, weight), 1)
        wanted = max(self._least, math.ceil(SHARE * self._all))
        while self._sums.batches - self._parts[0].batches >= wanted:
            self._change(self._parts[0], -1)
        sums = self._sums
        if sums.batches < wanted or not sums.weight:
            return None
        return Point(sums.step / sums.batches, sums.time_s / sums.batches, sums.loss / sums.weight)

    def _change(self, part: _Part, sign: int) -> None:
        if sign > 0:
            self._parts.append(part)
        else:
            self._parts.popleft()
        self._sums = _Part(*(one + sign * other for one, other in zip(self._sums, part, strict=True)))


def smoothed(rows: Iterable[tuple[int, float, float]], workers: int, least: int) -> Iterator[Point]:
    """Yield the points of a history whose rows have step, time, and the mean loss of the steps since the last row."""
    running, before, before_s = RunningLoss(least), 0, 0.0
    for step, time_s, loss in rows:
        count = step - before
        if count > 0 and math.isfinite(loss):
            point = running.add((before + step) / 2, (before_s + time_s) / 2, loss, float(count), count * workers)
            if point is not None:
                yield point
        before, before_s = step, time_s
