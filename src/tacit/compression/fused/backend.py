"""Where Triton's kernels run, and in which pieces torch works where they do not."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Final

import torch
from torch import Tensor

PIECE: Final = 2**16
"""Numbers in a piece on the CPU: with its scratch it fits into a core's second-level cache."""
MOST: Final = 2**30
"""Longest vector for the kernels, which count in 32 bits; a longer one takes the torch path."""


def uses_triton(x: Tensor) -> bool:
    """Return whether the kernels take ``x``: float32 on a GPU with Triton installed, or anywhere under TRITON_INTERPRET=1."""
    is_reachable = x.is_cuda or (x.is_cpu and os.environ.get("TRITON_INTERPRET") == "1")
    return is_reachable and x.dtype == torch.float32 and 0 < x.numel() <= MOST and _has_triton()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def on_device_of(x: Tensor) -> AbstractContextManager[None]:
    """Make the GPU of ``x`` the current one meanwhile: that is where kernels start."""
    context: AbstractContextManager[None] = torch.cuda.device_of(x)  # type: ignore[no-untyped-call]
    return context


def require_flat(x: Tensor, name: str) -> None:
    """Raise unless ``x`` is a flat, contiguous vector of floating-point numbers."""
    if x.dim() != 1 or not x.is_contiguous() or not x.is_floating_point():
        raise ValueError(
            f"{name} is {x.dtype} of shape {tuple(x.shape)}, strides {x.stride()}, and must be a flat contiguous "
            f"vector of floating-point numbers; pass {name}.contiguous().view(-1)."
        )


def spans(x: Tensor, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the pieces in which to walk ``x``, each but the last a multiple of ``multiple`` long."""
    n = x.numel()
    piece = max(1, PIECE // multiple) * multiple if x.is_cpu else max(1, n)
    for begin in range(0, n, piece):
        yield begin, min(n, begin + piece)
