"""Compute times of a worker's steps: drawn work, the worker's speed, and faults that slow or stop it.

``StepInProgress`` is a step that takes virtual time: it ends, or the strategy abandons it.
"""

from __future__ import annotations

import math
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.cluster.cluster import Cluster
from tacit.cluster.delays import SlowSpells
from tacit.cluster.faults import Crash, Pause, Slow
from tacit.core.randomness import Streams
from tacit.record.trace import Trace
from tacit.simulation.computing.processor import Processor

if TYPE_CHECKING:
    from tacit.simulation.endpoints import Endpoint

_DRAWN_AT_ONCE = 256


class ComputeTimes:
    """Compute times of one worker: ``times_of_steps`` returns the ends of steps that start now."""

    def __init__(self, cluster: Cluster, rank: int, streams: Streams) -> None:
        self._crashes = sorted(f.at_s for f in cluster.faults if isinstance(f, Crash) and f.rank == rank)
        self.crash_s = self.crash_after(-1.0)  # the next one
        self._delay, self._random = cluster.delay(rank), streams.numpy("compute", rank)
        self._speed = float(cluster.speed.get(rank, 1.0)) / cluster.slowdown(rank)
        self._drawn: list[float] = []  # work of coming steps
        self._used = 0
        self._windows = [
            (f.at_s, f.at_s + f.for_s, 0.0 if isinstance(f, Pause) else 1 / f.factor)
            for f in cluster.faults
            if isinstance(f, Pause | Slow) and f.rank == rank
        ]
        self._pauses = sorted((start, end) for start, end, rate in self._windows if rate == 0.0)
        self._spells = (
            _Spells(self._delay, streams.numpy("spells", rank)) if isinstance(self._delay, SlowSpells) else None
        )
        self.is_steady = not self._windows and self._spells is None  # whether work takes its time whenever it starts
        self._after_work = add if self.is_steady else self._end_of_work

    def crash_after(self, time_s: float) -> float:
        """Return the time of the worker's first crash after ``time_s``."""
        return next((at_s for at_s in self._crashes if at_s > time_s), math.inf)

    def times_of_steps(self, start_s: float, count: int) -> list[float]:
        """Draw the work of ``count`` consecutive steps; return ``start_s`` and the end of each step."""
        if self._used + count > len(self._drawn):
            self._draw(count)
        work_s = self._drawn[self._used : self._used + count]
        self._used += count
        return list(accumulate(work_s, self._after_work, initial=start_s))

    def end_of_step(self, start_s: float) -> float:
        """Draw the work of one step; return its end."""
        return self._after_work(start_s, self.work_of_step())

    def work_of_step(self) -> float:
        """Draw the work of one step; return its seconds without faults that slow or stop the worker."""
        if self._used == len(self._drawn):
            self._draw(1)
        work_s = self._drawn[self._used]
        self._used += 1
        return work_s

    def end_of_work(self, start_s: float, work_s: float) -> float:
        """Return the end of work that starts at ``start_s`` and takes ``work_s`` at speed 1."""
        return self._after_work(start_s, self.own_seconds(work_s))

    def own_seconds(self, work_s: float) -> float:
        """Return the seconds that work takes on this worker if it takes ``work_s`` at speed 1."""
        return work_s / self._speed

    def processor(self) -> Processor:
        """Return a core that computes as fast as this worker, faults included."""
        return Processor(None if self.is_steady else self._rate)

    def _draw(self, count: int) -> None:
        """Draw work until ``count`` steps are available.

        Blocks have a fixed size, so that the random stream does not depend on ``count``.
        """
        self._drawn = self._drawn[self._used :]
        self._used = 0
        while len(self._drawn) < count:
            self._drawn += self.draw_block().tolist()

    def draw_block(self) -> NDArray[np.float64]:
        """Draw the work of a fixed number of further steps."""
        return self._delay.draw(self._random, _DRAWN_AT_ONCE) / self._speed

    def awake_from(self, time_s: float) -> float:
        """Return the earliest time from ``time_s`` on at which the worker is not paused."""
        for start_s, end_s in self._pauses:
            if start_s <= time_s < end_s:
                time_s = end_s
        return time_s

    def _end_of_work(self, time_s: float, work_s: float) -> float:
        """Integrate the piecewise constant rate until ``work_s`` is done."""
        while True:
            rate, until_s = self._rate(time_s)
            if rate > 0 and work_s <= (until_s - time_s) * rate:
                return time_s + work_s / rate
            work_s -= (until_s - time_s) * rate
            time_s = until_s

    def _rate(self, time_s: float) -> tuple[float, float]:
        """Return the work per second at ``time_s``, and the time of its next change."""
        rate, until_s = (1.0, math.inf) if self._spells is None else self._spells.rate(time_s)
        for start_s, end_s, factor in self._windows:
            if start_s <= time_s < end_s:
                rate, until_s = rate * factor, min(until_s, end_s)
            elif time_s < start_s:
                until_s = min(until_s, start_s)
        return rate, until_s


class _Spells:
    """Alternating normal and slow periods of a worker, drawn as far as needed."""

    def __init__(self, delay: SlowSpells, random: np.random.Generator) -> None:
        self._delay, self._random = delay, random
        self._ends = [random.exponential(delay.healthy_mean_s)]  # even indices end a normal period, odd ones a slow one

    def rate(self, time_s: float) -> tuple[float, float]:
        while self._ends[-1] <= time_s:
            is_spell = len(self._ends) % 2 == 1
            mean_s = self._delay.spell_mean_s if is_spell else self._delay.healthy_mean_s
            self._ends.append(self._ends[-1] + self._random.exponential(mean_s))
        place = int(np.searchsorted(self._ends, time_s, side="right"))
        return (1.0 if place % 2 == 0 else 1 / self._delay.factor), self._ends[place]


class StepInProgress:
    """A step that is being computed. It ends, or it is abandoned."""

    __slots__ = ("_is_over", "_start_s", "_trace", "_worker", "is_abandoned", "number")

    def __init__(self, worker: Endpoint, start_s: float, number: int, trace: Trace) -> None:
        self._worker, self._start_s, self.number, self._trace = worker, start_s, number, trace
        self.is_abandoned = self._is_over = False

    def end(self) -> None:
        """End the step and resume its worker."""
        if not self._is_over and not self._worker.is_lost:
            self.close()
            self._worker.fiber.resume()

    def close(self) -> None:
        """End the step without resuming its worker."""
        self._is_over = True
        if self.is_abandoned:
            self._record()

    def abandon(self) -> None:
        """Drop the gradient: now, or at the end of the step, depending on ``Cluster.cancel``."""
        if self.is_abandoned:
            return
        self.is_abandoned = True
        world = self._worker.world
        if world.cluster.cancel == "instant":
            self._is_over = True
            self._record()
            world.agenda.at(world.agenda.now_s, self._worker.fiber.resume)

    def _record(self) -> None:
        now_s, rank = self._worker.world.agenda.now_s, self._worker.rank
        self._trace.cancelled(rank, self.number, self._start_s, now_s)
