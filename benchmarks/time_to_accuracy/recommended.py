"""What ``tacit plan`` recommends at each place, from the profile of its calibration."""

from __future__ import annotations

import time
from typing import Final

import tacit
from benchmarks.time_to_accuracy.methods import PLAN
from benchmarks.time_to_accuracy.paces import is_calibrated, profile_of
from benchmarks.time_to_accuracy.places import SEARCH_SEED
from benchmarks.time_to_accuracy.setting import Setting
from benchmarks.time_to_accuracy.tasks import MOMENTUM

BUDGET_S: Final = 120.0


def recommended(setting: Setting) -> None:
    """Ask for the missing plans. The target is the held-out error; the seed is that of the search."""
    for spot in setting.spots:
        if PLAN not in spot.methods or not is_calibrated(setting, spot) or setting.is_over:
            continue
        if setting.plans.find(place=spot.key) is not None:
            continue
        began_s, task = time.perf_counter(), setting.task
        plan = tacit.plan(
            profile_of(setting, spot),
            setting.workload,
            target_loss=1.0 - task.target + 1e-9,
            budget_s=BUDGET_S,
            steps=task.search_steps,
            seeds=[SEARCH_SEED],
            lr=task.rates[1],
            momentum=MOMENTUM,
            evaluate_every=task.every,
            jobs=setting.jobs,
        )
        best = plan.best
        is_tuned = best.best_time_s is not None and best.shortest_s is best.best_time_s
        lr = best.best_lr if is_tuned and best.best_lr is not None else task.rates[1]
        steps = [trial.steps for trial in best.trials if trial.steps is not None and trial.lr == lr]
        row = {
            "place": spot.key,
            "strategy": str(best.strategy),
            "workers": len(best.ranks),
            "lr": lr,
            "steps": min(steps, default=None),
            "time_s": None if best.shortest_s is None else best.shortest_s.median,
            "step_s": best.pace.step_s,
            "tried": sum(len(one.trials) for one in plan.rows),
            "why": plan.why,
            "seconds": round(time.perf_counter() - began_s, 1),
        }
        setting.plans.add(row)
        print(f"  {spot.key}: tacit plan recommends {row['strategy']} on {row['workers']}, lr {lr:g}", flush=True)
