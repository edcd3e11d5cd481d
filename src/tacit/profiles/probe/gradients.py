"""Gradient noise scale and heterogeneity from a few gradients of each rank at one model.

With k gradients g_1 … g_k of batches of B samples on each of n ranks, all at the same parameters:

    A_i = Σ_{a≠b} g_ia·g_ib / k(k−1)          estimates |G_i|², the squared gradient of rank i's data
    N_i = Σ_a |g_ia − ḡ_i|² / (k−1)           estimates tr(Σ_i)/B, the noise of one batch
    C_i = ḡ_i·(mean of the other ranks' ḡ_j)  estimates G_i·(mean of G_j, j ≠ i)

The simple noise scale is B·N/|G|² (McCandlish et al., arXiv 1812.06162), the heterogeneity √(mean |G_i − G|²)/|G|. Each
rank contributes a few numbers; one all-reduce gives all ranks the mean gradient.

The heterogeneity comes from the gap Δ = mean of A_i − C_i. Two things make it larger than 0 for shuffled data:

- Noise of the estimate. If all G_i are equal, the terms of first order in the noise cancel, and with the covariance S
  of a batch's noise the variance of Δ is tr(S²)·(2/(n k (k−1)) + 2/(n (n−1) k²)). The products of a gradient with the
  mean of those before it, q_a = g_a·(g_1 + … + g_{a−1})/(a−1), have variance tr(S²)/(a−1) and more: they give tr(S²).
- Shards are finite. Shuffled shards of m samples differ from each other: Δ = tr(Σ)/m. So B·N/Δ is the number of samples
  of shuffled shards that would differ as much. Shards of a small data set have no more samples than this even if they
  are shuffled, and late in a run the difference exceeds the mean gradient, which is small then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import torch
from torch import Tensor

_CLEARLY: Final = 3.0
"""Standard errors from which a difference counts as measured."""
_SHUFFLED_BATCHES: Final = 6.0
"""Differences of shuffled shards with at least so many batches are no sign of data that are not shuffled.

Digits: shuffled shards of 11 and 22 batches looked like 9 batches or more, those by Dirichlet(0.5) like 4 or fewer.
"""


@dataclass
class GradientSum:
    """The sum of the gradients of one rank, of their squared norms, and of (a−1)·q_a² of the module's docstring."""

    count: int = 0
    squared: float = 0.0
    products_squared: float = 0.0
    total: Tensor | None = field(default=None)

    def add(self, gradient: Tensor) -> None:
        """Add the gradient of one batch."""
        if self.total is not None:
            self.products_squared += float(torch.dot(gradient.double(), self.total.double())) ** 2 / self.count
        self.count += 1
        self.squared += float(torch.dot(gradient.double(), gradient.double()))
        self.total = gradient.clone() if self.total is None else self.total.add_(gradient)

    def mean(self) -> Tensor:
        """Return the mean gradient of this rank."""
        assert self.total is not None
        return self.total / self.count

    def products(self, mean_of_all: Tensor | None, size: int) -> Products:
        """Return this rank's products; ``mean_of_all``: the mean gradient of all ranks, None if it is not known."""
        own, k = self.mean().double(), self.count
        own_squared = float(torch.dot(own, own))
        within = (k * own_squared - self.squared / k) / (k - 1)
        noise = (self.squared - k * own_squared) / (k - 1)
        between = None
        if mean_of_all is not None and size > 1:
            between = (size * float(torch.dot(own, mean_of_all.double())) - own_squared) / (size - 1)
        return Products(within, noise, between, k, self.products_squared)


class Products(NamedTuple):
    """What one rank contributes: A, N and C of the module's docstring, k, and the sum of (a−1)·q_a².

    C is None where it is not known.
    """

    within: float
    noise: float
    between: float | None
    batches: int
    products_squared: float


class GradientNoise(NamedTuple):
    """Noise scale in batches of one rank, and heterogeneity; None: not known, or lost in the noise.

    is_measurable: whether the heterogeneity exceeds three standard errors. shard_batches: batches of shuffled shards
    that would differ as much.
    """

    noise_scale_batches: float | None
    heterogeneity: float | None = None
    is_measurable: bool = False
    shard_batches: float = math.inf

    @property
    def is_like_shuffled(self) -> bool:
        """Whether nothing was measured that shuffled data do not show."""
        return not self.is_measurable or self.shard_batches >= _SHUFFLED_BATCHES


def gradient_noise(by_rank: Mapping[int, Products]) -> GradientNoise:
    """Return noise scale and heterogeneity from the products of all ranks."""
    ranks, n = list(by_rank.values()), len(by_rank)
    within, noise = sum(one.within for one in ranks) / n, sum(one.noise for one in ranks) / n
    between = [one.between for one in ranks if one.between is not None]
    if n == 1 or len(between) < n:
        return GradientNoise(noise / within if within > 0 else None)
    squared = (within + (n - 1) * sum(between) / n) / n  # |G|² with the data of all ranks
    if not (squared > 0 and math.isfinite(noise)):
        return GradientNoise(None)
    gap = within - sum(between) / n
    heterogeneity = math.sqrt(max(0.0, (n - 1) / n * gap) / squared)
    is_measurable = gap > _CLEARLY * _gap_error(ranks, within)
    return GradientNoise(noise / squared, heterogeneity, is_measurable, noise / gap if gap > 0 else math.inf)


def _gap_error(ranks: Sequence[Products], within: float) -> float:
    """Return the standard error of the gap if the gradients of all ranks' data are equal."""
    n, k = len(ranks), min(one.batches for one in ranks)
    # Σ (a−1)·(q_a − A)² over ranks and batches; Σ (a−1)·q_a of a rank is A_i·k(k−1)/2.
    pairs = [one.batches * (one.batches - 1) / 2 for one in ranks]
    deviations = sum(
        one.products_squared - number * (2 * within * one.within - within**2)
        for one, number in zip(ranks, pairs, strict=True)
    )
    trace = max(0.0, deviations) / (sum(one.batches - 1 for one in ranks) - 1)  # of S²
    return math.sqrt(trace * (2 / (n * k * (k - 1)) + 2 / (n * (n - 1) * k * k)))
