"""The pace of a candidate: seconds and bytes per step, from a timing-only simulation on the profile's cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tacit.cluster.cluster import Cluster
from tacit.cluster.delays import Constant
from tacit.record.run import Run
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


@dataclass(frozen=True)
class Pace:
    """Seconds, bytes and shares of time per step; a step of a server strategy is an update of the server's model."""

    step_s: float
    bytes_per_step: float  # of all workers
    computing: float  # shares of the workers' time
    hooks: float
    waiting: float

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
    run = simulate(workload, strategy, cluster=cluster, steps=steps, seed=seed, timing_only=True, evaluate_every=steps)
    return pace_of(run)


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


def pace_of(run: Run) -> Pace:
    """Return the pace of a run."""
    summary = run.summary()
    steps = max(1, summary["steps"])
    return Pace(
        step_s=summary["time_s"] / steps,
        bytes_per_step=summary["bytes_sent"] / steps,
        computing=summary["computing"],
        hooks=summary["hooks"],
        waiting=summary["idle"],
    )


def mean_pace(paces: list[Pace]) -> Pace:
    """Return the mean of several draws."""
    columns = {name: float(np.mean([getattr(one, name) for one in paces])) for name in Pace.__dataclass_fields__}
    return Pace(**columns)
