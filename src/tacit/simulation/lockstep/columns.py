"""Compute times and mini-batches of all workers, drawn for many steps at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.simulation.computing.compute_times import ComputeTimes
from tacit.workloads.workload import Sampler, Tokens

Seconds = NDArray[np.float64]
_SAMPLES_DRAWN: Final = 2**19  # of all workers' mini-batches at once, about


class Times:
    """Compute times of all workers."""

    def __init__(self, workers: Sequence[ComputeTimes]) -> None:
        self._workers = workers
        self._are_steady = all(one.is_steady for one in workers)
        self._drawn: Seconds = np.empty((len(workers), 0))  # work of coming steps, one row per worker
        self._used = 0

    def of_steps(self, start_s: Seconds, count: int) -> Seconds:
        """Draw the work of ``count`` steps of each worker; return its start and the end of each step, by rows."""
        if not self._are_steady:
            own = zip(self._workers, start_s.tolist(), strict=True)
            return np.array([times.times_of_steps(begin_s, count) for times, begin_s in own])
        while self._used + count > self._drawn.shape[1]:
            more = np.stack([times.draw_block() for times in self._workers])
            self._drawn, self._used = np.concatenate((self._drawn[:, self._used :], more), axis=1), 0
        times_s = np.empty((len(self._workers), count + 1))
        times_s[:, 0], times_s[:, 1:] = start_s, self._drawn[:, self._used : self._used + count]
        self._used += count
        return np.cumsum(times_s, axis=1, out=times_s)  # from left to right, as one addition after the other


class Batches:
    """Mini-batches of all workers, drawn for many steps at once."""

    def __init__(self, samplers: Sequence[Sampler] | None, workers: int, steps: int) -> None:
        self._samplers, self._workers, self._left = samplers, workers, steps  # steps that are not drawn yet
        self._drawn: list[Tokens] = []  # by rank
        self._used = self._held = 0  # steps of those drawn

    def take(self, count: int) -> list[Tokens]:
        """Return the next ``count`` mini-batches of each worker."""
        if self._samplers is None:
            return [range(count)] * self._workers
        if self._used + count > self._held:
            self._draw(self._samplers, count)
        begin, end = self._used, self._used + count
        self._used = end
        return self._drawn if begin == 0 and end == self._held else [own[begin:end] for own in self._drawn]

    def _draw(self, samplers: Sequence[Sampler], count: int) -> None:
        """Draw at least ``count`` steps, behind those that are not used yet."""
        at_once = count * (_SAMPLES_DRAWN // (samplers[0].batch_size * self._workers * count) or 1)
        more, unused = min(at_once, self._left), self._held - self._used
        drawn = [sampler.take(more) for sampler in samplers]
        if unused:
            drawn = [_joined(own[self._used :], new) for own, new in zip(self._drawn, drawn, strict=True)]
        self._drawn, self._left, self._used, self._held = drawn, self._left - more, 0, unused + more


def _joined(one: Tokens, other: Tokens) -> Tokens:
    return np.concatenate((one, other)) if isinstance(one, np.ndarray) else [*one, *other]
