"""The choice between Triton and torch, and what both implementations share."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Final

import numpy as np
import torch
from torch import Tensor

PIECE: Final = 2**16
"""Numbers in a piece on the CPU; with its scratch memory it fits into a core's second-level cache."""
MOST: Final = 2**30
"""Longest vector for the kernels, which count in 32 bits; longer vectors use torch."""

INTEGERS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtype for the bits of a floating-point number, by its size in bytes."""


def uses_triton(x: Tensor, *dtypes: torch.dtype) -> bool:
    """Return whether kernels accept ``x``: of ``dtypes`` (default float32), on a GPU or under TRITON_INTERPRET=1."""
    is_reachable = x.is_cuda or (x.is_cpu and os.environ.get("TRITON_INTERPRET") == "1")
    return is_reachable and x.dtype in (dtypes or (torch.float32,)) and 0 < x.numel() <= MOST and _has_triton()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def on_device_of(x: Tensor) -> AbstractContextManager[None]:
    """Return a context in which the GPU of ``x`` is the current one: kernels start there."""
    context: AbstractContextManager[None] = torch.cuda.device_of(x)  # type: ignore[no-untyped-call]
    return context


def spans(x: Tensor, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the pieces of ``x``; the length of each but the last is a multiple of ``multiple``."""
    n = x.numel()
    piece = max(1, (PIECE if x.is_cpu else MOST) // multiple) * multiple
    for begin in range(0, n, piece):
        yield begin, min(n, begin + piece)


def keys(x: Tensor) -> Tensor:
    """Return a new tensor of integers in the order of the magnitudes: −0 = 0 < … < ∞ < NaN."""
    integers = INTEGERS[x.element_size()]
    return x.view(integers) & torch.iinfo(integers).max


class Coins:
    """Uniform numbers in (0, 1), 16 bits each: a function of the seed, and of the device where that is not the CPU."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._is_cpu = device.type == "cpu"
        if self._is_cpu:
            self._raw = np.random.SFC64(seed)
        else:
            self._generator = torch.Generator(device).manual_seed(seed)

    def add_to(self, x: Tensor, scratch: Tensor) -> Tensor:
        """Add one of them to each number of ``x`` in place; ``scratch`` has the same length and is overwritten."""
        if self._is_cpu:
            drawn = np.asarray(self._raw.random_raw(-(-x.numel() // 4))).view(np.int16)[: x.numel()]
            scratch.copy_(torch.from_numpy(drawn))
        else:
            scratch.random_(-(2**15), 2**15, generator=self._generator)
        return x.add_(scratch, alpha=2**-16).add_(0.5 + 2**-17)


class PendingNumbers:
    """A few numbers that are copied from a GPU; ``read`` waits only for them."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers, self._arrival = numbers, None
        if numbers.is_cuda:
            with on_device_of(numbers):
                host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
                self._numbers = host.copy_(numbers, non_blocking=True)
                self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._arrival.record()

    def read(self) -> list[float]:
        """Return the numbers."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._numbers.tolist()
