"""Plans for other networks, from the simulations of one plan: only paces are simulated again."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from tacit.cluster.links import Link, Nic
from tacit.errors import require
from tacit.planning.pace import mean_pace, paces, steps_for
from tacit.planning.plan import PACE_ONLY
from tacit.planning.results import Interval
from tacit.planning.verdict import Objective, chosen
from tacit.profiles.profile import Profile

if TYPE_CHECKING:
    from tacit.planning.plan import Plan, Row


def scaled(profile: Profile, *, bandwidth: float = 1.0, latency: float = 1.0, compute: float = 1.0) -> Profile:
    """Return ``profile`` with bandwidths, latencies and compute times multiplied by factors."""
    for name, factor in (("bandwidth", bandwidth), ("latency", latency), ("compute", compute)):
        is_factor = isinstance(factor, int | float) and factor > 0
        require(is_factor, f"{name}={factor!r} is a factor and must be positive; 0.2 is a fifth.")
    changes: dict[str, Any] = {
        "bandwidth_bytes_per_s": profile.bandwidth_bytes_per_s * bandwidth,
        "host_bandwidth_bytes_per_s": profile.host_bandwidth_bytes_per_s * bandwidth,
        "latency_s": profile.latency_s * latency,
        "host_latency_s": profile.host_latency_s * latency,
        "speed": {rank: profile.speed.get(rank, 1.0) / compute for rank in range(profile.workers)},
        "links": {
            pair: Link(
                latency_s=None if link.latency_s is None else link.latency_s * latency,
                bandwidth_bytes_per_s=(
                    None if link.bandwidth_bytes_per_s is None else link.bandwidth_bytes_per_s * bandwidth
                ),
            )
            for pair, link in profile.links.items()
        },
        "nics": {
            rank: Nic(
                out_bytes_per_s=None if nic.out_bytes_per_s is None else nic.out_bytes_per_s * bandwidth,
                in_bytes_per_s=None if nic.in_bytes_per_s is None else nic.in_bytes_per_s * bandwidth,
            )
            for rank, nic in profile.nics.items()
        },
    }
    return replace(profile, **changes)


def changed_plan(plan: Plan, profile: Profile) -> Plan:
    """Return ``plan`` for another profile of as many workers: the same steps to the target, at other paces.

    For strategies whose models depend on time, and for adaptive periods, the steps are those on the plan's own network.
    """
    rows = [_changed(row, plan, profile) for row in plan.rows]
    baseline = rows[list(plan.rows).index(plan.baseline)]
    objective = Objective(name=plan.objective, **plan.prices)
    ordered = sorted(rows, key=lambda row: (objective.value(row), row.pace.step_s))
    target = "the target" if plan.target_loss is None else f"the loss {plan.target_loss:g}"
    best, why = chosen(ordered, baseline, profile, objective, target)
    return replace(plan, profile=profile, rows=ordered, baseline=baseline, best=best, why=why)


def _changed(row: Row, plan: Plan, profile: Profile) -> Row:
    cluster = profile.of_ranks(row.ranks).cluster()
    changed = mean_pace(paces(plan.workload, row.strategy, cluster))
    reached = [trial.steps for trial in row.trials if trial.steps is not None]
    steps = round(median(reached)) if reached else steps_for(row.strategy)
    ratio = changed.seconds(steps) / row.pace.seconds(steps) if steps else 1.0
    return replace(
        row,
        pace=changed,
        time_s=_times(row.time_s, ratio),
        best_time_s=_times(row.best_time_s, ratio),
        relative=None,  # of a pilot: it is the ratio on the plan's network
        fidelity=PACE_ONLY if row.relative is not None and row.time_s is None else row.fidelity,
    )


def _times(interval: Interval | None, ratio: float) -> Interval | None:
    if interval is None:
        return None
    return interval.scaled(ratio)
