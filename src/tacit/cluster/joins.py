"""Faults that bring a worker in while others train: refused at the start where nothing gives that worker the trained
model.
"""

from __future__ import annotations

from typing import Any

from tacit.cluster.cluster import Cluster
from tacit.cluster.faults import Crash, Join
from tacit.core.strategy import Strategy, takes_joiners
from tacit.errors import require


def check_joins(strategy: Strategy[Any], cluster: Cluster) -> None:
    """Raise unless ``strategy`` takes in the workers that return or join by the faults of ``cluster``.

    A worker that is taken in without ``join`` would bring its initial model, and the others would average it in.
    """
    for fault in cluster.joins:
        require(
            takes_joiners(strategy),
            f"faults contains {fault}, but {strategy} takes no workers in mid-run: worker {fault.rank} would bring its initial model; "
            f"{_way_out(fault)}, or use a strategy that takes joiners, such as SwarmSGD() or KAsync(k=1).",
        )


def check_script_joins(cluster: Cluster) -> None:
    """Raise if a worker of a script would return or join: a script starts at its first line, and the others have
    trained.
    """
    for fault in cluster.joins:
        raise ValueError(
            f"faults contains {fault}, but a script cannot start while others train; {_way_out(fault)}, "
            f"or simulate a built-in workload with a strategy that takes joiners."
        )


def _way_out(fault: Crash | Join) -> str:
    """Return what to change in the fault."""
    return f"remove for_s={fault.for_s}" if isinstance(fault, Crash) else "remove it"
