"""Passes over memory of error feedback, in pieces that pass all operations while they are in a core's cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.compression.kernels.backend import PIECE, spans
from tacit.core.host_memory import copied, scratch


def accumulate(error: Tensor, vector: Tensor, factor: float, decay: float, dtype: torch.dtype) -> Tensor:
    """Set e ← β e + (factor · v) for the ``error`` e and the ``decay`` β, and return e, rounded to ``dtype``.

    The product is rounded to the dtype of ``vector``.
    """
    if not error.is_cpu:
        error.mul_(decay).add_(vector * factor)
        return copied(error, dtype)
    rounded = scratch(error.numel(), dtype, error.device)
    product, step = torch.empty(PIECE, dtype=vector.dtype), torch.empty(PIECE, dtype=error.dtype)
    for begin, end in spans(error):
        size, here = end - begin, error[begin:end]
        torch.mul(vector[begin:end], factor, out=product[:size])
        if decay != 1.0:
            here.mul_(decay)
        rounded[begin:end].copy_(here.add_(step[:size].copy_(product[:size])))
    return rounded


def divided(total: Tensor, divisors: Sequence[float], dtype: torch.dtype, added: Tensor | None = None) -> Tensor:
    """Return ``total``, to which ``added`` is added first, divided by each of ``divisors`` in turn, in ``dtype``."""
    quotient = scratch(total.numel(), dtype, total.device)
    pieces = spans(total) if total.is_cpu else [(0, total.numel())]
    room = torch.empty(
        min(PIECE, total.numel()) if total.is_cpu else total.numel(), dtype=total.dtype, device=total.device
    )
    for begin, end in pieces:
        piece, part = total[begin:end], room[: end - begin]
        if added is not None:
            piece.add_(added[begin:end])
        torch.div(piece, divisors[0], out=part)
        for divisor in divisors[1:]:
            part.div_(divisor)
        quotient[begin:end].copy_(part)
    return quotient
