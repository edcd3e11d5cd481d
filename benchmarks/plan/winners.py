"""Part 3: what a plan recommends, beside measured times of the strategies that follow it and of DDP."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from typing import Any, Final

import tacit
from benchmarks.papers.common import table, target
from benchmarks.plan.places import (
    ALONE,
    EVALUATE_EVERY,
    GOALS,
    JUDGING_SEEDS,
    LEAVE_OUT,
    QUICK,
    QUICK_LOSS,
    STAY,
    Goal,
)
from benchmarks.plan.predicting import plan_of, steps_to
from benchmarks.plan.recording import RealRun, not_run, reached, record
from tacit.planning.plan import Plan, Row
from tacit.planning.work import is_timed_with_gradients

_RUNNERS_UP: Final = 3
"""Rows that are measured besides the recommended one and DDP."""
_LONGER: Final = 1.5
"""Runs whose models depend on time are longer by this factor, since they may need more steps than simulated."""
Found = dict[str, Any]


def winners(chosen: argparse.Namespace) -> Found:
    """The strategy that a plan recommends is the fastest of those that were measured."""
    goals = [Goal(QUICK, QUICK_LOSS)] if chosen.quick else GOALS
    plans, results = {goal: plan_of(goal, chosen.folder) for goal in goals}, []
    runs = {
        goal: {row_name(row): (row, runs_of(goal, plan, row, chosen)) for row in rows_of(plan)}
        for goal, plan in plans.items()
    }
    failures = record([run for own in runs.values() for _, found in own.values() for run in found], chosen)
    for goal, plan in plans.items():
        measured = {
            name: times_s
            for name, (row, found) in runs[goal].items()
            if (times_s := measured_s(goal, row, found, chosen)) is not None
        }
        if _mean_s(measured.get(row_name(plan.best), [math.inf])) == math.inf:
            failures[str(goal)] = f"{row_name(plan.best)} did not reach the loss"
            continue
        results.append(result := _result(goal, plan, measured))
        print(f"    {goal}: {result['recommended']}, regret {result['regret']:.3f}", flush=True)
    return {
        "cells": results,
        "targets": [*_claims(results), *not_run(failures)],
        "table": _table(results),
        "setting": "plans with the real runs' learning rate and the usual candidates. Measured are the recommended row, "
        f"{_RUNNERS_UP} others and DDP itself (DistributedDataParallel). Times are means over the "
        f"{len(JUDGING_SEEDS)} seeds {JUDGING_SEEDS[0]} to {JUDGING_SEEDS[-1]}, none of which the plan had simulated: "
        "a plan minimises the mean. The regret of medians is in the table beside it. "
        "Models that depend on time have one run of each seed. Others ran once, and the time of a seed is that at which "
        "the run had made the steps which that seed needs, by its simulated losses. "
        "Where a plan has fewer others that reach the loss, some that do not are given 1.5 times the time of DDP.",
    }


def rows_of(plan: Plan) -> list[Row]:
    """Return the rows to measure: the recommended one, the fastest others, and DDP on all workers.

    If few others reach the target, some that were simulated and did not are among them.
    """
    others = [row for row in plan.rows if row is not plan.baseline and row is not plan.best]
    fastest = [row for row in others if row.shortest_s is not None]
    slower = [row for row in others if row.shortest_s is None and row.trials]
    found = {row_name(row): row for row in (plan.best, *[*fastest, *slower][:_RUNNERS_UP], plan.baseline)}
    return list(found.values())


def row_name(row: Row) -> str:
    return f"{row.strategy} on {len(row.ranks)}"


def runs_of(goal: Goal, plan: Plan, row: Row, chosen: argparse.Namespace) -> list[RealRun]:
    """Return the real runs of a row, long enough for all seeds.

    Models that depend on time are those of a run of their own seed; others are those that were simulated.
    """
    place, depends = goal.place.of_fastest(len(row.ranks)), is_timed_with_gradients(row.strategy)
    strategy = tacit.DDP() if len(row.ranks) == 1 else row.strategy
    seeds = [0]
    if row.shortest_s is None:  # it is not expected to reach the loss
        assert plan.baseline.shortest_s is not None
        steps = row.pace.steps_within(_LONGER * plan.baseline.shortest_s.median)
    elif depends:
        steps = round(_LONGER * max(trial.steps or 0 for trial in row.trials))
        seeds = _judged(chosen)
    else:
        steps = max(filter(None, _steps(goal, row, chosen)), default=1) + EVALUATE_EVERY
    return [RealRun(place, strategy, steps, chosen.folder, seed) for seed in seeds]


def _judged(chosen: argparse.Namespace) -> list[int]:
    return [0] if chosen.quick else [*JUDGING_SEEDS]


def _steps(goal: Goal, row: Row, chosen: argparse.Namespace) -> list[int | None]:
    """Return the steps to the loss of each seed, for a strategy whose models do not depend on time."""
    known = {trial.seed: trial.steps for trial in row.trials}
    place = goal.place.of_fastest(len(row.ranks))
    return [
        known[seed] if seed in known else steps_to(place, goal.loss, row.strategy, seed, chosen.folder)
        for seed in _judged(chosen)
    ]


def measured_s(goal: Goal, row: Row, runs: Sequence[RealRun], chosen: argparse.Namespace) -> list[float] | None:
    """Return the measured time to the loss of each seed, infinite where it was not reached; None without the runs."""
    found = [times for run in runs if (times := run.measured()) is not None]
    if len(found) < len(runs):
        return None
    real = [reached(times, goal.loss) for times in found]
    if is_timed_with_gradients(row.strategy) or real[0] is None or row.shortest_s is None:
        return [math.inf if one is None else one[1] for one in real]
    steps = _steps(goal, row, chosen)
    return [math.inf if step is None else found[0]["times_s"][step - 1] for step in steps]


def answer_of(plan: Plan) -> str:
    """Return which of the three answers a plan gives; empty: another one."""
    if plan.stays_with_ddp:
        return STAY
    if len(plan.best.ranks) == 1:
        return ALONE
    return LEAVE_OUT if len(plan.best.ranks) < plan.profile.workers else ""


def _mean_s(times_s: Sequence[float]) -> float:
    """Return what a plan minimises: the mean over seeds."""
    return statistics.fmean(times_s)


def _result(goal: Goal, plan: Plan, measured: dict[str, list[float]]) -> Found:
    name = row_name(plan.best)
    means_s = {other: _mean_s(times_s) for other, times_s in measured.items()}
    medians_s = {other: statistics.median(times_s) for other, times_s in measured.items()}
    fastest = min(means_s, key=lambda other: means_s[other])
    planned = {
        row_name(row): {"median": time_s.median, "low": time_s.low, "high": time_s.high}
        for row in plan.rows
        if (time_s := row.shortest_s) is not None
    }
    steps = [trial.steps for trial in plan.best.trials if trial.steps is not None]
    return {
        "goal": str(goal),
        "place": str(goal.place),
        "loss": goal.loss,
        "steps": statistics.median(steps),
        "recommended": name,
        "fastest": fastest,
        "answer": answer_of(plan),
        "wanted_answer": goal.answer,
        "why": plan.why,
        "regret": means_s[name] / means_s[fastest],
        "regret_of_medians": medians_s[name] / min(medians_s.values()),
        "measured_s": {other: _finite(time_s) for other, time_s in means_s.items()},
        "by_seed_s": {other: [*map(_finite, times_s)] for other, times_s in measured.items()},
        "planned_s": {other: planned[other] for other in measured if other in planned},
    }


def _finite(time_s: float) -> float | None:
    return None if time_s == math.inf else time_s


def _claims(results: Sequence[Found]) -> list[Found]:
    if not results:
        return []
    judged = [one for one in results if one["steps"] >= 50]
    right = sum(one["regret"] <= 1.05 for one in judged)
    worst = max(judged, key=lambda one: one["regret"])
    said = f"worst {worst['regret']:.3f} ({worst['goal']}: {worst['recommended']}, not {worst['fastest']})"
    worst_of_medians = max(judged, key=lambda one: one["regret_of_medians"])
    medians = f"worst {worst_of_medians['regret_of_medians']:.3f} ({worst_of_medians['goal']})"
    claims = [
        target(
            "winner",
            "the recommended strategy is the fastest or within 5 % of it in at least 9 of 10 cells, of at least 10",
            f"{right} of {len(judged)} cells with targets of 50 steps and more",
            right >= 0.9 * len(judged) and len(judged) >= 10,
        ),
        target("regret", "regret at most 1.1 in all", said, worst["regret"] <= 1.1),
        target("regret of medians", "the same with medians over seeds, which a plan does not minimise", medians, None),
    ]
    for answer in (LEAVE_OUT, STAY, ALONE):
        own = [one for one in results if one["wanted_answer"] == answer]
        good = [one for one in own if one["answer"] == answer and one["regret"] <= 1.1]
        said = "; ".join(f"{one['goal']}: {one['recommended']}, regret {one['regret']:.3f}" for one in own)
        claims.append(target(answer, f"a cell whose answer is «{answer}», confirmed", said, bool(good)))
    return claims


def _table(results: Sequence[Found]) -> list[str]:
    rows = []
    for one in results:
        for name, time_s in sorted(one["measured_s"].items(), key=lambda item: item[1] or math.inf):
            regrets = f"recommended; regret {one['regret']:.3f}, of medians {one['regret_of_medians']:.3f}"
            marks = regrets if name == one["recommended"] else ""
            known = [seconds for seconds in one["by_seed_s"][name] if seconds is not None]
            span = f" ({min(known):.2f} to {max(known):.2f})" if len(known) > 1 else ""
            shown = "not reached" if time_s is None else f"{time_s:.2f}{span}"
            planned = one["planned_s"].get(name)
            shown_plan = (
                "" if planned is None else f"{planned['median']:.2f} ({planned['low']:.2f} to {planned['high']:.2f})"
            )
            rows.append((one["goal"], name, shown, shown_plan, marks))
    titles = ("goal", "strategy and workers", "measured (s)", "planned (s)", "")
    return table(titles, rows)
