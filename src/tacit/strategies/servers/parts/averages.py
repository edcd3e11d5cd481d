"""The mean of an update's gradients at their learning rates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def mean_gradient(
    gradients: Sequence[Tensor], weights: Sequence[float], rates: Sequence[float]
) -> tuple[Tensor, float]:
    """Return Σ w η g / Σ w η̄ and η̄, the weighted mean rate; their product is Σ w η g / Σ w. In the order given."""
    total = sum(weights)
    mean_rate = sum(w * r for w, r in zip(weights, rates, strict=True)) / total
    mean = torch.zeros_like(gradients[0])
    for gradient, weight, rate in zip(gradients, weights, rates, strict=True):
        mean.add_(gradient, alpha=weight * (rate / mean_rate if mean_rate else 1.0))
    return mean.div_(total), mean_rate
