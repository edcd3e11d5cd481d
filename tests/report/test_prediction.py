"""A measured run beside its simulation: a check of the prediction, with the measured step times."""

from __future__ import annotations

import numpy as np
import pytest

import tacit
from tacit.cluster.measured import measured_cluster
from tacit.record.run import Run
from tacit.record.trace import COMPUTE, EXCHANGE, WAIT, Trace
from tacit.report import Comparison, Entry, verdict
from tacit.report.columns import cells, columns_of
from tacit.report.verdict import remarks
from tests.report.synthetic_runs import local_run


def both(*, factor: float = 1.1, compute: str = "Exponential(mean_s=0.02)") -> Comparison:
    """Return a run that was measured, and its simulation, which took ``factor`` times as long."""
    real, simulated = local_run(period=8, steps=40, workers=4), local_run(period=8, steps=40, workers=4)
    real.record = {"world": "processes"}
    simulated.config = {"cluster": {"compute": compute}}
    simulated.trace, end_s = Trace(), real.summary()["time_s"]
    simulated.trace.record(COMPUTE, 0, 0.0, factor * end_s, step=40)
    return Comparison.of([Entry("L measured", [real]), Entry("L simulated", [simulated])])


def test_a_run_and_its_simulation_are_a_check_and_no_race() -> None:
    found = both()
    assert found.baseline is None and not found.has_speed_ups
    measured_s = found.rows[0].time_s.mean
    assert measured_s is not None
    said = f"predicted {1.1 * measured_s:.2f} s, measured {measured_s:.2f} s: 10 % off."
    assert verdict(found) == f"LocalSGD: {said}"
    assert not any(cell.is_best for column in columns_of(found) for cell in cells(found, column))
    assert any("--cluster RUN does" in remark for remark in remarks(found))
    assert not any("--cluster RUN does" in remark for remark in remarks(both(compute="Recorded(times_s=[1.0])")))
    [one] = found.as_json()["predictions"]
    assert one["error"] == pytest.approx(0.1)


def test_other_bytes_are_said() -> None:
    assert any("sent other bytes: predicted 0 B, measured " in remark for remark in remarks(both()))


def real_run(paces_s: list[float], rounds: int, *, exchange_s: float = 0.5, size_bytes: int = 1000) -> Run:
    """Return a run on real processes: two steps and an all-reduce a round, with 0.1 s between a round's last step and
    the round.
    """
    trace, clock = Trace(), np.zeros(len(paces_s))
    for number in range(rounds):
        for rank, pace_s in enumerate(paces_s):
            for step in range(2):
                trace.record(COMPUTE, rank, clock[rank], clock[rank] + pace_s, step=2 * number + step + 1)
                clock[rank] += pace_s
        begin_s = float(clock.max()) + 0.1
        for rank in range(len(paces_s)):
            label, end_s = f"all-reduce {number + 1}", begin_s + exchange_s
            trace.record(WAIT, rank, clock[rank] + 0.1, begin_s, round=number + 1, label=label)
            trace.record(EXCHANGE, rank, begin_s, end_s, round=number + 1, size_bytes=size_bytes, label=label)
        clock[:] = begin_s + exchange_s
    settings = {"cluster": {"bandwidth_bytes_per_s": 1e4}}
    return Run("w", "s", len(paces_s), 2 * rounds, 0, trace=trace, config=settings, record={"world": "processes"})


def test_the_measured_cluster_has_the_steps_paces_and_rounds_of_the_run() -> None:
    cluster = measured_cluster(real_run([1.0, 1.0, 4.0], rounds=50))
    assert cluster.workers == 3
    steps_s = {rank: cluster.compute.expected_s / cluster.speed.get(rank, 1.0) for rank in range(3)}
    assert steps_s == pytest.approx(
        {0: 1.05, 1: 1.05, 2: 4.05}, rel=1e-3
    )  # half of the 0.1 s before a round is a step's
    assert cluster.bandwidth_bytes_per_s == 1e4
    assert 4 * cluster.latency_s + 1000 / 1e4 == pytest.approx(0.5)
    fast = measured_cluster(real_run([1.0, 1.0], rounds=5, exchange_s=0.01))
    assert (fast.latency_s, fast.bandwidth_bytes_per_s, dict(fast.speed)) == (0.0, 1e5, {})


def test_a_simulated_run_has_no_measured_steps() -> None:
    run = tacit.simulate(tacit.workloads.quadratic(dimension=3), tacit.AllReduce(), steps=3)
    with pytest.raises(ValueError, match="was not on real processes, so it has no measured step times"):
        measured_cluster(run)
