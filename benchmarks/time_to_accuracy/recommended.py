"""What ``tacit plan`` recommends at each place, from the profile of its calibration.

Its candidates are DDP and those of our methods with rounds, each with the value that the search chose, on all workers
and, where one is slow, without it. All have the learning rate of the one that the search predicts to be the fastest.
"""

from __future__ import annotations

import time
from typing import Final

import tacit
from benchmarks.time_to_accuracy.methods import ALL_REDUCE, PLAN
from benchmarks.time_to_accuracy.paces import is_calibrated, profile_of
from benchmarks.time_to_accuracy.places import SEARCH_SEED, Spot
from benchmarks.time_to_accuracy.search import Choice, choices
from benchmarks.time_to_accuracy.setting import Setting
from benchmarks.time_to_accuracy.tasks import MOMENTUM

BUDGET_S: Final = 120.0


def recommended(setting: Setting) -> None:
    """Ask for the missing plans. The target is the held-out error; the seed is that of the search."""
    for spot in setting.spots:
        if PLAN not in spot.methods or not is_calibrated(setting, spot) or setting.is_over:
            continue
        if setting.plans.find(place=spot.key) is None and (known := candidates(setting, spot)):
            _ask(setting, spot, known)


def candidates(setting: Setting, spot: Spot) -> list[Choice]:
    """Return our methods with rounds that reached the target in the search, the one with the shortest time first."""
    found = [
        one for one in choices(setting) if one.spot is spot and one.is_ours and one.method not in (PLAN, ALL_REDUCE)
    ]
    known = [one for one in found if one.time_s is not None and not one.strategy.depends_on_time]
    return sorted(known, key=lambda one: one.time_s or 0.0)


def _ask(setting: Setting, spot: Spot, known: list[Choice]) -> None:
    began_s, task, lr = time.perf_counter(), setting.task, known[0].lr
    plan = tacit.plan(
        profile_of(setting, spot),
        setting.workload,
        target_loss=1.0 - task.target + 1e-9,
        strategies=[one.strategy for one in known],
        budget_s=BUDGET_S,
        steps=task.search_steps,
        seeds=[SEARCH_SEED],
        tune=False,
        lr=lr,
        momentum=MOMENTUM,
        evaluate_every=task.every,
        jobs=setting.jobs,
    )
    best = plan.best
    row = {
        "place": spot.key,
        "strategy": str(best.strategy),
        "workers": len(best.ranks),
        "lr": lr,
        "steps": min((trial.steps for trial in best.trials if trial.steps is not None), default=None),
        "time_s": None if best.shortest_s is None else best.shortest_s.median,
        "step_s": best.pace.step_s,
        "tried": sum(len(one.trials) for one in plan.rows),
        "why": plan.why,
        "seconds": round(time.perf_counter() - began_s, 1),
    }
    setting.plans.add(row)
    print(f"  {spot.key}: tacit plan recommends {row['strategy']} on {row['workers']}: {plan.why}", flush=True)
