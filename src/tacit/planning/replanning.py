"""What a new plan would choose after a drift: the candidates of the plan, at the paces that the run has measured.

Only times are simulated. The steps that each candidate needs are those of the plan. It takes less than a second, of
which a training in the same process notices little.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tacit.planning.pace import Pace, pace
from tacit.planning.prediction import as_run
from tacit.planning.sized import Sized
from tacit.planning.what_if import scaled
from tacit.profiles.profile import Profile, profile_of_table
from tacit.registry.tables import parsed
from tacit.session.plan_watch.drift import Drift
from tacit.session.plan_watch.progress import duration
from tacit.strategies import Strategy

_BUDGET_S: Final = 0.8
GAIN: Final = 0.1
"""The least gain for which another candidate is named."""
ROUNDS_SHARE: Final = 0.1
"""Without losses: the share of time in rounds below which a longer period cannot gain much."""
_CORRECTIONS: Final = 3
"""Corrections of the bandwidth, until a simulated round takes as long as a measured one."""


def replanned(
    predicted: Mapping[str, Any],
    profile_table: Mapping[str, Any],
    strategy: Strategy[Any],
    drift: Drift,
    *,
    budget_s: float = _BUDGET_S,
) -> str | None:
    """Return in a sentence what a new plan would choose instead of ``strategy``; None if the plan has no alternatives.

    predicted: ``run.predicted``. profile_table: of the plan, as ``Profile.table`` returns it. budget_s: alternatives
    that are left after this time are not considered.
    """
    until_s = time.monotonic() + budget_s
    alternatives = predicted.get("alternatives", [])
    own = next((one for one in alternatives if one["strategy"] == str(strategy)), None)
    if own is None or not drift.compute_s:
        return None
    workload = Sized(parameters=predicted["parameters"], dtype=predicted["dtype"])
    profile = profile_of_table(dict(profile_table), Path("plan.json"))
    profile = measured_profile(profile, predicted, own["ranks"], strategy, drift)
    now = pace(workload, as_run(strategy), profile.of_ranks(own["ranks"]).cluster())
    best: tuple[float, dict[str, Any], Pace] | None = None
    for one in alternatives:
        if time.monotonic() > until_s:
            break
        if one is own or (one["time_s"] is None) != (own["time_s"] is None):
            continue
        cluster = profile.of_ranks(one["ranks"]).cluster()
        found = pace(workload, as_run(parsed("strategy", one["strategy"], "strategies")), cluster)
        value = _value(one, found, own, now)
        if value is not None and (best is None or value < best[0]):
            best = (value, one, found)
    return _sentence(own, now, best)


def measured_profile(
    profile: Profile, predicted: Mapping[str, Any], ranks: list[int], strategy: Strategy[Any], drift: Drift
) -> Profile:
    """Return the profile with the step times and the bandwidth that the run has measured.

    ranks: of the profile that take part in the run. The bandwidth is that with which a simulated round takes as long.
    """
    planned = [one[1] for one in predicted["rounds"]["compute_s"]]
    speeds = {
        rank: profile.speed.get(rank, 1.0) * planned_s / measured_s
        for rank, planned_s, measured_s in zip(ranks, planned, drift.compute_s, strict=True)
        if planned_s > 0 and measured_s > 0
    }
    profile = replace(profile, speed={**profile.speed, **speeds})
    workload = Sized(parameters=predicted["parameters"], dtype=predicted["dtype"])
    factor, period = 1.0, predicted["rounds"]["period"]
    for _ in range(_CORRECTIONS):
        cluster = scaled(profile, bandwidth=factor).of_ranks(ranks).cluster()
        one = pace(workload, as_run(strategy), cluster)
        wire_s = one.step_s * one.wire * period
        if wire_s <= 0 or drift.wire_s <= 0:
            break
        factor *= wire_s / drift.wire_s
    return scaled(profile, bandwidth=factor)


def _value(one: Mapping[str, Any], found: Pace, own: Mapping[str, Any], now: Pace) -> float | None:
    """Return the number to minimise: time to the target, or without losses that of a step; None: out of question."""
    if one["time_s"] is not None:
        return float(one["time_s"] * found.step_s / one["step_s"])
    # Without losses: the smallest change whose rounds take little time, among the same workers.
    if one["ranks"] != own["ranks"] or found.wire > ROUNDS_SHARE or found.step_s >= now.step_s:
        return None
    return -found.step_s


def _sentence(own: Mapping[str, Any], now: Pace, best: tuple[float, Mapping[str, Any], Pace] | None) -> str:
    if own["time_s"] is None:
        if best is None or now.wire <= ROUNDS_SHARE:
            return "A new plan would choose the same strategy."
        _, one, found = best
        shares = f"{100 * found.wire:.0f} % of the time instead of {100 * now.wire:.0f} %"
        return f"With {one['strategy']} rounds would take {shares}."
    now_s = own["time_s"] * now.step_s / own["step_s"]
    if best is None or best[0] > (1 - GAIN) * now_s:
        return "A new plan would choose the same strategy."
    value, one, _ = best
    return f"{_named(one, own)} would now take {duration(value)} to the target instead of {duration(now_s)}."


def _named(one: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Return a candidate as text, with its workers if they are fewer than now."""
    ranks: list[int] = one["ranks"]
    if len(ranks) == 1:
        return f"Worker {ranks[0]} alone"
    return f"{one['strategy']} on {len(ranks)} workers" if len(ranks) != len(own["ranks"]) else str(one["strategy"])
