"""Runs of server strategies up to a virtual time: how many updates that takes is not known where K changes."""

from __future__ import annotations

from typing import Any

import tacit
from tacit.errors import RunError
from tacit.workloads.workload import Workload


class Ended(RunError):
    """The horizon of a run is reached."""


def simulate_until(
    horizon_s: float, moments: int, workload: Workload, strategy: tacit.Strategy[Any], **settings: Any
) -> tacit.Run:
    """Return a run that ends at ``horizon_s``, evaluated at ``moments`` equally distant times and at the start."""

    def stop(step: int, steps: int, time_s: float, loss: float | None) -> None:
        if time_s >= horizon_s * (1 - 1e-9):
            raise Ended(f"{time_s:g} s are over")

    cluster: tacit.Cluster = settings["cluster"]
    assert isinstance(cluster.compute, tacit.Delay)
    most = round(4 * cluster.workers * horizon_s / cluster.compute.expected_s) + 100  # more than any method needs
    run: tacit.Run | None
    try:
        run = tacit.simulate(
            workload, strategy, steps=most, evaluate_every_s=horizon_s / moments, progress=stop, **settings
        )
    except Ended as ended:
        run = ended.run
    assert run is not None
    run.history = [row for row in run.history if row["time_s"] <= horizon_s * (1 + 1e-9)]
    return run
