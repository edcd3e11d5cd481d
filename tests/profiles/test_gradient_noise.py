"""Gradient noise scale and heterogeneity, against values that are known."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from tacit import workloads
from tacit.core.randomness import Streams
from tacit.profiles.probe.gradients import GradientNoise, GradientSum, Products, gradient_noise


def products_of(gradients: list[list[torch.Tensor]], *, with_others: bool = True) -> dict[int, Products]:
    """Return what ranks with these gradients contribute."""
    sums = []
    for of_rank in gradients:
        sums.append(GradientSum())
        for gradient in of_rank:
            sums[-1].add(gradient)
    mean = torch.stack([one.mean() for one in sums]).mean(0) if with_others else None
    return {rank: one.products(mean, len(sums)) for rank, one in enumerate(sums)}


def test_products_are_those_of_the_definition() -> None:
    first, second = [torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0])], [torch.tensor([1.0, 0.0])] * 2
    products = products_of([first, second])
    assert products[0] == pytest.approx((4.0, 2.0, 2.0, 2, 16.0))  # (3,1)·(1,1), |(3,1) − (1,1)|²/2, (2,1)·(1,0)
    assert products[1] == pytest.approx((1.0, 0.0, 2.0, 2, 1.0))
    squared = (2.5 + 2.0) / 2  # |G|² = (mean of A + (n − 1) · mean of C) / n
    found = gradient_noise(products)
    assert found.noise_scale_batches == pytest.approx(1.0 / squared)
    assert found.heterogeneity == pytest.approx((0.5 * (2.5 - 2.0) / squared) ** 0.5)


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_estimates_meet_the_truth(spread: float) -> None:
    """Eight ranks with eight batches each: noise of 20 times the gradient, and shards that differ by ``spread``."""
    torch.manual_seed(0)
    dimension, ranks, scale = 10_000, 8, 20.0
    truth = torch.randn(dimension) / dimension**0.5
    shards = torch.randn(ranks, dimension) / dimension**0.5
    shards = spread * (shards - shards.mean(0))
    truth = truth / truth.norm()
    noise = (scale / dimension) ** 0.5
    gradients = [[truth + shard + noise * torch.randn(dimension) for _ in range(8)] for shard in shards]
    found = gradient_noise(products_of(gradients))
    assert found.noise_scale_batches == pytest.approx(scale, rel=0.1)
    assert found.heterogeneity is not None
    assert found.heterogeneity**2 == pytest.approx(spread**2 * (1 - 1 / ranks), abs=0.05)
    assert found.is_measurable == (spread > 0)
    assert found.is_like_shuffled, "even the spread is that of shuffled shards of 80 batches"
    assert spread == 0 or found.shard_batches == pytest.approx(scale / (spread**2 * ranks / (ranks - 1)), rel=0.3)


@pytest.mark.parametrize(("split", "workers"), [("shuffled", 2), ("shuffled", 4), ("sorted", 2), ("sorted", 4)])
def test_shuffled_digits_are_told_from_sorted_ones(split: str, workers: int) -> None:
    """At the start and after 100 synchronous steps, when the mean gradient is smaller than differences of shards."""
    problem = workloads.digits(split=split).open(workers, Streams(0))
    parameters = list(problem.module.parameters())

    def gradient(rank: int) -> torch.Tensor:
        batch = problem.collate([rank], problem.samplers[rank].take(1))
        problem.module.zero_grad()
        problem.module(*(part[0] for part in batch)).backward()
        return parameters_to_vector([one.grad for one in parameters])

    for _ in range(2):
        found = gradient_noise(products_of([[gradient(rank) for _ in range(8)] for rank in range(workers)]))
        assert found.is_like_shuffled == (split == "shuffled")
        for _ in range(100):
            mean = torch.stack([gradient(rank) for rank in range(workers)]).mean(0)
            vector_to_parameters(parameters_to_vector(parameters).detach() - 0.1 * mean, parameters)


def test_one_rank_has_no_heterogeneity() -> None:
    gradients = [[torch.tensor([2.0, 1.0]), torch.tensor([2.0, -1.0])]]
    assert gradient_noise(products_of(gradients)) == GradientNoise(pytest.approx(2 / 3))
    apart = products_of(gradients * 2, with_others=False)
    assert gradient_noise(apart) == GradientNoise(pytest.approx(2 / 3)), "models were not equal"


def test_a_gradient_that_is_lost_in_its_noise_has_no_scale() -> None:
    opposite = [[torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0])]] * 2
    assert gradient_noise(products_of(opposite)).noise_scale_batches is None
