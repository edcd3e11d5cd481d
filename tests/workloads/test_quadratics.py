"""The quadratic is what its formula says: curvature, optimum, noise, heterogeneity."""

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad

from tacit import workloads
from tacit.core.randomness import Streams


def gradient(problem: workloads.Problem, x: torch.Tensor, rank: int) -> torch.Tensor:
    batch = problem.collate([rank], [problem.samplers[rank].take(1)[0]])
    layout = problem.layout
    return grad(lambda flat: functional_call(problem.module, layout.split(flat), tuple(part[0] for part in batch)))(x)


def test_curvature_lies_between_one_over_condition_and_one() -> None:
    problem = workloads.quadratic(dimension=7, condition=20.0).open(2, Streams(0))
    assert problem.smoothness == 1.0
    assert problem.strong_convexity == pytest.approx(1 / 20)
    ratios = problem.module.eigenvalues[1:] / problem.module.eigenvalues[:-1]
    assert torch.allclose(ratios, ratios[0].expand(6))


def test_one_dimension_has_curvature_one() -> None:
    problem = workloads.quadratic(dimension=1).open(1, Streams(0))
    assert problem.smoothness == problem.strong_convexity == 1.0


def test_the_mean_gradient_vanishes_at_the_optimum_and_no_workers_does() -> None:
    problem = workloads.quadratic(dimension=10, noise=0.0, heterogeneity=2.0).open(5, Streams(3))
    gradients = torch.stack([gradient(problem, problem.optimum, rank) for rank in range(5)])
    assert torch.allclose(gradients.mean(0), torch.zeros(10, dtype=torch.float64), atol=1e-14)
    assert bool((gradients.norm(dim=1) > 0.1).all())


def test_evaluation_is_the_exact_mean_of_the_workers_losses() -> None:
    problem = workloads.quadratic(dimension=10, noise=0.0, heterogeneity=2.0).open(5, Streams(3))
    x = torch.randn(10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layout = problem.layout
    losses = [functional_call(problem.module, layout.split(x), (torch.zeros(10), center)) for center in problem.centers]
    mean_gradient = torch.stack([gradient(problem, x, rank) for rank in range(5)]).mean(0)
    measured = problem.evaluate(x)
    assert measured.loss == pytest.approx(float(torch.stack(losses).mean()))
    assert measured.gradient_norm_squared == pytest.approx(float(mean_gradient.square().sum()))
    assert measured.metric is None
    assert problem.evaluate(problem.optimum).loss == problem.optimal_loss > 0


def test_without_heterogeneity_the_optimal_loss_is_zero() -> None:
    assert workloads.quadratic().open(3, Streams(0)).optimal_loss == 0.0


def test_noise_has_mean_zero_and_variance_noise_squared_times_dimension() -> None:
    problem = workloads.quadratic(dimension=50, noise=0.3).open(1, Streams(0))
    draws = np.stack([problem.samplers[0].take(1)[0] for _ in range(4000)])
    assert float((draws**2).sum(1).mean()) == pytest.approx(0.3**2 * 50, rel=0.02)
    assert abs(float(draws.mean())) < 0.003
    assert len(np.unique(draws, axis=0)) == 4000


def test_noise_adds_to_the_gradient() -> None:
    problem, same = (workloads.quadratic(dimension=5, noise=0.3).open(1, Streams(0)) for _ in range(2))
    x = torch.ones(5, dtype=torch.float64)
    noise = torch.from_numpy(same.samplers[0].take(1)[0])
    assert torch.allclose(gradient(problem, x, 0), problem.module.eigenvalues * x + noise)


def test_the_start_is_drawn_from_the_seed_and_no_worker_shares_its_noise() -> None:
    first, again, other = (workloads.quadratic().open(2, Streams(seed)) for seed in (0, 0, 1))
    assert torch.equal(first.module.x, again.module.x)
    assert not torch.equal(first.module.x, other.module.x)
    assert not np.array_equal(first.samplers[0].take(1)[0], first.samplers[1].take(1)[0])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"dimension": 0}, "dimension=0 must be at least 1"),
        ({"condition": 0.5}, "condition=0.5 must be at least 1"),
        ({"noise": -1.0}, "noise=-1.0 must be at least 0"),
        ({"heterogeneity": float("nan")}, "heterogeneity=nan must be at least 0"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        workloads.quadratic(**arguments)  # type: ignore[arg-type]
