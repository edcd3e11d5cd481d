"""Shares of time and the strip of the first rounds, checked by hand."""

from __future__ import annotations

import pytest

import tacit
from tacit.record.trace import CANCELLED, COMPUTE, EXCHANGE, FAULT, HOOK, WAIT, Trace
from tacit.report.timeline import shares, strip, window_s
from tests.report.synthetic_runs import local_run, server_run


def test_shares_sum_to_one_and_count_overlap_once() -> None:
    trace = Trace()
    trace.record(COMPUTE, 0, 0.0, 4.0)
    trace.record(EXCHANGE, 0, 2.0, 6.0, round=1)  # two seconds of it behind the computing
    trace.record(WAIT, 0, 6.0, 8.0)
    trace.record(CANCELLED, 1, 0.0, 2.0)
    trace.record(HOOK, 1, 5.5, 7.0)  # half a second of it behind the computing
    trace.record(COMPUTE, 1, 2.0, 6.0)
    trace.record(COMPUTE, -1, 0.0, 8.0)  # the server is not a worker
    found = shares(trace.columns())
    assert found == pytest.approx(
        {
            "computing": 8 / 16,
            "cancelled": 2 / 16,
            "waiting": 2 / 16,
            "finished": 0.0,
            "talking": 2 / 16,
            "hooks": 1 / 16,
            "other": 1 / 16,
        }
    )


@pytest.mark.parametrize("run", [local_run(period=4, workers=5, steps=20), server_run(k=3, workers=5, updates=20)])
def test_shares_agree_with_the_summary(run) -> None:  # type: ignore[no-untyped-def]
    found, summary = shares(run.trace.columns()), run.summary()
    assert sum(found.values()) == pytest.approx(1)
    assert found["waiting"] == pytest.approx(summary["idle"])
    assert found["computing"] == pytest.approx(summary["computing"])


def test_an_empty_trace_has_no_shares() -> None:
    assert set(shares(Trace().columns()).values()) == {0.0}
    assert window_s([Trace().columns()]) == 0.0


def test_a_strip_shows_the_server_and_the_first_workers_and_is_cut_at_its_end() -> None:
    drawn = strip(server_run(workers=16).trace.columns(), 0.1, 4)
    assert drawn.ranks == (-1, 0, 1, 2, 3)
    assert {bar.rank for bar in drawn.bars} == {-1, 0, 1, 2, 3}
    assert all(0 <= bar.start_s < bar.end_s <= 0.1 for bar in drawn.bars)
    assert {bar.activity for bar in drawn.bars} == {"computing", "cancelled", "waiting", "talking"}


def test_a_strip_keeps_faults() -> None:
    trace = Trace()
    trace.record(COMPUTE, 0, 0.0, 1.0)
    trace.record(FAULT, 0, 0.5, 0.5, label="Crash(rank=0, at_s=0.5)")
    (fault,) = strip(trace.columns(), 2.0, 4).faults
    assert (fault.end_s, fault.label) == (0.5, "Crash(rank=0, at_s=0.5)")


def test_the_window_holds_two_rounds_within_bounds() -> None:
    often, rarely = local_run(steps=60).trace.columns(), local_run(period=8, steps=60).trace.columns()
    second_round_s = float(rarely["time_s"][rarely["round"] == 2].max())
    step_s = 0.005 + 0.02 * 0.7  # median of a shifted exponential
    assert window_s([often, rarely]) == pytest.approx(min(1.02 * second_round_s, 60 * step_s), rel=0.25)
    assert window_s([often]) == pytest.approx(8 * step_s, rel=0.25)


def test_a_worker_that_has_taken_its_last_step_is_finished_and_does_not_wait() -> None:
    """In a swarm with one slow node the fast ones end early, and nobody is held up while training goes on."""
    cluster = tacit.Cluster(workers=4, compute=tacit.Constant(mean_s=0.02), speed={3: 0.25})
    run = tacit.simulate(
        tacit.workloads.quadratic(dimension=5), tacit.SwarmSGD(local_steps=4), cluster=cluster, steps=40
    )
    found, summary = shares(run.trace.columns()), run.summary()
    assert summary["idle"] == pytest.approx(0, abs=0.01) and found["waiting"] == pytest.approx(0, abs=0.01)
    assert summary["finished"] == pytest.approx(
        3 / 4 * 3 / 4, abs=0.02
    )  # three of four nodes, three quarters of the time
    assert found["finished"] == pytest.approx(summary["finished"])


def test_the_last_round_is_waited_for() -> None:
    cluster = tacit.Cluster(workers=4, compute=tacit.Constant(mean_s=0.02), speed={3: 0.25})
    strategy = tacit.LocalSGD(period=tacit.OneShot())
    summary = tacit.simulate(tacit.workloads.quadratic(dimension=5), strategy, cluster=cluster, steps=40).summary()
    assert summary["finished"] == 0 and summary["idle"] > 0.5
