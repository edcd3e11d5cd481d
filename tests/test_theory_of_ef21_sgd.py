"""EF21 with stochastic gradients: runs stay below its bounds, and the floor of its noise is of the right order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as draw

from tacit import theory

WORKERS, DIMENSION = 4, 8


class Quadratics:
    """f_i(x) = Σ_j a_ij (x_j − b_ij)²/2 of four ranks, and the constants of their mean."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.a = random.uniform(0.2, 2.0, (WORKERS, DIMENSION))
        self.b = random.standard_normal((WORKERS, DIMENSION))
        self.smoothness = float(self.a.mean(0).max())
        self.mean_smoothness = float(np.sqrt((self.a.max(1) ** 2).mean()))
        optimum = (self.a * self.b).mean(0) / self.a.mean(0)
        self.least = float(self.loss(optimum[None])[0])

    def gradients(self, x: np.ndarray) -> np.ndarray:
        return self.a * (x[:, None] - self.b)

    def loss(self, x: np.ndarray) -> np.ndarray:
        return (self.a * (x[:, None] - self.b) ** 2).sum(2).mean(1) / 2


def top_k(x: np.ndarray, k: int) -> np.ndarray:
    kept = np.argsort(-np.abs(x), axis=-1)[..., :k]
    out = np.zeros_like(x)
    np.put_along_axis(out, kept, np.take_along_axis(x, kept, -1), -1)
    return out


@pytest.mark.parametrize(("k", "batch_size"), [(1, 1), (1, 16), (3, 4), (8, 4)])
def test_no_run_violates_the_theorem(k: int, batch_size: int):
    """Means over 300 runs: the distortion's recursion at every step, and the mean of ‖∇f‖² at every T."""
    problem, variance, runs, random = Quadratics(k), 2.0, 300, np.random.default_rng(1)
    constants = {"contraction": k / DIMENSION, "variance": variance, "batch_size": batch_size}
    rate = theory.ef21_sgd_step_size(
        smoothness=problem.smoothness, mean_smoothness=problem.mean_smoothness, contraction=k / DIMENSION
    )
    x, estimates = np.full((runs, DIMENSION), 1.5), np.zeros((runs, WORKERS, DIMENSION))
    gap, squares, before = float(problem.loss(x)[0]) - problem.least, [], None
    for step in range(200):
        exact = problem.gradients(x)
        noisy = exact + np.sqrt(variance / (batch_size * DIMENSION)) * random.standard_normal(exact.shape)
        estimates += top_k(noisy - estimates, k)
        distortion = float(((estimates - exact) ** 2).sum(2).mean())
        if before is None:
            first = distortion
        else:
            bound = theory.ef21_sgd_distortion_bound(
                distortion=before[0], move_squared=before[1], mean_smoothness=problem.mean_smoothness, **constants
            )
            assert distortion <= bound
        squares.append(float((exact.mean(1) ** 2).sum(1).mean()))
        bound = theory.ef21_sgd_gradient_bound(gap=gap, step_size=rate, steps=step + 1, distortion=first, **constants)
        assert np.mean(squares) <= bound
        move = -rate * estimates.mean(1)
        before, x = (distortion, float((move**2).sum(1).mean())), x + move
    assert squares[-1] < 0.7 * squares[0]  # it went somewhere


@pytest.mark.parametrize("contraction", [0.5, 0.1, 0.02])
def test_the_floor_grows_as_the_inverse_square_of_the_contraction(contraction: float):
    """The worst compressor, C(a) = (1 ± √(1−α)) a with the sign of the noise, comes to a quarter of N/θ and more: σ²/α
    would be too little.
    """
    random, error = np.random.default_rng(0), np.zeros(2000)
    for _ in range(round(30 / contraction)):
        noise = random.choice([-1.0, 1.0], error.size)
        error = noise + np.sign(noise) * math.sqrt(1 - contraction) * np.abs(noise - error)
    noise = theory.ef21_sgd_noise(variance=1.0, batch_size=1, contraction=contraction)
    floor = noise / theory.ef21_theta(contraction / 2)
    assert floor / 4 < float((error**2).mean()) <= floor
    assert floor <= 8 / contraction**2


@given(draw.floats(1e-3, 1.0), draw.floats(1e-3, 10.0), draw.floats(1e-4, 1.0))
def test_the_batch_size_is_the_smallest_that_reaches_the_target(contraction: float, variance: float, target: float):
    batch_size = theory.ef21_sgd_batch_size(target=target, variance=variance, contraction=contraction)
    assert batch_size <= max(1, math.ceil(16 * variance / (contraction**2 * target)))

    def floor(size: int) -> float:
        return theory.ef21_sgd_gradient_bound(
            gap=0.0, step_size=1.0, steps=1, contraction=contraction, variance=variance, batch_size=size
        )

    assert floor(batch_size) <= target / 2 * (1 + 1e-9)
    assert batch_size == 1 or floor(batch_size - 1) > target / 2 * (1 - 1e-9)


def test_constants_by_hand():
    """α = 1/2: θ and β of 1/4, N = 3.75 σ²/B."""
    theta = 1 - math.sqrt(0.75)
    assert theory.ef21_sgd_noise(variance=2.0, batch_size=3, contraction=0.5) == pytest.approx(3.75 * 2 / 3)
    assert theory.ef21_sgd_step_size(smoothness=1.0, mean_smoothness=2.0, contraction=0.5) == pytest.approx(
        1 / (1 + 2 * math.sqrt(0.75) / theta)
    )
    bound = theory.ef21_sgd_gradient_bound(
        gap=3.0, step_size=0.1, steps=50, contraction=0.5, variance=2.0, batch_size=3, distortion=0.7
    )
    assert bound == pytest.approx(2 * 3 / 5 + 0.7 / (theta * 50) + 2.5 / theta)


def test_without_noise_it_is_ef21_of_half_the_contraction():
    options = {"gap": 3.0, "step_size": 0.1, "steps": 50, "distortion": 0.7}
    assert theory.ef21_sgd_gradient_bound(
        contraction=0.2, variance=0.0, batch_size=1, **options
    ) == theory.ef21_gradient_bound(contraction=0.1, **options)
    assert theory.ef21_sgd_batch_size(target=0.1, variance=0.0, contraction=0.2) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"contraction": 0.0}, "contraction=0 must be above 0 and at most 1"),
        ({"contraction": 1.5}, "contraction=1.5 must be above 0 and at most 1"),
        ({"variance": -1.0}, "variance=-1 must be finite and not negative"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number"),
        ({"steps": 0}, "steps=0 must be a whole number"),
        ({"gap": -1.0}, "gap=-1 must not be negative"),
    ],
)
def test_arguments_out_of_range_explain_themselves(arguments: dict, message: str):
    given = {"gap": 1.0, "step_size": 0.1, "steps": 5, "contraction": 0.5, "variance": 1.0, "batch_size": 1}
    with pytest.raises(ValueError, match=message):
        theory.ef21_sgd_gradient_bound(**given | arguments)


def test_other_arguments_explain_themselves_too():
    with pytest.raises(ValueError, match="contraction=2 must be above 0 and at most 1"):
        theory.ef21_sgd_step_size(smoothness=1.0, mean_smoothness=1.0, contraction=2.0)
    with pytest.raises(ValueError, match="target=0 must be positive"):
        theory.ef21_sgd_batch_size(target=0.0, variance=1.0, contraction=0.5)
    with pytest.raises(ValueError, match="target=.* is too small for variance=1; raise it"):
        theory.ef21_sgd_batch_size(target=1e-320, variance=1.0, contraction=0.5)
