"""EF21's theorems: their constants, and that a run never violates them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as draw
from torch import Tensor

import tacit
from tacit import theory
from tacit.compression import TopK
from tacit.compression.feedback import Codec, Feedback

alphas = draw.floats(1e-6, 1.0)


@given(alphas)
def test_constants_are_the_papers(alpha: float):
    theta, beta = theory.ef21_theta(alpha), theory.ef21_beta(alpha)
    assert theta == pytest.approx(1 - math.sqrt(1 - alpha), rel=1e-6)
    assert beta == pytest.approx((1 - alpha) / (1 - math.sqrt(1 - alpha)), rel=1e-6)
    assert math.sqrt(beta / theta) == pytest.approx((1 + math.sqrt(1 - alpha)) / alpha - 1, rel=1e-6, abs=1e-9)
    assert math.sqrt(beta / theta) <= 2 / alpha - 1 + 1e-9


@given(draw.floats(1e-3, 0.999), draw.floats(1e-3, 0.999))
def test_the_young_parameter_is_the_best_one(alpha: float, share: float):
    """θ(s) = 1 − (1−α)(1+s), β(s) = (1−α)(1+1/s): no s > 0 with θ(s) > 0 gives a smaller β/θ."""
    s = share * alpha / (1 - alpha)
    theta, beta = 1 - (1 - alpha) * (1 + s), (1 - alpha) * (1 + 1 / s)
    assert theory.ef21_beta(alpha) / theory.ef21_theta(alpha) <= beta / theta * (1 + 1e-9)


def test_the_step_sizes_of_the_paper():
    """§3.5: mushrooms and a9a, Top-1."""
    mushrooms = {"smoothness": 2.78621, "mean_smoothness": 3.49323, "contraction": 1 / 112}
    assert theory.ef21_step_size(**mushrooms) == pytest.approx(1.2820e-3, rel=1e-4)
    a9a = {"smoothness": 1.77192, "mean_smoothness": 1.77307, "contraction": 1 / 123}
    assert theory.ef21_step_size(**a9a) == pytest.approx(2.2973e-3, rel=1e-4)
    assert theory.ef21_step_size(**a9a, pl=0.1) == pytest.approx(2.2973e-3 / math.sqrt(2), rel=5e-3)
    assert theory.ef21_step_size(smoothness=1, mean_smoothness=1, contraction=1.0) == 1.0  # gradient descent
    assert theory.ef21_step_size(smoothness=1, mean_smoothness=1, contraction=0.01, pl=1.0) == pytest.approx(
        min(1 / (1 + math.sqrt(2) * 198.4987), theory.ef21_theta(0.01) / 2), rel=1e-5
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"contraction": 0.0}, "contraction=0 must be above 0 and at most 1"),
        ({"contraction": 1.5}, "contraction=1.5 must be above 0 and at most 1"),
        ({"smoothness": -1.0}, "smoothness=-1 must be positive"),
        ({"mean_smoothness": 0.5}, "mean_smoothness=0.5 must be at least smoothness=1"),
        ({"pl": 0.0}, "pl=0 must be positive"),
        ({"pl": 2.0}, "pl=2 must not be above smoothness=1"),
    ],
)
def test_arguments_out_of_range_explain_themselves(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        theory.ef21_step_size(**{"smoothness": 1.0, "mean_smoothness": 1.0, "contraction": 0.1, **arguments})


def test_bounds_explain_themselves_too():
    with pytest.raises(ValueError, match="gap=-1 must not be negative"):
        theory.ef21_gradient_bound(gap=-1, step_size=0.1, steps=3, contraction=0.1)
    with pytest.raises(ValueError, match="steps=0 must be a whole number"):
        theory.ef21_gradient_bound(gap=1, step_size=0.1, steps=0, contraction=0.1)
    with pytest.raises(ValueError, match="must be below 1"):
        theory.ef21_pl_rate(step_size=2.0, pl=0.6)


class Problem:
    """Losses of four workers with data of their own, and their constants."""

    def __init__(self, kind: str, seed: int) -> None:
        draws = np.random.default_rng(seed)
        self.kind, self.workers, self.dimension = kind, 4, 8
        scales = draws.uniform(0.5, 2.0, (self.workers, 1, 1))
        self.a = torch.from_numpy(draws.standard_normal((self.workers, 30, self.dimension)) * scales)
        self.y = torch.from_numpy(np.sign(draws.standard_normal((self.workers, 30)) + 0.3))
        grams = self.a.transpose(1, 2) @ self.a / 30
        curvature, extra = (0.25, 0.2) if kind == "logistic" else (1.0, 0.0)
        each = curvature * torch.linalg.eigvalsh(grams)[:, -1] + extra
        self.mean_smoothness = float(each.square().mean().sqrt())
        self.smoothness = curvature * float(torch.linalg.eigvalsh(grams.mean(0))[-1]) + extra
        self.pl = float(torch.linalg.eigvalsh(grams.mean(0))[0])

    def losses(self, x: Tensor) -> Tensor:
        products = self.a @ x
        if self.kind == "logistic":
            penalty = 0.1 * (x.square() / (1 + x.square())).sum()
            return torch.nn.functional.softplus(-self.y * products).mean(1) + penalty
        return 0.5 * (products - self.y).square().mean(1)

    def gradients(self, x: Tensor) -> Tensor:
        return torch.func.jacrev(self.losses)(x)


def follow(problem: Problem, feedback: Feedback, rate: float, steps: int, k: int = 1):
    """Yield x^t, ∇f_i(x^t) and g_i^t of EF21 or EF21+, the estimates after the message at x^t."""
    size, d = problem.workers, problem.dimension
    like, draws = torch.zeros(d, dtype=torch.float64), np.random.default_rng(0)
    states = [feedback.begin(rank, size, like) for rank in range(size)]
    codec = Codec(TopK(k=k), draws, draws, d, like.dtype, like.device, rate=rate)
    x = torch.from_numpy(np.random.default_rng(5).standard_normal(d))
    for _ in range(steps):
        gradients = problem.gradients(x)
        updates = [feedback.encode_update(state, g, codec) for state, g in zip(states, gradients, strict=True)]
        means = [feedback.decode_updates(state, updates, codec) for state in states]
        is_table = "estimates" in states[0].shared
        estimates = (
            states[0].shared["estimates"].clone() if is_table else torch.stack([s.own["estimate"] for s in states])
        )
        yield x, gradients, estimates
        x = x - rate * means[0]


@pytest.mark.slow
@pytest.mark.paper
@pytest.mark.parametrize("feedback", [tacit.EF21(), tacit.EF21(init="full"), tacit.EF21Plus()], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_no_run_violates_the_nonconvex_theorem(feedback: Feedback, seed: int):
    """The distortion's recursion at every step, and the bound on the running mean of ‖∇f‖² at every T; f ≥ 0 is the
    lower bound.
    """
    problem, alpha = Problem("logistic", seed), 1 / 8
    rate = theory.ef21_step_size(
        smoothness=problem.smoothness, mean_smoothness=problem.mean_smoothness, contraction=alpha
    )
    total, before, first = 0.0, None, None
    for t, (x, gradients, estimates) in enumerate(follow(problem, feedback, rate, 250), 1):
        distortion = float((estimates - gradients).square().sum(1).mean())
        if first is None:
            first = (float(problem.losses(x).mean()), distortion)
        else:
            assert before is not None
            moved = float((x - before[0]).square().sum())
            bound = theory.ef21_distortion_bound(
                distortion=before[1], move_squared=moved, mean_smoothness=problem.mean_smoothness, contraction=alpha
            )
            assert distortion <= bound * (1 + 1e-9) + 1e-25
        before = (x, distortion)
        total += float(gradients.mean(0).square().sum())
        bound = theory.ef21_gradient_bound(
            gap=first[0], step_size=rate, steps=t, contraction=alpha, distortion=first[1]
        )
        assert total / t <= bound
    assert float(gradients.mean(0).square().sum()) < 0.3 * total / t  # it went somewhere


@pytest.mark.paper
@pytest.mark.parametrize("seed", range(2))
def test_no_run_violates_the_pl_theorem(seed: int):
    """§3.6(4): Ψ^T ≤ (1 − γμ)^T Ψ⁰ on least squares of full column rank."""
    problem, alpha = Problem("squares", seed), 1 / 8
    constants = {"smoothness": problem.smoothness, "mean_smoothness": problem.mean_smoothness, "contraction": alpha}
    rate = theory.ef21_step_size(**constants, pl=problem.pl)
    optimum = torch.linalg.lstsq(problem.a.reshape(-1, 8), problem.y.reshape(-1, 1)).solution[:, 0]
    least, factor, start = (
        float(problem.losses(optimum).mean()),
        theory.ef21_pl_rate(step_size=rate, pl=problem.pl),
        None,
    )
    for t, (x, gradients, estimates) in enumerate(follow(problem, tacit.EF21(), rate, 500)):
        distortion = float((estimates - gradients).square().sum(1).mean())
        psi = float(problem.losses(x).mean()) - least + rate / theory.ef21_theta(alpha) * distortion
        start = psi if start is None else start
        assert psi <= factor**t * start * (1 + 1e-9) + 1e-14
    assert psi < 0.3 * start
