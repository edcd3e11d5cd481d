"""Parts 1 and 2: planned and measured time to a target, with equal and with other seeds."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.papers.common import table, target
from benchmarks.plan.places import (
    EQUAL_LOSS,
    EQUAL_SEEDS,
    EVALUATE_EVERY,
    OTHER_METHODS,
    OTHER_SEEDS,
    OTHERS_AT,
    QUICK,
    QUICK_LOSS,
    ROUNDS,
    Place,
)
from benchmarks.plan.predicting import planned_row, seconds_of, steps_to
from benchmarks.plan.recording import RealRun, not_run, reached, record
from tacit.planning.plan import Row
from tacit.strategies import Strategy

Found = dict[str, Any]


def equal_seeds(chosen: argparse.Namespace) -> Found:
    """Time to a target is planned for the seed of the real run."""
    loss = QUICK_LOSS if chosen.quick else EQUAL_LOSS
    rows = _rows([QUICK] if chosen.quick else EQUAL_SEEDS, loss, chosen)
    runs = {}
    for cell, row in rows.items():
        if (planned := seconds_of(row, 0)) is not None:
            runs[cell] = RealRun(cell[0], row.strategy, planned[0] + EVALUATE_EVERY, chosen.folder)
    failures = record(runs.values(), chosen)
    results = []
    for (place, name), run in runs.items():
        planned, found = seconds_of(rows[place, name], 0), run.measured()
        real = None if found is None else reached(found, loss)
        if planned is not None and found is not None and real is not None:
            error = planned[1] / real[1] - 1
            print(f"    {place}: {name}: {real[1]:.2f} s, planned {planned[1]:.2f} ({error:+.1%})", flush=True)
            results.append(
                {
                    "place": str(place),
                    "strategy": name,
                    "planned_steps": planned[0],
                    "steps": real[0],
                    "planned_s": planned[1],
                    "measured_s": real[1],
                    "error": error,
                    "load": found["load"],
                }
            )
    missing = [f"{place}: {name}" for place, name in rows if not _has(results, str(place), name)]
    claims = [*_equal_claims(results), *not_run(failures, missing)]
    return {
        "loss": loss,
        "cells": results,
        "targets": claims,
        "table": _equal_table(results),
        "setting": f"time to the loss {loss:g} with seed 0, planned from a probe of each place. Real runs keep models "
        f"every {EVALUATE_EVERY} steps; they are evaluated after the run.",
    }


def _rows(
    places: Sequence[Place], loss: float, chosen: argparse.Namespace, methods: Mapping[str, Strategy[Any]] = ROUNDS
) -> dict[tuple[Place, str], Row]:
    methods = dict(list(methods.items())[:2]) if chosen.quick else methods
    return {
        (place, name): planned_row(place, loss, strategy, chosen.folder)
        for place in places
        for name, strategy in methods.items()
    }


def _has(results: Sequence[Found], place: str, name: str) -> bool:
    return any(one["place"] == place and one["strategy"] == name for one in results)


def _equal_claims(results: Sequence[Found]) -> list[Found]:
    if not results:
        return []
    errors = [(abs(one["error"]), f"{one['strategy']}, {one['place']}") for one in results]
    mean, (worst, where) = statistics.fmean(error for error, _ in errors), max(errors)
    said = f"mean {mean:.1%}, worst {worst:.1%} ({where})"
    within = [sum(error <= limit for error, _ in errors) for limit in (0.1, 0.2)]
    count, alike = len(errors), sum(one["steps"] == one["planned_steps"] for one in results)
    return [
        target(
            "equal seeds, 10 %",
            "strategies with rounds, equal seeds: at least 90 % of cells within 10 %",
            f"{within[0]} of {count} cells; {said}",
            within[0] >= 0.9 * count,
        ),
        target("equal seeds, 20 %", "the same: all within 20 %", f"{within[1]} of {count}", within[1] == count),
        target("equal steps", "real and simulated runs need equally many steps", f"{alike} of {count}", None),
        target(
            "50 steps",
            "the target takes at least 50 steps",
            f"{min(one['steps'] for one in results)} to {max(one['steps'] for one in results)} steps",
            min(one["steps"] for one in results) >= 50,
        ),
    ]


def _equal_table(results: Sequence[Found]) -> list[str]:
    rows = [
        (
            one["place"],
            one["strategy"],
            one["steps"],
            f"{one['measured_s']:.2f}",
            f"{one['planned_s']:.2f} ({one['error']:+.1%})",
            one["load"],
        )
        for one in results
    ]
    return table(("place", "strategy", "steps", "measured (s)", "planned (s)", "load"), rows)


def other_seeds(chosen: argparse.Namespace) -> Found:
    """Times of three other seeds lie inside the plan's interval."""
    loss, seeds = (QUICK_LOSS, OTHER_SEEDS[:1]) if chosen.quick else (EQUAL_LOSS, OTHER_SEEDS)
    methods = {name: ROUNDS[name] for name in OTHER_METHODS}
    rows = _rows([QUICK] if chosen.quick else OTHERS_AT, loss, chosen, methods)
    runs = {}
    for (place, name), row in rows.items():
        for seed in seeds:
            steps = steps_to(place, loss, row.strategy, seed, chosen.folder)
            if steps is not None and row.time_s is not None:
                runs[place, name, seed] = RealRun(place, row.strategy, steps + EVALUATE_EVERY, chosen.folder, seed)
    failures = record(runs.values(), chosen)
    results = []
    for (place, name, seed), run in runs.items():
        interval, found = rows[place, name].time_s, run.measured()
        real = None if found is None else reached(found, loss)
        if interval is not None and real is not None:
            results.append(
                {
                    "place": str(place),
                    "strategy": name,
                    "seed": seed,
                    "low_s": interval.low,
                    "high_s": interval.high,
                    "measured_s": real[1],
                    "is_inside": interval.low <= real[1] <= interval.high,
                }
            )
    missing = [f"{place}: {name}" for place, name in rows if not _has(results, str(place), name)]
    inside = sum(one["is_inside"] for one in results)
    claims = [
        target(
            "other seeds",
            f"runs with seeds {', '.join(map(str, seeds))}: at least 80 % inside the interval of seeds 0, 1, 2",
            f"{inside} of {len(results)}",
            bool(results) and inside >= 0.8 * len(results),
        ),
        *not_run(failures, missing),
    ]
    cells = [
        (
            one["place"],
            one["strategy"],
            one["seed"],
            f"{one['low_s']:.2f} to {one['high_s']:.2f}",
            f"{one['measured_s']:.2f}{'' if one['is_inside'] else ' (outside)'}",
        )
        for one in results
    ]
    return {
        "loss": loss,
        "runs": results,
        "targets": claims,
        "table": table(("place", "strategy", "seed", "planned interval (s)", "measured (s)"), cells),
        "setting": f"time to the loss {loss:g}; the plan's interval is that of seeds 0, 1 and 2, with the ledger's prior.",
    }
