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


def test_a_round_that_is_not_due_takes_no_time():
    found = pace(TASK, tacit.LocalSGD(period=tacit.Every(64)), CLUSTER)
    assert found.seconds(50) == pytest.approx(5.0)
    assert found.seconds(64) > 6.4 + 0.3


def test_a_pace_without_ends_takes_equal_steps():
    plain = Pace(step_s=0.5, bytes_per_step=1.0, computing=1.0, hooks=0.0, waiting=0.0)
    assert plain.seconds(10) == 5.0 and plain.steps_within(5.1) == 10
    assert mean_pace([plain, plain]) == plain
