"""Period rules, number for number."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import tacit
from tacit.strategies.local_sgd.periods import UNTIL_THE_END, Period, Round


def trajectory(rule: Period, rounds: list[Round], steps: int | None = None) -> list[int]:
    """Return the period before the first round and after each."""
    state = rule.init(steps)
    periods = [state.period]
    for reduced in rounds:
        rule.update(state, reduced)
        periods.append(state.period)
    return periods


def variances(rule: tacit.VariancePeriod, sequence: list[tuple[float, float]], steps: int) -> list[int]:
    """Feed (S, γ) per round; each round ends after as many steps as the period says."""
    state = rule.init(steps)
    periods, step = [state.period], 0
    for index, (variance, gamma) in enumerate(sequence):
        step += state.period
        rule.update(state, Round(index, step, gamma, variance=variance))
        periods.append(state.period)
    return periods


def test_variance_period_follows_the_band_exactly():
    """§5.7(1): frozen while sampling; +1, −1, hold at 0.69, 1.31 and 1.0 of the target."""
    sampling = [(2.0, 0.1), (4.0, 0.1), (3.0, 0.1)]  # S/γ = 20, 40, 30: C₂ = 30
    target = 30 * 0.1
    later = [
        (0.69 * target, 0.1),
        (0.69 * target, 0.1),
        (1.31 * target, 0.1),
        (1.0 * target, 0.1),
        (0.71 * target, 0.1),
        (1.29 * target, 0.1),
    ]
    rule = tacit.VariancePeriod(initial=4, sampling_steps=12)
    assert variances(rule, sampling + later, steps=100) == [4, 4, 4, 4, 5, 6, 5, 5, 5, 5]


def test_variance_period_never_falls_below_one_and_samples_a_quarter_by_default():
    rule = tacit.VariancePeriod(initial=2)
    assert variances(rule, [(1.0, 1.0)] * 5 + [(9.0, 1.0)] * 4, steps=40) == [2] * 6 + [1] * 4
    # A quarter of 40 steps: rounds that end steps 2, 4, …, 10 sample (k = 9 < 10); the one ending step 12 does not.
    assert variances(rule, [(1.0, 1.0)] * 5 + [(0.1, 1.0)], steps=40)[-1] == 3


def test_variance_period_climbs_after_a_cut_of_the_rate():
    """S falls with γ², its target with γ: the period rises without being given the cut of the rate."""
    before, after = [(0.04, 0.1)] * 10, [(0.0004, 0.01)] * 6
    assert variances(tacit.VariancePeriod(initial=4, sampling_steps=20), before + after, steps=100) == [4] * 11 + [
        5,
        6,
        7,
        8,
        9,
        10,
    ]


def test_linear_period_is_the_printed_schedule():
    """§1.4(b): E = 10, T = 5469, τ₀ = 91 give α = 1.0927 and these numbers."""
    rule = tacit.LinearPeriod(initial=91, rounds=10)
    printed = [91, 190.4, 289.9, 389.3, 488.7, 588.2, 687.6, 787.1, 886.5, 985.9]
    assert rule.schedule(5469) == pytest.approx(printed, abs=0.06)
    assert sum(rule.schedule(5469)) == pytest.approx(5384.6, abs=0.1)
    assert pytest.approx(1.0927, abs=1e-4) == 2 / 11 * 5469 / (10 * 91)
    rounds = [Round(index, 0, 0.1) for index in range(9)]
    periods = trajectory(rule, rounds, steps=5469)
    assert periods == [91, 190, 289, 389, 488, 588, 687, 787, 886, UNTIL_THE_END]
    assert sum(periods[:9]) < 5469  # the tenth and last round absorbs the rest


def losses(rule: Period, sequence: list[float | None]) -> list[int]:
    """Feed F(x̄₀), F(x̄₁), … as rounds bring them: the first round brings the loss at the start."""
    return trajectory(rule, [Round(i, 0, 0.1, first_loss=loss) for i, loss in enumerate(sequence)])


def test_loss_period_is_the_ceiling_of_the_cube_root():
    """§1.4(a): τ = ⌈(F₀/F)^{1/3}⌉ τ₀."""
    assert losses(tacit.LossPeriod(initial=5), [8.0, 4.0, 1.0, 8 / 27, 0.2962]) == [5, 5, 10, 10, 15, 20]
    assert losses(tacit.LossPeriod(initial=5, f_star=1.0), [9.0, 2.0]) == [5, 5, 10]
    assert losses(tacit.LossPeriod(initial=5), [8.0, 0.0]) == [5, 5, UNTIL_THE_END]
    with pytest.raises(ValueError, match="f_star=9 is not below the first loss 8"):
        losses(tacit.LossPeriod(initial=5, f_star=9), [8.0])


def test_adacomm_is_the_ceiling_of_the_square_root_and_shrinks():
    assert losses(tacit.AdaCommPeriod(initial=16), [4.0, 1.0, 0.25, 1e-9]) == [16, 16, 8, 4, 1]
    assert losses(tacit.AdaCommPeriod(initial=16, interval_rounds=2), [4.0, 1.0, 0.25, 0.25]) == [16, 16, 8, 8, 4]


@pytest.mark.parametrize(
    ("rule", "periods"),
    [(tacit.LossPeriod(initial=5), [5, 5, 5, 10, 10, 15]), (tacit.AdaCommPeriod(initial=16), [16, 16, 16, 8, 8, 6])],
    ids=str,
)
def test_a_round_that_brings_no_loss_leaves_the_period_as_it_is(rule: Period, periods: list[int]):
    """F₀ is then the first loss that comes: ranks that took no step still hold the model they began with."""
    assert losses(rule, [None, 4.0, 1.0, None, 0.4]) == periods


def test_a_list_of_periods_repeats_its_last():
    assert trajectory(tacit.PeriodList([4, 8, 16]), [Round(i, 0, 0.1) for i in range(4)]) == [4, 8, 16, 16, 16]


def test_every_and_one_shot_never_change():
    rounds = [Round(i, 0, 0.1) for i in range(3)]
    assert trajectory(tacit.Every(7), rounds) == [7] * 4
    assert trajectory(tacit.OneShot(), rounds) == [UNTIL_THE_END] * 4


@pytest.mark.parametrize("rule", [tacit.LinearPeriod(initial=4, rounds=3), tacit.VariancePeriod(initial=4)], ids=str)
def test_rules_that_need_the_number_of_steps_say_so(rule: Period):
    with pytest.raises(ValueError, match=r"steps=None: .* pass steps="):
        rule.init(None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: tacit.LinearPeriod(initial=0), "initial=0 must be a whole number, at least 1"),
        (lambda: tacit.LinearPeriod(rounds=0), "rounds=0 must be a whole number, at least 1"),
        (lambda: tacit.PeriodList([]), r"periods=\[\] is empty"),
        (lambda: tacit.PeriodList([3, 0]), "period=0 must be"),
        (lambda: tacit.VariancePeriod(lower=1.4), "lower=1.4 must be positive and below upper=1.3"),
        (lambda: tacit.RatePeriod(initial=0), "initial=0 must be a whole number, at least 1"),
        (lambda: tacit.RatePeriod(power=0), r"power=0 must be positive and finite; .* use Every\(4\)"),
        (lambda: tacit.RatePeriod(power=float("inf")), "power=inf must be positive and finite"),
        (lambda: tacit.RatePeriod(power=float("nan")), "power=nan must be positive and finite"),
        (lambda: tacit.RatePeriod(initial=8, maximum=4), "maximum=4 must be at least initial=8"),
        (lambda: tacit.RatePeriod(maximum=8.5), "maximum=8.5 must be a whole number"),
        (lambda: tacit.PacePeriod(communication=0), "communication=0 must be a share of the time, above 0 and below 1"),
        (lambda: tacit.PacePeriod(communication=10), "communication=10 must be a share"),
        (lambda: tacit.PacePeriod(communication=float("nan")), "communication=nan must be a share"),
        (lambda: tacit.PacePeriod(maximum=0), "maximum=0 must be a whole number, at least 1"),
        (
            lambda: tacit.VariancePeriod(initial=8, sampling_steps=4),
            "sampling_steps=4 must hold at least one period of 8",
        ),
    ],
)
def test_periods_check_themselves(wrong, message: str):
    with pytest.raises(ValueError, match=message):
        wrong()


@pytest.mark.parametrize(
    ("init", "update", "error", "text"),
    [
        (lambda self, steps: 4, None, TypeError, "init returned 4; it must return a tacit.PeriodState"),
        (lambda self, steps: tacit.PeriodState(0), None, ValueError, "state.period=0 must be a whole number"),
        (None, lambda self, state, reduced: 7, TypeError, "update returned 7; it must set state.period"),
        (
            None,
            lambda self, state, reduced: setattr(state, "period", 2.5),
            ValueError,
            "state.period=2.5 must be a whole",
        ),
    ],
)
def test_a_rule_that_sets_no_valid_period_is_named(init, update, error, text):
    hooks = {name: hook for name, hook in (("init", init), ("update", update)) if hook is not None}
    rule = dataclasses.dataclass(frozen=True)(type("Wrong", (tacit.Every,), hooks))(4)
    with pytest.raises(error, match=f"Wrong.*: {text}"):
        tacit.simulate(tacit.workloads.quadratic(dimension=3), tacit.LocalSGD(period=rule), steps=12)


def rates(rule: tacit.RatePeriod, sequence: list[float]) -> list[int]:
    """Feed the learning rate of each round."""
    return trajectory(rule, [Round(i, 0, rate) for i, rate in enumerate(sequence)])


def test_rate_period_of_power_one_doubles_when_the_rate_halves():
    """STL-SGD: k ← 2 k with η ← η/2; the floor in between."""
    assert rates(tacit.RatePeriod(initial=4), [0.8, 0.4, 0.2, 0.3, 0.1]) == [4, 4, 8, 16, 10, 32]
    assert rates(tacit.RatePeriod(initial=2, power=0.5), [0.8, 0.4, 0.2, 0.1]) == [2, 2, 2, 4, 5]


def test_rate_period_of_power_two_is_qsr():
    """QSR: H = max(H_base, ⌊(α/η)²⌋) with H_base = 4, and α = η₀ √H_base."""
    sequence, alpha = [0.1, 0.09, 0.07, 0.05, 0.03], 0.1 * 4**0.5
    expected = [max(4, int((alpha / rate) ** 2 * (1 + 1e-9))) for rate in sequence]
    assert rates(tacit.RatePeriod(initial=4, power=2), sequence)[1:] == expected == [4, 4, 8, 16, 44]


def test_rate_period_keeps_its_first_period_while_the_rate_rises():
    """The largest rate so far is η₀: a warm-up, from 0 or not, does not shorten or lengthen the period."""
    assert rates(tacit.RatePeriod(initial=4), [0.0, 0.1, 0.2, 0.4, 0.4, 0.2]) == [4] * 6 + [8]


def test_rate_period_is_clipped():
    rule = tacit.RatePeriod(initial=4, power=2, maximum=20)
    assert rates(rule, [0.1, 0.02, 0.0, 1e-300, 5e-324, 0.1]) == [4, 4, 20, 20, 20, 20, 4]
    assert rates(tacit.RatePeriod(initial=4, power=500), [1e300, 1e299, 1e300]) == [4, 4, 64, 4]
    assert rates(tacit.RatePeriod(), [0.2, 0.1, float("nan"), float("inf"), 0.1]) == [4, 4, 8, 8, 8, 8]


def test_rate_period_does_not_fall_below_the_exact_ratio():
    """0.3 and 0.1 in float32 have a ratio just below 3."""
    single = [float(torch.tensor(rate, dtype=torch.float32)) for rate in (0.3, 0.1, 0.7, 0.1, 0.01)]
    assert rates(tacit.RatePeriod(initial=5), single) == [5, 5, 15, 5, 35, 64]


def paces(rule: tacit.PacePeriod, times: list[tuple[float | None, float | None]]) -> list[int]:
    """Feed (round_s, step_s) per round."""
    return trajectory(rule, [Round(i, 0, 0.1, round_s=r, step_s=s) for i, (r, s) in enumerate(times)])


def test_pace_period_is_the_smallest_with_the_share():
    """H = ⌈r(1 − c)/(c s)⌉: with H steps rounds take at most the share c, with H − 1 steps more."""
    rule = tacit.PacePeriod(communication=0.1)
    assert rule.period_of(0.1, 0.03) == 30
    for round_s, step_s in ((0.1, 0.03), (0.017, 0.02), (0.3, 0.05), (1.0, 0.2)):
        period = rule.period_of(round_s, step_s)
        assert round_s / (period * step_s + round_s) <= 0.1 + 1e-12 < round_s / ((period - 1) * step_s + round_s)


def test_pace_period_is_clipped_between_one_and_the_maximum():
    rule = tacit.PacePeriod(communication=0.5, maximum=10)
    assert [rule.period_of(*times) for times in ((1e-9, 1.0), (0.0, 1.0), (0.0, 0.0))] == [1, 1, 1]
    assert [rule.period_of(*times) for times in ((9.5, 1.0), (11.0, 1.0), (1.0, 0.0), (1e300, 1e-300))] == [10] * 4


def test_pace_period_measures_three_rounds_first():
    """The first one opens connections, and the median of three leaves it out. Rounds without times do not count."""
    rule = tacit.PacePeriod(communication=0.5)
    assert paces(rule, [(None, None), (9.0, 1.0), (4.0, 1.0), (None, None), (4.0, 1.0)]) == [1] * 5 + [4]


def test_pace_period_follows_a_change_within_three_rounds_and_ignores_one_outlier():
    rule = tacit.PacePeriod(communication=0.5)
    steady, faster = [(4.0, 1.0)] * 5, [(4.0, 0.5)] * 3
    assert paces(rule, [*steady, (60.0, 1.0), (4.0, 9.0), *steady])[3:] == [4] * 10
    assert paces(rule, [*steady, *faster])[5:] == [4, 4, 4, 8]
