"""Exact selection of the k largest magnitudes, and the EF21 step around it.

The order is that of the bits of |x| read as an integer, which is the order of the magnitudes, with −0 = 0 < … < ∞ < NaN; ties go to the lower
position. So the result is a function of the input, on every device: a sample of 2¹⁶ numbers gives a threshold that all of the k largest are
expected to pass; those that pass are set aside in order (one pass over memory); among these few the k-th largest is found exactly. Where the
sample misled (fewer than k passed, or too many: many equal numbers, say) the exact search runs over the whole vector instead.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tacit.compression.fused.backend import PIECE, on_device_of, require_flat, spans, uses_triton

SAMPLE: Final = 2**16
WORTH_SAMPLING: Final = 2**20
"""A shorter vector is searched whole."""
GOLDEN: Final = 0x9E3779B1
"""2³² over the golden ratio: multiples of it modulo 2³² are spread evenly and follow no stride of the data."""

_INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def select_largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the positions (int64, ascending) and values of the ``k`` numbers of ``x`` largest in magnitude.

    A NaN or an infinity counts as larger than any number, so it is among the values if there is one and k ≥ 1: look there.
    """
    return _select(x, None, k)


def ef21_select(gradient: Tensor, estimate: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Do EF21's c = TopK(gradient − estimate), estimate += c in place, and return c's positions (int64, ascending) and values.

    If a value is not finite the estimate is left as it was: nothing of it enters the memory, and the caller sees it among the values.
    """
    require_flat(estimate, "estimate")
    if (estimate.shape, estimate.dtype, estimate.device) != (gradient.shape, gradient.dtype, gradient.device):
        raise ValueError(
            f"estimate is {estimate.dtype} {tuple(estimate.shape)} on {estimate.device}, the gradient {gradient.dtype} "
            f"{tuple(gradient.shape)} on {gradient.device}; they must agree."
        )
    return _select(gradient, estimate, k)


def _select(x: Tensor, estimate: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    require_flat(x, "x" if estimate is None else "gradient")
    if not 0 <= k <= x.numel():
        raise ValueError(f"k={k} must be between 0 and the number of coordinates, {x.numel()}.")
    if k and uses_triton(x):
        from tacit.compression.fused import triton_selection

        with on_device_of(x):
            return triton_selection.select(x, estimate, k, sample_rank(x.numel(), k))
    return select_reference(x, estimate, k)


def sample_rank(n: int, k: int) -> int:
    """Return how far down the sorted sample to put the threshold: six standard deviations below where the k-th is expected; 0: do not sample."""
    if n < WORTH_SAMPLING or 10 * k > n:
        return 0
    expected = SAMPLE * k / n
    return int(expected + 6 * math.sqrt(expected) + 16)


def capacity(n: int, k: int) -> int:
    """Return how many numbers may pass the sample's threshold before a search of the whole vector is the better way."""
    return 2 * k + n // 64


def select_reference(x: Tensor, estimate: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Do what the kernels do, in torch."""
    rank = sample_rank(x.numel(), k) if k and x.is_cpu else 0
    candidates = _candidates(x, estimate, k, rank) if rank else None
    if candidates is None:
        entries = x if estimate is None else x - estimate
        positions = _largest(_keys(entries), k)
        values = entries[positions]
    else:
        entries = x[candidates] if estimate is None else x[candidates] - estimate[candidates]
        kept = _largest(_keys(entries), k)
        positions, values = candidates[kept], entries[kept]
    if estimate is not None and bool(values.isfinite().all()):
        estimate[positions] += values
    return positions, values


def _keys(x: Tensor) -> Tensor:
    """Return integers in the order of the magnitudes."""
    return x.abs().view(_INTEGERS[x.element_size()])


def _largest(keys: Tensor, k: int) -> Tensor:
    """Return the ascending positions of the ``k`` largest ``keys``, ties to the lower position."""
    if k == 0 or k == keys.numel():
        return torch.arange(k, device=keys.device)
    last = torch.topk(keys, k, sorted=False).values.min()
    is_chosen = keys > last
    ties = (keys == last).nonzero().view(-1)
    is_chosen[ties[: k - int(is_chosen.sum())]] = True
    return is_chosen.nonzero().view(-1)


def _candidates(x: Tensor, estimate: Tensor | None, k: int, rank: int) -> Tensor | None:
    """Return ascending positions among which the ``k`` largest are, few enough to be worth it; else None."""
    n = x.numel()
    places = ((torch.arange(SAMPLE) * GOLDEN) & 0xFFFFFFFF) * n >> 32
    sample = x[places] if estimate is None else x[places] - estimate[places]
    threshold = torch.topk(_keys(sample), rank, sorted=False).values.min()
    found, total, most = [], 0, capacity(n, k)
    scratch, mask = torch.empty(PIECE, dtype=x.dtype), torch.empty(PIECE, dtype=torch.bool)
    keys = scratch.view(threshold.dtype)
    for begin, end in spans(x):
        size = end - begin
        if estimate is None:
            torch.abs(x[begin:end], out=scratch[:size])
        else:
            torch.sub(x[begin:end], estimate[begin:end], out=scratch[:size]).abs_()
        torch.ge(keys[:size], threshold, out=mask[:size])
        passed = np.flatnonzero(mask[:size].numpy())  # four times as fast as torch's
        found.append(passed + begin)
        total += len(passed)
        if total > most:
            return None
    return torch.from_numpy(np.concatenate(found)) if total >= k else None
