"""Paces: seconds of any number of steps, with the rounds that are due by then."""

from __future__ import annotations

import pytest

import tacit
from tacit.planning.pace import Pace, mean_pace, pace

CLUSTER = tacit.Cluster(workers=2, compute=tacit.Constant(mean_s=0.1), bandwidth_bytes_per_s=1e3, latency_s=0.0)
TASK = tacit.workloads.quadratic(dimension=100)


@pytest.mark.parametrize("steps", [1, 7, 8, 15, 24, 30, 64, 101])
def test_seconds_are_those_of_a_simulation_of_so_many_steps(steps: int):
    strategy = tacit.LocalSGD(period=tacit.Every(8))
    found = pace(TASK, strategy, CLUSTER)
    longer = tacit.simulate(TASK, strategy, cluster=CLUSTER, steps=128, timing_only=True, evaluate_every=1)
    row = next(row for row in longer.history if row["step"] == steps)
    assert found.seconds(steps) == pytest.approx(row["time_s"], rel=0.01)
    assert found.steps_within(found.seconds(steps) + 1e-9) == steps


@pytest.mark.parametrize("steps", [12, 24, 36, 44, 60, 68])
def test_steps_that_overlap_with_a_round_do_not_wait_for_it(steps: int):
    strategy = tacit.LocalSGD(period=tacit.Every(8), overlap_steps=4)
    slow = tacit.Cluster(workers=2, compute=tacit.Constant(mean_s=0.1), bandwidth_bytes_per_s=200.0, latency_s=0.0)
    found = pace(TASK, strategy, slow)
    longer = tacit.simulate(TASK, strategy, cluster=slow, steps=128, timing_only=True)
    numbers, starts_s = longer.trace.unordered(("step", "start_s"), "compute")
    assert found.seconds(steps) == pytest.approx(starts_s[numbers == steps + 1].max(), rel=0.01)
    assert found.step_s == pytest.approx(longer.summary()["time_s"] / 128, rel=0.05)
    assert found.computing + found.hooks + found.waiting <= 1.0 + 1e-9


def test_a_round_that_is_not_due_takes_no_time():
    found = pace(TASK, tacit.LocalSGD(period=tacit.Every(64)), CLUSTER)
    assert found.seconds(50) == pytest.approx(5.0)
    assert found.seconds(64) > 6.4 + 0.3


def test_a_pace_without_ends_takes_equal_steps():
    plain = Pace(step_s=0.5, bytes_per_step=1.0, computing=1.0, hooks=0.0, waiting=0.0)
    assert plain.seconds(10) == 5.0 and plain.steps_within(5.1) == 10
    assert mean_pace([plain, plain]) == plain
