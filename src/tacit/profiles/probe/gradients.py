"""Gradient noise scale and heterogeneity from a few gradients of each rank at one model.

With k gradients g_1 … g_k of batches of B samples on each of n ranks, all at the same parameters:

    A_i = Σ_{a≠b} g_ia·g_ib / k(k−1)          estimates |G_i|², the squared gradient of rank i's data
    N_i = Σ_a |g_ia − ḡ_i|² / (k−1)           estimates tr(Σ_i)/B, the noise of one batch
    C_i = ḡ_i·(mean of the other ranks' ḡ_j)  estimates G_i·(mean of G_j, j ≠ i)

The simple noise scale is B·N/|G|² (McCandlish et al., arXiv 1812.06162), the heterogeneity √(mean |G_i − G|²)/|G|. Each
rank contributes three numbers; one all-reduce gives all ranks the mean gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass
class GradientSum:
    """The sum of the gradients of one rank, and of their squared norms."""

    count: int = 0
    squared: float = 0.0
    total: Tensor | None = field(default=None)

    def add(self, gradient: Tensor) -> None:
        """Add the gradient of one batch."""
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
        if mean_of_all is None or size == 1:
            return Products(within, noise, None)
        with_all = float(torch.dot(own, mean_of_all.double()))
        return Products(within, noise, (size * with_all - own_squared) / (size - 1))


class Products(NamedTuple):
    """What one rank contributes: A, N and C of the module's docstring; C is None where it is not known."""

    within: float
    noise: float
    between: float | None


class GradientNoise(NamedTuple):
    """Noise scale in batches of one rank, and heterogeneity; None: not known, or lost in the noise."""

    noise_scale_batches: float | None
    heterogeneity: float | None
    is_measurable: bool  # whether the heterogeneity exceeds twice its standard error


def gradient_noise(by_rank: Mapping[int, Products]) -> GradientNoise:
    """Return noise scale and heterogeneity from the products of all ranks."""
    n = len(by_rank)
    within = sum(one.within for one in by_rank.values()) / n
    noise = sum(one.noise for one in by_rank.values()) / n
    between = [one.between for one in by_rank.values() if one.between is not None]
    if n == 1 or len(between) < n:
        return GradientNoise(noise / within if within > 0 else None, None, False)
    squared = (within + (n - 1) * sum(between) / n) / n  # |G|² with the data of all ranks
    if not (squared > 0 and math.isfinite(noise)):
        return GradientNoise(None, None, False)
    gaps = [one.within - one.between for one in by_rank.values() if one.between is not None]
    gap = sum(gaps) / n
    error = math.sqrt(sum((one - gap) ** 2 for one in gaps) / (n - 1) / n)
    heterogeneity = math.sqrt(max(0.0, (n - 1) / n * gap) / squared)
    return GradientNoise(noise / squared, heterogeneity, gap > 2 * error)
