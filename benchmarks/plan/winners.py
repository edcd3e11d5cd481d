"""Part 3: what a plan recommends, beside measured times of the strategies that follow it and of DDP."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any, Final

import tacit
from benchmarks.papers.common import table, target
from benchmarks.plan.places import (
    ALONE,
    EVALUATE_EVERY,
    GOALS,
    LEAVE_OUT,
    QUICK,
    QUICK_LOSS,
    STAY,
    Goal,
)
from benchmarks.plan.predicting import plan_of
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
        goal: {row_name(row): (row, run_of(goal, row, chosen)) for row in rows_of(plan)} for goal, plan in plans.items()
    }
    failures = record([run for own in runs.values() for _, run in own.values()], chosen)
    for goal, plan in plans.items():
        measured = {
            name: time_s
            for name, (row, run) in runs[goal].items()
            if (time_s := measured_s(goal, row, run)) is not None
        }
        if row_name(plan.best) not in measured:
            failures[str(goal)] = f"{row_name(plan.best)} did not reach the loss"
            continue
        results.append(result := _result(goal, plan, measured))
        print(f"    {goal}: {result['recommended']}, regret {result['regret']:.3f}", flush=True)
    return {
        "cells": results,
        "targets": [*_claims(results), *not_run(failures)],
        "table": _table(results),
        "setting": "plans with the real runs' learning rate and the usual candidates. Of each cell the recommended "
        f"row, {_RUNNERS_UP} others and DDP itself (DistributedDataParallel) ran once; the time is that at which the "
        "run had made the steps that the plan's seeds 0, 1, 2 need, the median of the three. Of strategies whose models "
        "depend on time it is the time of seed 0's own models.",
    }


def rows_of(plan: Plan) -> list[Row]:
    """Return the rows to measure: the recommended one, the fastest others, and DDP on all workers."""
    fastest = [row for row in plan.rows if row.shortest_s is not None and row is not plan.baseline]
    found = {row_name(row): row for row in (plan.best, *fastest[:_RUNNERS_UP], plan.baseline)}
    return list(found.values())


def row_name(row: Row) -> str:
    return f"{row.strategy} on {len(row.ranks)}"


def run_of(goal: Goal, row: Row, chosen: argparse.Namespace) -> RealRun:
    """Return the real run of a row; it is long enough for all seeds of the plan."""
    most = max((trial.steps for trial in row.trials if trial.steps is not None), default=1)
    steps = round(_LONGER * most) if is_timed_with_gradients(row.strategy) else most + EVALUATE_EVERY
    strategy = tacit.DDP() if len(row.ranks) == 1 else row.strategy
    return RealRun(goal.place.of_fastest(len(row.ranks)), strategy, steps, chosen.folder)


def measured_s(goal: Goal, row: Row, run: RealRun) -> float | None:
    """Return the measured time to the loss, the median over the plan's seeds; None: it was not reached."""
    found = run.measured()
    real = None if found is None else reached(found, goal.loss)
    if found is None or real is None:
        return None
    if is_timed_with_gradients(row.strategy):
        return real[1]
    steps = [trial.steps for trial in row.trials if trial.steps is not None]
    return statistics.median(found["times_s"][step - 1] for step in steps)


def answer_of(plan: Plan) -> str:
    """Return which of the three answers a plan gives; empty: another one."""
    if plan.stays_with_ddp:
        return STAY
    if len(plan.best.ranks) == 1:
        return ALONE
    return LEAVE_OUT if len(plan.best.ranks) < plan.profile.workers else ""


def _result(goal: Goal, plan: Plan, measured: dict[str, float]) -> Found:
    name = row_name(plan.best)
    fastest = min(measured, key=lambda other: measured[other])
    planned = {row_name(row): row.shortest_s.median for row in plan.rows if row.shortest_s is not None}
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
        "regret": measured[name] / measured[fastest],
        "measured_s": measured,
        "planned_s": {other: planned[other] for other in measured if other in planned},
    }


def _claims(results: Sequence[Found]) -> list[Found]:
    if not results:
        return []
    judged = [one for one in results if one["steps"] >= 50]
    right = sum(one["regret"] <= 1.05 for one in judged)
    worst = max(judged, key=lambda one: one["regret"])
    said = f"worst {worst['regret']:.3f} ({worst['goal']}: {worst['recommended']}, not {worst['fastest']})"
    claims = [
        target(
            "winner",
            "the recommended strategy is the fastest or within 5 % of it in at least 9 of 10 cells, of at least 10",
            f"{right} of {len(judged)} cells with targets of 50 steps and more",
            right >= 0.9 * len(judged) and len(judged) >= 10,
        ),
        target("regret", "regret at most 1.1 in all", said, worst["regret"] <= 1.1),
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
        for name, time_s in sorted(one["measured_s"].items(), key=lambda item: item[1]):
            marks = "recommended" if name == one["recommended"] else ""
            planned = one["planned_s"].get(name)
            rows.append((one["goal"], name, f"{time_s:.2f}", "" if planned is None else f"{planned:.2f}", marks))
    return table(("goal", "strategy and workers", "measured (s)", "planned (s)", ""), rows)
