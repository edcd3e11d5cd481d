"""The plan benchmark: which models of a run are looked at, and how the times of several seeds are judged."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import pytest
from torch import nn

import tacit
from benchmarks.peer_loops.plan_loops import Kept
from benchmarks.plan.places import CALM_20, JUDGING_SEEDS, SORTED_1000, TWO_100, Goal
from benchmarks.plan.recording import RealRun
from benchmarks.plan.winners import measured_s
from tacit.planning.pace import Pace
from tacit.planning.plan import SIMULATED, Row
from tacit.planning.results import Interval, Trial


def test_models_of_a_server_are_looked_at_as_often_as_in_the_simulator() -> None:
    kept = Kept(nn.Linear(1, 1), every=5)
    for updates in (2, 4, 6, 8, 10, 17):
        kept.step(updates)
    assert list(kept.models) == [3, 5, 6]
    steps = Kept(nn.Linear(1, 1), every=2)
    for _ in range(5):
        steps.step()
    assert list(steps.models) == [2, 4]


def run_file(run: RealRun, rows: list[tuple[int, float, float]]) -> RealRun:
    """Write what a real run of ten steps of 0.1 s left behind."""
    run.file.parent.mkdir(parents=True, exist_ok=True)
    run.file.write_text(json.dumps({"steps": 10, "times_s": [0.1 * step for step in range(1, 11)], "rows": rows}))
    return run


def row_of(strategy: tacit.Strategy, steps: dict[int, int]) -> Row:
    trials = tuple(Trial(lr=0.1, seed=seed, steps=step, best_loss=0.1) for seed, step in steps.items())
    time_s = Interval.of([0.1 * step for step in steps.values()])
    pace = Pace(0.1, 0.0, 1.0, 0.0, 0.0)
    return Row(strategy=strategy, ranks=(0, 1), pace=pace, fidelity=SIMULATED, time_s=time_s, trials=trials)


def test_a_strategy_with_rounds_is_judged_by_the_steps_of_each_seed(tmp_path: Path) -> None:
    goal, chosen = Goal(TWO_100, 0.15), argparse.Namespace(quick=False, folder=tmp_path)
    steps = {seed: 4 + seed % 6 for seed in (0, *JUDGING_SEEDS)}
    row = row_of(tacit.DDP(), steps)
    run = run_file(RealRun(TWO_100, row.strategy, 9, tmp_path), [(4, 0.4, 0.14)])
    assert measured_s(goal, row, [run], chosen) == pytest.approx([0.1 * steps[seed] for seed in JUDGING_SEEDS])


def test_a_strategy_without_rounds_is_judged_by_a_run_of_each_seed(tmp_path: Path) -> None:
    goal, chosen = Goal(TWO_100, 0.15), argparse.Namespace(quick=False, folder=tmp_path)
    row = row_of(tacit.KAsync(k=1), {0: 4, 1: 5})
    runs = [RealRun(TWO_100, row.strategy, 9, tmp_path, seed) for seed in (0, 1)]
    run_file(runs[0], [(2, 0.2, 0.3), (4, 0.4, 0.14), (6, 0.6, 0.2)])
    assert measured_s(goal, row, runs, chosen) is None  # one of them was not made
    run_file(runs[1], [(4, 0.4, 0.2)])
    assert measured_s(goal, row, runs, chosen) == [0.4, math.inf]


def test_places_say_what_is_unusual_about_them() -> None:
    assert str(CALM_20) == "4 hosts, 20 Mbit/s, batch 32"
    assert str(SORTED_1000) == "4 hosts, 1 Gbit/s, sorted data, steps of 100 ms, momentum 0.9"
    assert SORTED_1000.of_fastest(4) is SORTED_1000 and CALM_20.of_fastest(1).hosts == 1
