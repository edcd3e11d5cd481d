"""Runs next to their plans: the causes of a difference add up, in the table, the sentence and the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tacit.record.run import Run
from tacit.record.trace import COMPUTE, EXCHANGE, HOOK, WAIT, Event, Trace
from tacit.report import Comparison, render
from tacit.report.planned import planned_run
from tacit.report.planned.page_parts import drift_lines, lines
from tests.report.synthetic_runs import row

PREDICTED = {
    "step_s": 0.1,
    "computing_s": 0.071,
    "hooks_s": 0.004,
    "waiting_s": 0.005,
    "wire_s": 0.02,
    "target_loss": 0.5,
    "time_median_s": 4.0,
    "time_low_s": 3.8,
    "time_high_s": 4.4,
    "steps": 40,
    "curve": {"step": [0, 20, 40], "time_s": [0.0, 2.0, 4.0], "loss": [2.0, 1.0, 0.5]},
    "memory_bytes": 3_000_000,
}


def run(steps: int = 60, reached: int = 44) -> Run:
    """Return a run of two workers whose steps take 0.09 s of computing, 0.01 of hooks and 0.02 on the wire.

    Worker 1 computes for 0.01 s less and waits.
    """
    trace, step_s = Trace(), 0.12
    for step in range(steps):
        begun = step * step_s
        for rank in (0, 1):
            computed = begun + 0.09 - 0.01 * rank
            trace.record(COMPUTE, rank, begun, computed, step=step + 1)
            trace.record(HOOK, rank, computed, computed + 0.01, step=step + 1)
            trace.record(WAIT, rank, computed + 0.01, begun + 0.1, step=step + 1, round=step + 1)
            trace.record(EXCHANGE, rank, begun + 0.1, begun + step_s, step=step + 1, round=step + 1, size_bytes=10)
    history = [row(step * step_s, 2.0 if step < reached else 0.4, step=step) for step in range(0, steps + 1, 4)]
    record = {"predicted": PREDICTED, "world": "processes", "peak_memory_bytes": {"0": 2_000_000, "1": 4_000_000}}
    return Run("w", "AllReduce()", 2, steps, 0, history, trace=trace, record=record)


def test_causes_add_up_to_the_difference_at_the_target() -> None:
    found = planned_run(run())
    assert found is not None and (found.steps, found.planned_s, found.measured_s) == (44, 4.0, pytest.approx(5.28))
    differences = {one.name: one.difference_s for one in found.causes}
    assert differences == {
        "computing": pytest.approx(44 * (0.085 - 0.071)),
        "hooks": pytest.approx(44 * 0.006),
        "wire": pytest.approx(0.0, abs=1e-9),
        "waiting": pytest.approx(0.0, abs=1e-9),
        "convergence": pytest.approx(0.4),
    }
    assert sum(differences.values()) == pytest.approx(found.difference_s)
    assert str(found) == (
        "loss 0.5 took 5.28 s, planned 4.00 (3.80–4.40): "
        "+15 % computing, +7 % hooks, 0 % wire, 0 % waiting, +10 % convergence."
    )
    assert [line[3] for line in lines(found)][-1] == "+1.28 s" and lines(found)[4][1:3] == ("40 steps", "44 steps")


def test_a_run_that_did_not_reach_the_target_is_compared_as_a_whole() -> None:
    found = planned_run(run(reached=1000))
    assert found is not None and found.target_loss is None and found.low_s is None
    assert (found.planned_s, found.measured_s) == (pytest.approx(6.0), pytest.approx(7.2))
    assert sum(one.difference_s for one in found.causes) == pytest.approx(1.2)
    assert found.causes[-1].difference_s == 0.0
    assert str(found).startswith("60 steps took 7.20 s, planned 6.00: ")


def test_a_run_that_was_evaluated_at_its_end_alone_does_not_say_when_it_reached_the_target() -> None:
    one = run()
    one.history = [one.history[0], one.history[-1]]
    found = planned_run(one)
    assert found is not None and found.target_loss is None and found.steps == 60


def test_a_run_without_the_numbers_of_one_worker_is_divided_by_the_others() -> None:
    one = run()
    partial = replace(one, trace=Trace())
    partial.trace.rows.extend(plain for plain in one.trace.rows if Event._make(plain).rank == 0)
    assert partial.missing_workers == [1] and one.missing_workers == []
    found = planned_run(partial)
    assert found is not None
    measured = {cause.name: cause.measured_s for cause in found.causes}
    assert measured["computing"] == pytest.approx(44 * 0.09)
    assert measured["wire"] == pytest.approx(44 * 0.02)
    assert "The numbers of worker 1 of 2 are missing" in render(Comparison.of([partial]))
    assert "are missing" not in render(Comparison.of([one]))


def test_a_run_without_a_plan_has_no_such_section() -> None:
    plain = replace(run(), record={})
    assert planned_run(plain) is None and "Planned and measured" not in render(Comparison.of([plain]))


def test_the_page_shows_curves_causes_memory_and_drifts() -> None:
    one = run()
    drift = {"time_s": 2.0, "text": "step 9: rounds take 1 s (0.1 planned).", "replanned": "Every(8) would gain."}
    one.record = {**one.record, "drift": [drift]}
    found = planned_run(one)
    assert found is not None
    assert drift_lines(found) == ["2.00 s, step 9: rounds take 1 s (0.1 planned). Every(8) would gain."]
    page = render(Comparison.of([one]))
    for text in ("Planned and measured", "+15 % computing", "4.00 MB, planned 3.00 MB", "Every(8) would gain."):
        assert text in page
    assert '"planned-0"' in page and "of the difference" in page
