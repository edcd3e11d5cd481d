"""The pace of a candidate: seconds and bytes per step, from a timing-only simulation on the profile's cluster."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from tacit.cluster.cluster import Cluster
from tacit.cluster.delays import Constant
from tacit.record.run import Run
from tacit.record.trace import COMPUTE
from tacit.simulation import simulate
from tacit.strategies import LocalSGD, Strategy, SwarmSGD
from tacit.strategies.local_sgd.periods import Every
from tacit.workloads.workload import Workload

_STEPS: Final = 24
"""Least number of steps of a timing-only run."""
_PERIODS: Final = 3
"""Least number of whole periods in a timing-only run."""
_MOST_STEPS: Final = 256
_DRAWS: Final = 3
"""Timing-only simulations of each candidate, with different delays."""
_NUMBERS: Final = ("step_s", "bytes_per_step", "computing", "hooks", "waiting")
"""The numbers of a pace that are averaged and written to files."""


@dataclass(frozen=True)
class Pace:
    """Seconds, bytes and shares of time per step; a step of a server strategy is an update of the server's model."""

    step_s: float
    bytes_per_step: float  # of all workers
    computing: float  # shares of the workers' time
    hooks: float
    waiting: float
    ends_s: tuple[float, ...] = field(default=(), repr=False)  # when all workers had completed each step from 0 on
    period: int = 1  # steps after which the times repeat

    def seconds(self, steps: int) -> float:
        """Return the seconds that ``steps`` steps take. Rounds that are not due by then do not count."""
        if steps < len(self.ends_s):
            return self.ends_s[steps]
        if not self.ends_s:
            return steps * self.step_s
        last = len(self.ends_s) - 1
        periods = math.ceil((steps - last) / self.period)
        return self.ends_s[steps - periods * self.period] + periods * self._period_s

    def steps_within(self, seconds: float) -> int:
        """Return the steps that are complete after ``seconds``."""
        if not self.ends_s:
            return math.floor(seconds / self.step_s)
        periods = max(0, math.ceil((seconds - self.ends_s[-1]) / self._period_s))
        return bisect_right(self.ends_s, seconds - periods * self._period_s) - 1 + periods * self.period

    @property
    def _period_s(self) -> float:
        """Seconds of a period, without the first one: it has no round that began earlier."""
        last = len(self.ends_s) - 1
        first = self.period if last >= 2 * self.period else 0
        return (self.ends_s[last] - self.ends_s[first]) * self.period / (last - first)

    def table(self) -> dict[str, float]:
        """Return the pace as a table of plan.json."""
        return {name: getattr(self, name) for name in _NUMBERS} | {"communication": self.communication}

    @property
    def communication(self) -> float:
        """The share of time that is neither computing nor work in hooks: on the wire, or waiting for others."""
        return max(0.0, 1.0 - self.computing - self.hooks)

    @property
    def wire(self) -> float:
        """The share of time in collectives, after the last worker has entered."""
        return max(0.0, self.communication - self.waiting)


def pace(workload: Workload, strategy: Strategy[Any], cluster: Cluster, *, seed: int = 0) -> Pace:
    """Return the pace of ``strategy`` on ``cluster`` for the model of ``workload``."""
    steps = steps_for(strategy)
    own = pace_of(_timed(workload, strategy, cluster, steps, seed), period_of(strategy))
    if not own.ends_s or not isinstance(strategy, LocalSGD) or not strategy.overlap_steps:
        return own
    return _without_last_wait(own, _ends_s(_timed(workload, strategy, cluster, steps + 1, seed))[: steps + 1])


def _timed(workload: Workload, strategy: Strategy[Any], cluster: Cluster, steps: int, seed: int) -> Run:
    return simulate(workload, strategy, cluster=cluster, steps=steps, seed=seed, timing_only=True, evaluate_every=steps)


def _without_last_wait(own: Pace, ends_s: tuple[float, ...]) -> Pace:
    """Return a pace with the ends of steps of a longer run: a run ends with a wait for the round that overlaps."""
    longer = replace(own, ends_s=ends_s)
    step_s = longer._period_s / own.period
    ratio = own.step_s / step_s
    computing, hooks = own.computing * ratio, own.hooks * ratio
    waiting = max(0.0, min(own.waiting * ratio, 1.0 - computing - hooks))
    return replace(longer, step_s=step_s, computing=computing, hooks=hooks, waiting=waiting)


def paces(workload: Workload, strategy: Strategy[Any], cluster: Cluster) -> list[Pace]:
    """Return the paces for several draws of delays; delays that are constant are drawn once."""
    is_constant = all(isinstance(cluster.delay(rank), Constant) for rank in range(cluster.workers))
    return [pace(workload, strategy, cluster, seed=seed) for seed in range(1 if is_constant else _DRAWS)]


def period_of(strategy: Strategy[Any]) -> int:
    """Return the steps between two rounds, where they are fixed; otherwise 1."""
    if isinstance(strategy, LocalSGD) and isinstance(strategy.period, Every):
        return strategy.period.n
    if isinstance(strategy, SwarmSGD) and isinstance(strategy.local_steps, int):
        return strategy.local_steps
    return 1


def steps_for(strategy: Strategy[Any]) -> int:
    """Return a number of steps that has whole periods."""
    period = period_of(strategy)
    return min(max(_STEPS, _PERIODS * period) // period * period, max(_MOST_STEPS, period))


def pace_of(run: Run, period: int = 1) -> Pace:
    """Return the pace of a run; ``period``: steps between its rounds."""
    summary = run.summary()
    steps = max(1, summary["steps"])
    ends_s = _ends_s(run) if period > 1 else ()
    return Pace(
        step_s=summary["time_s"] / steps,
        bytes_per_step=summary["bytes_sent"] / steps,
        computing=summary["computing"],
        hooks=summary["hooks"],
        waiting=summary["idle"],
        ends_s=ends_s,
        period=period if ends_s else 1,
    )


def _ends_s(run: Run) -> tuple[float, ...]:
    """Return when all workers have completed each step and its hooks; () if some worker lacks steps."""
    ranks, steps, starts_s = run.trace.unordered(("rank", "step", "start_s"), COMPUTE)
    if len(starts_s) != run.workers * run.steps:
        return ()
    begins_s = np.zeros((run.workers, run.steps + 1))
    begins_s[ranks, steps - 1] = starts_s
    begins_s[:, run.steps] = run.history[-1]["time_s"]
    return (0.0, *begins_s[:, 1:].max(axis=0).tolist())


def mean_pace(paces: list[Pace]) -> Pace:
    """Return the mean of several draws."""
    columns = {name: float(np.mean([getattr(one, name) for one in paces])) for name in _NUMBERS}
    ends_s = np.mean([one.ends_s for one in paces], axis=0) if all(one.ends_s for one in paces) else np.empty(0)
    return Pace(**columns, ends_s=tuple(ends_s.tolist()), period=paces[0].period)
