"""The theorem of the staleness rate: runs that follow the rule stay below its bound, with staleness as harmful as it
can be.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as draw

import tacit
from tacit import theory

CURVATURES = np.array([4.0, 1.0, 0.25])


def problem(gap: float, variance: float = 0.0, growth: float = 0.0) -> theory.Objective:
    return theory.Objective(gap=gap, smoothness=4.0, variance=variance, variance_growth=growth)


def loss(w: np.ndarray) -> np.ndarray:
    return (CURVATURES * w**2).sum(-1) / 2


def worst_run(c: float, maximum: float, k: int, oldest: int, updates: int) -> tuple[list[float], list[float]]:
    """Return η_j and ‖∇F(w_j)‖² of a run without noise whose every gradient is as old as harms most, of the last
    ``oldest`` models.
    """
    rule = tacit.StalenessRate(c=c, maximum=maximum)
    models, rates, squares = [np.array([3.0, -2.0, 1.0])], [], []
    for _ in range(updates):
        w = models[-1]
        steps = []
        for old in models[-oldest - 1 :]:
            rate = rule.of(maximum, 0, float(((w - old) ** 2).sum()))
            steps.append((float(loss(w - rate * CURVATURES * old)), rate, rate * CURVATURES * old))
        chosen = sorted(steps, key=lambda step: -step[0])[:k]
        chosen += [chosen[0]] * (k - len(chosen))
        rates.append(float(np.mean([rate for _, rate, _ in chosen])))
        squares.append(float(((CURVATURES * w) ** 2).sum()))
        models.append(w - np.mean([step for _, _, step in chosen], axis=0))
    return rates, squares


@settings(deadline=None, max_examples=40)
@given(draw.floats(1e-4, 1.0), draw.floats(0.05, 1.0), draw.integers(1, 4), draw.integers(0, 20))
def test_no_run_violates_the_bound(c: float, share: float, k: int, oldest: int):
    start = problem(float(loss(np.array([3.0, -2.0, 1.0]))))
    rates, squares = worst_run(c, share / 4, k, oldest, 120)
    for updates in (1, 10, 120):
        weighted = np.average(squares[:updates], weights=rates[:updates])
        bound = theory.staleness_rate_bound(
            rates=rates[:updates], c=c, maximum=share / 4, objective=start, batch_size=1, k=k
        )
        assert weighted <= bound * (1 + 1e-9)


def test_the_term_of_staleness_is_of_the_right_size():
    """F = w²/2, gradients as stale as the full rate allows: the model stops where they vanish, and J L² C is reached
    within 1 %.
    """
    maximum, c, updates = 0.2, 0.05, 3000
    w, rates, squares = 1.0, [], []
    rule = tacit.StalenessRate(c=c, maximum=maximum)
    for _ in range(updates):
        reach = np.sqrt(c / maximum)  # the farthest model whose gradient still has the full rate
        old = w - np.copysign(reach, w)
        rates.append(rule.of(maximum, 0, float((w - old) ** 2)))
        squares.append(w**2)
        w -= rates[-1] * old
    bound = theory.staleness_rate_bound(
        rates=rates,
        c=c,
        maximum=maximum,
        objective=theory.Objective(gap=0.5, smoothness=1.0, variance=0.0),
        batch_size=1,
    )
    assert 0.99 * bound < np.average(squares, weights=rates) <= bound


@pytest.mark.parametrize(("k", "batch_size", "growth"), [(1, 1, 0.0), (4, 2, 0.0), (2, 2, 2.0)])
def test_noisy_asynchronous_runs_stay_below_the_bound(k: int, batch_size: int, growth: float):
    """Random staleness up to 8 updates, 400 runs; each gradient has variance (σ² + M_G ‖∇F‖²)/m."""
    random, variance, updates, runs = np.random.default_rng(0), 3.0, 150, 400
    maximum, c = 1 / (4 * (growth / (k * batch_size) + 1)), 0.02
    models = [np.full((runs, 3), 2.0)]
    rates, squares = [], []
    for update in range(updates):
        w, step, mean_rate = models[-1], np.zeros((runs, 3)), np.zeros(runs)
        for _ in range(k):
            ages = random.integers(0, min(8, update) + 1, runs)
            old = np.stack(models)[len(models) - 1 - ages, np.arange(runs)]
            exact = CURVATURES * old
            spread = np.sqrt((variance + growth * (exact**2).sum(1)) / (3 * batch_size))
            gradient = exact + spread[:, None] * random.choice([-1.0, 1.0], (runs, 3))
            distance = np.maximum(((w - old) ** 2).sum(1), 1e-300)
            rate = np.minimum(c / distance, maximum)
            step += rate[:, None] * gradient / k
            mean_rate += rate / k
        rates.append(mean_rate.mean())
        squares.append((mean_rate * ((CURVATURES * w) ** 2).sum(1)).mean())
        models.append(w - step)
    start = problem(float(loss(models[0][0])), variance, growth)
    bound = theory.staleness_rate_bound(rates=rates, c=c, maximum=maximum, objective=start, batch_size=batch_size, k=k)
    assert sum(squares) / sum(rates) <= bound
    assert min(rates) < 0.9 * maximum  # the rule acted


def test_without_staleness_it_is_the_bound_of_the_server_kinds():
    options = {"objective": problem(2.0, variance=3.0), "batch_size": 2, "k": 4}
    constant = theory.gradient_bound("k-async", updates=50, step_size=0.1, gamma=0.0, **options)
    found = theory.staleness_rate_bound(rates=[0.1] * 50, c=1e-12, maximum=0.1, **options)
    assert found == pytest.approx(float(constant), rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rates": []}, "rates must hold at least one positive rate"),
        ({"rates": [0.0, 0.0]}, "rates must hold at least one positive rate"),
        ({"rates": [0.1, -0.1]}, "rates=-0.1 must not be negative"),
        ({"rates": [0.1, 0.3]}, "rates=0.3 must not be above maximum=0.2"),
        ({"c": 0.0}, "c=0 must be positive"),
        (
            {"maximum": 0.3},
            r"maximum=0.3 must not be above 1/\(L \(M_G/\(K m\) \+ 1\)\) = 0.25, the limit of the theorem",
        ),
        ({"k": 0}, "k=0 must be a whole number"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number"),
    ],
)
def test_arguments_out_of_range_explain_themselves(arguments: dict, message: str):
    given = {"rates": [0.1], "c": 0.1, "maximum": 0.2, "objective": problem(1.0), "batch_size": 1, **arguments}
    with pytest.raises(ValueError, match=message):
        theory.staleness_rate_bound(**given)
