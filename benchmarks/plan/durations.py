"""Part 4: how long the commands take: probe, plan, and map of a plan."""

from __future__ import annotations

import argparse
import math
import os
import time
from typing import Any, Final

import tacit
from benchmarks.fidelity.workloads import LEARNING_RATE, workload
from benchmarks.papers.common import table, target
from benchmarks.plan.kept import kept
from benchmarks.plan.places import FOUR_20, FOUR_100, FOUR_1000, PROBED, QUICK, QUICK_LOSS, SEEDS
from benchmarks.plan.probing import probed, profile_of
from benchmarks.plan.recording import not_run

LOSS: Final = 0.1
BANDWIDTHS, LATENCIES = (1.25e5, 1.25e8, 8), (1e-5, 1e-2, 8)
PROBE_LIMITS_S: Final = {FOUR_20: 60.0, FOUR_1000: 20.0}
PLAN_LIMIT_S, MAP_LIMIT_S, CANDIDATES = 300.0, 5.0, 16
Found = dict[str, Any]


def durations(chosen: argparse.Namespace) -> Found:
    """Probe, plan and map end in time."""
    places = [QUICK] if chosen.quick else PROBED
    probes = [probed(place, chosen.folder) for place in places]
    times = planning(chosen)
    claims = []
    for place, limit_s in {} if chosen.quick else PROBE_LIMITS_S.items():
        about = probed(place, chosen.folder)
        claims.append(
            target(
                f"probe, {place}",
                f"`tacit probe` of 153,610 parameters takes at most {limit_s:.0f} s",
                f"{about['seconds']:.1f} s; {about['without_import_s']:.1f} s after tacit and torch were imported",
                about["seconds"] <= limit_s,
            )
        )
    if times is None:
        claims += not_run({}, ["plan and map"])
    else:
        claims += _claims(times)
    rows = [(one["place"], one["seconds"], one["without_import_s"], one["load"]) for one in probes]
    return {
        "probes": probes,
        "planning": times,
        "targets": claims,
        "table": table(("probe", "whole command (s)", "without imports (s)", "load"), rows),
        "setting": "the probe's command with its default budget, on all hosts at once; a plan with default options, "
        "without a cache, and a map of it. The hosts of a probe share two cores, also while they import torch.",
    }


def planning(chosen: argparse.Namespace) -> Found | None:
    """Return the kept durations of plan and map; measure them if there are none."""
    place, loss = (QUICK, QUICK_LOSS) if chosen.quick else (FOUR_100, LOSS)
    profile = profile_of(place, chosen.folder)

    def measure() -> Found:
        begun_s = time.perf_counter()
        plan = tacit.plan(
            profile,
            workload(place.model),
            target_loss=loss,
            seeds=SEEDS[:1] if chosen.quick else SEEDS,
            lr=LEARNING_RATE,
        )
        plan_s = time.perf_counter() - begun_s
        maps_s = []
        for _ in range(3):
            begun_s = time.perf_counter()
            made = plan.map(bandwidth=BANDWIDTHS, latency=LATENCIES)
            maps_s.append(time.perf_counter() - begun_s)
        trials = [trial for row in plan.rows for trial in row.trials]
        return {
            "place": str(place),
            "loss": loss,
            "plan_s": plan_s,
            "is_cut": plan.is_cut,
            "candidates": len(plan.rows),
            "with_gradients": sum(bool(row.trials) for row in plan.rows),
            "trainings": len(trials),
            "rates": sorted({trial.lr for trial in trials}),
            "seeds": sorted({trial.seed for trial in trials}),
            "processes": os.cpu_count(),
            "map_s": maps_s,
            "map_cells": math.prod(axis[-1] for axis in (BANDWIDTHS, LATENCIES)),
            "map_paces": made.simulated,
        }

    return kept("durations", chosen, measure)


def _claims(times: Found) -> list[Found]:
    said = (
        f"{times['plan_s']:.0f} s for {times['candidates']} candidates, {times['with_gradients']} of them with gradients: "
        f"{times['trainings']} trainings, {len(times['rates'])} rates, {len(times['seeds'])} seeds, "
        f"{times['processes']} processes"
    )
    is_whole = not times["is_cut"] and times["candidates"] >= CANDIDATES
    is_whole = is_whole and len(times["rates"]) >= 4 and len(times["seeds"]) >= 3
    maps_s = ", ".join(f"{seconds:.2f}" for seconds in times["map_s"])
    return [
        target(
            "plan",
            f"a plan of at least {CANDIDATES} candidates, four rates and three seeds takes at most 5 minutes",
            said,
            times["plan_s"] <= PLAN_LIMIT_S and is_whole,
        ),
        target(
            "map",
            f"a map of {times['map_cells']} cells takes at most {MAP_LIMIT_S:.0f} s",
            f"{maps_s} s, {times['map_paces']} paces simulated",
            max(times["map_s"]) <= MAP_LIMIT_S,
        ),
    ]
