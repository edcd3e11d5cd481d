"""The drift rule on series of rounds that are made up, and the lines about a run and its plan."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.session.plan_watch.drift import COMPUTE, NETWORK, Drift, DriftRule, Expected, Range, RoundTimes
from tacit.session.plan_watch.progress import drift_text, progress_line

PERIOD, STEP_S, WIRE_S = 8, 0.02, 0.05
EXPECTED = Expected(PERIOD * STEP_S + WIRE_S, Range.around(WIRE_S), (Range.around(STEP_S),) * 2)


def times(wire_s: float = WIRE_S, steps_s: tuple[float, ...] = (STEP_S, STEP_S)) -> RoundTimes:
    """Return a round in which the slowest rank is waited for."""
    compute_s = tuple(PERIOD * step_s for step_s in steps_s)
    return RoundTimes(PERIOD, max(compute_s) + wire_s, compute_s, (0.0,) * len(steps_s))


def drifts(rule: DriftRule, rounds: list[RoundTimes]) -> list[tuple[int, Drift]]:
    """Return the drifts, with the number of rounds after which each was found."""
    return [(number, drift) for number, one in enumerate(rounds, 1) if (drift := rule.add(one)) is not None]


@pytest.mark.parametrize("seed", range(40))
def test_steady_noise_is_no_drift(seed: int) -> None:
    random = np.random.default_rng(seed)
    noise = random.lognormal(0.0, 0.12, (200, 3))
    series = [times(WIRE_S * a, (STEP_S * b, STEP_S * c)) for a, b, c in noise]
    assert drifts(DriftRule(EXPECTED), series) == []


@pytest.mark.parametrize("before", range(20, 25))
def test_rounds_that_become_three_times_as_long_are_found_within_fifteen(before: int) -> None:
    random = np.random.default_rng(before)
    noise = random.lognormal(0.0, 0.12, before + 40)
    series = [times(WIRE_S * (3 if number >= before else 1) * one) for number, one in enumerate(noise)]
    [(found, drift)] = drifts(DriftRule(EXPECTED), series)
    assert before < found <= before + 15
    assert (drift.cause, drift.rank, drift.was_as_planned) == (NETWORK, None, True)
    assert drift.measured_s == pytest.approx(3 * WIRE_S, rel=0.25)


def test_a_worker_that_becomes_slower_is_named() -> None:
    series = [times()] * 22 + [times(steps_s=(STEP_S, 2 * STEP_S))] * 15
    [(_, drift)] = drifts(DriftRule(EXPECTED), series)
    assert (drift.cause, drift.rank) == (COMPUTE, 1) and drift.compute_s == pytest.approx((STEP_S, 2 * STEP_S))
    assert drift_text(drift, 300) == (
        "step 300: a step of worker 1 takes 40 ms (20 planned): it computes slower (2.0 times)."
    )


def test_the_cause_that_costs_most_is_named_even_if_another_one_began_earlier() -> None:
    slower = (STEP_S, 1.5 * STEP_S)  # costs 80 ms a round, and the network 100
    series = [times()] * 12 + [times(steps_s=slower)] * 5 + [times(3 * WIRE_S, slower)] * 20
    [(found, drift)] = drifts(DriftRule(EXPECTED), series)
    assert (found, drift.cause) == (27, NETWORK)
    passing = (
        [times()] * 12 + [times(steps_s=slower)] * 5 + [times(3 * WIRE_S, slower)] * 5 + [times(steps_s=slower)] * 9
    )
    [(found, drift)] = drifts(DriftRule(EXPECTED), passing)
    assert (found, drift.cause, drift.rank) == (27, COMPUTE, 1)


def test_a_worker_that_is_still_faster_than_the_slowest_does_not_matter() -> None:
    expected = Expected(
        PERIOD * 2 * STEP_S + WIRE_S, Range.around(WIRE_S), (Range.around(2 * STEP_S), Range.around(STEP_S))
    )
    steady = [times(steps_s=(2 * STEP_S, STEP_S))] * 12
    assert drifts(DriftRule(expected), steady + [times(steps_s=(2 * STEP_S, 1.9 * STEP_S))] * 30) == []
    [(_, drift)] = drifts(DriftRule(expected), steady + [times(steps_s=(2 * STEP_S, 3 * STEP_S))] * 30)
    assert drift.rank == 1


def test_a_plan_that_was_wrong_from_the_start_is_told_apart_from_a_change() -> None:
    [(found, drift)] = drifts(DriftRule(EXPECTED), [times(3 * WIRE_S)] * 40)
    assert found == 12 and not drift.was_as_planned


def test_a_drift_is_told_once_and_its_end_too() -> None:
    series = [times()] * 12 + [times(3 * WIRE_S)] * 40 + [times()] * 40
    (_, begin), (_, end) = drifts(DriftRule(EXPECTED, pause_s=1.0), series)
    assert not begin.is_over and end.is_over
    assert drift_text(begin, 7) == "step 7: rounds take 150 ms (50 planned): the network is slower (3.0 times)."
    assert drift_text(end, 9) == "step 9: rounds take 50 ms (50 planned): the network is as planned again."


def test_times_that_change_all_the_time_are_told_once_a_minute() -> None:
    series = ([times(3 * WIRE_S)] * 12 + [times()] * 12) * 40
    minutes = sum(one.elapsed_s for one in series) / 60
    assert 1 < len(drifts(DriftRule(EXPECTED), series)) <= minutes + 1 < 10


def test_one_window_is_not_enough_and_opposite_windows_do_not_add_up() -> None:
    steady = [times()] * 12
    assert drifts(DriftRule(EXPECTED), steady + [times(3 * WIRE_S)] * 5 + [times()] * 20) == []
    alternating = ([times(3 * WIRE_S)] * 5 + [times(0.0)] * 5) * 4
    assert drifts(DriftRule(EXPECTED), [times()] * 2 + alternating) == []


def test_rounds_that_take_little_time_do_not_matter() -> None:
    expected = Expected(PERIOD * STEP_S + 1e-3, Range.around(1e-3), (Range.around(STEP_S),) * 2)
    assert drifts(DriftRule(expected), [times(3e-3)] * 40) == []


def test_the_range_of_the_plan_is_allowed() -> None:
    wide = Expected(EXPECTED.round_s, Range(0.5 * WIRE_S, WIRE_S, 2 * WIRE_S), EXPECTED.compute_s)
    assert drifts(DriftRule(wide), [times(2.4 * WIRE_S)] * 40) == []
    assert len(drifts(DriftRule(wide), [times(2.6 * WIRE_S)] * 40)) == 1


def test_another_number_of_workers_is_not_compared() -> None:
    assert drifts(DriftRule(EXPECTED), [times(9 * WIRE_S, (STEP_S,) * 3)] * 40) == []


def test_the_progress_line() -> None:
    line = progress_line(
        step=1200,
        steps=9000,
        loss=(1.3123, 1200),
        step_s=0.228,
        planned_step_s=0.229,
        communication=0.2,
        begun=1e9,
        stopped_s=0.0,
        now=1e9 + 1200 * 0.228,
    )
    assert line.startswith(
        "step 1200/9000  loss 1.312  228 ms a step (229 planned)  communication 20 %  on plan, ends "
    )
    assert progress_line(
        step=3540,
        steps=None,
        loss=(2.331, 0),
        step_s=0.2,
        planned_step_s=0.2,
        communication=None,
        begun=0.0,
        stopped_s=0.0,
    ).startswith("step 3540  loss 2.331 at step 0  200 ms a step")
    slow = progress_line(
        step=10,
        steps=None,
        loss=None,
        step_s=1.3,
        planned_step_s=0.8,
        communication=None,
        begun=0.0,
        stopped_s=0.0,
    )
    assert slow == "step 10  1.3 s a step (800 ms planned)  62 % slower than planned"
