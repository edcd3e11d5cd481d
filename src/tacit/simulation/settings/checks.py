"""Checks of the arguments of ``tacit.simulate``."""

from __future__ import annotations

import math
import warnings
from typing import Any

from tacit.cluster.cluster import Cluster
from tacit.cluster.delays import Delay
from tacit.cluster.faults import Slow
from tacit.core.strategy import Strategy
from tacit.errors import SpeedBias, nearest, require
from tacit.record.run import Run
from tacit.simulation.fibers import HOSTS
from tacit.simulation.settings.configuration import ROWS
from tacit.workloads.workload import Workload


def check_arguments(workload: object, strategy: object, steps: int, host: str | None) -> None:
    """Raise unless workload, strategy, steps and host are valid."""
    if not isinstance(workload, Workload):
        raise TypeError(f"workload={workload!r} must be a workload; try tacit.workloads.digits().")
    if not isinstance(strategy, Strategy):
        raise TypeError(f"strategy={strategy!r} must be a strategy; try tacit.AllReduce().")
    require(isinstance(steps, int) and steps >= 1, f"steps={steps} must be a whole number, at least 1.")
    require(host is None or host in HOSTS, f"host={host!r} is unknown{nearest(str(host), HOSTS)}")


def check_evaluations(every: int | None, every_s: float | None, until_loss: float | None, timing_only: bool) -> None:
    """Raise unless the evaluations that are asked for are possible."""
    require(
        every is None or every >= 1,
        f"evaluate_every={every} must be at least 1; None gives about {ROWS} rows.",
    )
    require(
        every_s is None or 0 < every_s < math.inf,
        f"evaluate_every_s={every_s} must be a number of seconds above 0, such as 0.5.",
    )
    require(
        every is None or every_s is None,
        f"evaluate_every={every} and evaluate_every_s={every_s} cannot be combined; leave out one of them.",
    )
    require(
        until_loss is None or math.isfinite(until_loss),
        f"until_loss={until_loss} must be a finite number; leave it out to run all steps.",
    )
    require(
        until_loss is None or not timing_only,
        f"until_loss={until_loss} needs the loss, and timing_only=True computes no gradients and no loss; "
        f"leave out one of them.",
    )


def warn_of_speeds(workload: Workload, strategy: Strategy[Any], cluster: Cluster) -> None:
    """Warn if learners differ in speed and in data."""
    ranks = range(cluster.workers)
    speeds = {cluster.speed.get(rank, 1.0) / cluster.slowdown(rank) for rank in ranks}
    delays = {""} if isinstance(cluster.compute, Delay) else {str(cluster.delay(rank)) for rank in ranks}
    is_slow = any(isinstance(fault, Slow) and fault.factor != 1.0 for fault in cluster.faults)
    if workload.is_shuffled is False and (len(speeds) > 1 or len(delays) > 1 or is_slow):
        warnings.warn(
            f"{strategy} uses fast learners more often than slow ones, and {workload} gives them different data: "
            f"the data of fast learners have a larger weight. rate=RescaledRate() or Ringleader() weigh all learners "
            f"equally.",
            SpeedBias,
            stacklevel=3,
        )


def check_resumed(start: Run, strategy: Strategy[Any], steps: int) -> None:
    """Raise unless a run with a server can continue from ``start``."""
    require(
        start.strategy == str(strategy),
        f"start is a run of {start.strategy}, and its server cannot continue as {strategy}; "
        f"pass start=run.parameters to start from its model.",
    )
    made = int(start.server[0]["updates"])
    require(
        steps > made,
        f"steps={steps} includes the updates of start, which has made {made}; pass a larger number.",
    )
