"""The magnitudes of a vector's numbers; numbers that are not finite raise ``ValueError``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tacit.compression.compressor import report_not_finite, wide
from tacit.compression.kernels.backend import spans


def peak(x: Tensor) -> float:
    """Return the largest magnitude."""
    if not x.numel():
        return 0.0
    low, high = torch.stack(torch.aminmax(x)).tolist()
    if not (math.isfinite(low) and math.isfinite(high)):
        report_not_finite(x)
    return float(max(-low, high))


def mean_magnitude(x: Tensor) -> float:
    """Return the mean of |x|, summed in pieces so that the rounding error does not grow with the length."""
    if x.is_cpu:
        total = sum(float(x[begin:end].abs().sum(dtype=wide(x.dtype))) for begin, end in spans(x))
    else:  # one pass and a tree of sums on a GPU; ten passes on the CPU
        total = float(torch.linalg.vector_norm(x, 1, dtype=wide(x.dtype)))
    if not math.isfinite(total):
        report_not_finite(x)
        total = float(x.to(torch.float64).abs().mean()) * x.numel()
    return total / max(1, x.numel())
