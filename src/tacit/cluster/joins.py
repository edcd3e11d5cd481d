"""Checks of faults in which a worker joins during the run: it needs a strategy that gives it the trained model."""

from __future__ import annotations

from typing import Any

from tacit.cluster.cluster import Cluster
from tacit.cluster.faults import Crash, Join
from tacit.core.strategy import Strategy, takes_joiners
from tacit.errors import require


def check_joins(strategy: Strategy[Any], cluster: Cluster) -> None:
    """Raise ``ValueError`` unless ``strategy`` admits the workers that return or join by the faults of ``cluster``.

    Without ``join`` a worker would start from its initial model, and the others would average with it.
    """
    for fault in cluster.joins:
        regroups = strategy.regroups and cluster.fewest_workers < cluster.workers
        hint = f", or set min_workers={cluster.workers - 1}" if strategy.regroups else ""
        require(
            takes_joiners(strategy) or regroups,
            f"faults contains {fault}, but {strategy} admits no workers during the run: worker {fault.rank} would "
            f"start from its initial model; {_way_out(fault)}{hint}, or use a strategy that admits workers, such as "
            f"SwarmSGD() or KAsync(k=1).",
        )


def check_script_joins(cluster: Cluster) -> None:
    """Raise ``ValueError`` if a worker of a script would return or join: a script cannot start from a trained model."""
    require(
        cluster.fewest_workers == cluster.workers,
        f"min_workers={cluster.min_workers}: the workers of a simulated script need each other; leave it out, or "
        f"simulate a built-in workload.",
    )
    for fault in cluster.joins:
        raise ValueError(
            f"faults contains {fault}, but a script cannot start while others train; {_way_out(fault)}, "
            f"or simulate a built-in workload with a strategy that admits workers during the run."
        )


def _way_out(fault: Crash | Join) -> str:
    """Return the change that makes the fault valid."""
    return f"remove for_s={fault.for_s}" if isinstance(fault, Crash) else "remove it"
