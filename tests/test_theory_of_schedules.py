"""ADA-LUPA's conditions on changing periods: what they compare, and that the error keeps its linear speed-up where they
are met.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as draw

from tacit import theory

PAPER = {"steps": 5469, "workers": 4, "batch_size": 128}  # the paper's experiment on epsilon
LINEAR = [91, 190, 289, 389, 488, 588, 687, 787, 886, 1074]  # its linear growth; the last round absorbs the rest


def test_the_schedules_of_the_paper():
    """§1.4: both need a large constant in (iii), which O(·) allows."""
    for periods, factor in (([91] * 60 + [9], 12.9), (LINEAR, 21_206)):
        total, drift, longest = theory.lupa_schedule_conditions(periods=periods, **PAPER)
        assert (total.is_met, drift.is_met, longest.is_met) == (True, True, False)
        assert longest.ratio == pytest.approx(factor, rel=1e-3)
        assert theory.lupa_schedule_conditions(periods=periods, constant=longest.ratio * 1.001, **PAPER)[2].is_met


def test_the_longest_fixed_period_meets_them_and_the_next_does_not():
    """lupa_period rounds T^{2/3}/(pB)^{1/3} up; here it is whole."""
    period = theory.lupa_period(steps=1000, workers=4, batch_size=2)
    options = {"steps": 1000, "workers": 4, "batch_size": 2}
    assert period == 50
    assert all(each.is_met for each in theory.lupa_schedule_conditions(periods=[50] * 20, **options))
    failed = [
        each.name for each in theory.lupa_schedule_conditions(periods=[51] * 19 + [31], **options) if not each.is_met
    ]
    assert failed == ["(iii)"]


def test_a_condition_says_which_and_by_how_much():
    total, drift, longest = theory.lupa_schedule_conditions(periods=[40, 50], steps=100, workers=1, batch_size=1)
    assert str(total) == "(i) Σ τ_i = T: not met, 90 is 0.9 of 100"
    assert str(drift) == "(ii) Σ τ_i (τ_i − 1) ≤ c T²: met, 4010 is 0.401 of 10000"
    assert str(longest) == "(iii) (max τ_i)³ ≤ c T²/(pB): not met, 125000 is 12.5 of 10000"
    one_shot = theory.lupa_schedule_conditions(periods=[100], steps=100, workers=1, batch_size=1, constant=0.5)
    assert [each.is_met for each in one_shot] == [True, False, False]


@given(draw.lists(draw.integers(4, 400), min_size=1, max_size=60), draw.integers(1, 64), draw.integers(1, 64))
def test_conditions_that_are_met_keep_the_linear_speed_up(periods: list[int], workers: int, batch_size: int):
    """With the smallest c that fits, κ = 1 and τ ≥ 4: a = max(8, τ + 4) ≤ 2 τ, so Theorem 2 is at most (8c gap + 4σ²/μ
    + 128c σ²/μ)/(pBT).
    """
    steps, options = sum(periods), {"periods": periods, "workers": workers, "batch_size": batch_size}
    _, drift, longest = theory.lupa_schedule_conditions(steps=steps, **options)
    constant = max(drift.ratio, longest.ratio) * (1 + 1e-9)
    assert all(each.is_met for each in theory.lupa_schedule_conditions(steps=steps, constant=constant, **options))
    problem = theory.Objective(gap=2.0, smoothness=0.5, convexity=0.5, variance=3.0)
    rate = (8 * constant * 2 + (4 + 128 * constant) * 3 / 0.5) / (workers * batch_size * steps)
    assert theory.lupa_adaptive_bound(objective=problem, **options) <= rate * (1 + 1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"periods": []}, "periods is empty; give at least one round"),
        ({"periods": [4, 0]}, "periods=0 must be a whole number, at least 1"),
        ({"steps": 0}, "steps=0 must be a whole number"),
        ({"workers": 0}, "workers=0 must be a whole number"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number"),
        ({"constant": 0.0}, "constant=0 must be positive"),
    ],
)
def test_arguments_out_of_range_explain_themselves(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        theory.lupa_schedule_conditions(**{"periods": [5, 5], "steps": 10, "workers": 2, "batch_size": 2, **arguments})
