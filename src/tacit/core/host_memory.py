"""Reuse of freed memory: new pages cost more than most work on them.

glibc returns freed blocks of some megabytes to the kernel, which then maps and clears every page of the next block.
That is a good part of the cost of encryption, which copies every message several times, of the simulator's calls, which
allocate gradients of all workers, and of a compressed step. Steps of a convolutional model took 3.8 ms, or 5.3 ms with
900 page faults, depending on where the heap ended. ``keep_memory`` asks glibc to keep the blocks, in real runs too;
``ReusedBuffers`` and ``scratch`` are pools of long tensors, reused once no view of them is left.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Final

import torch
from torch import Tensor

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 256 * 2**20
"""Freed memory at the end of a heap that is kept: as much as the window for large messages of an endpoint."""
_BLOCK_BYTES: Final = 32 * 2**20
"""Blocks up to this size are taken from a heap; the largest value that glibc allows."""
_SETTINGS: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_KEPT: Final = 4
_KEPT_BY_THREAD: Final = 6
_LARGE_BYTES: Final = 2**20
"""Smaller blocks stay with the C library."""


def keep_memory() -> bool:
    """Ask glibc to keep freed memory; return whether it does.

    Settings of the user in the environment take precedence. Other C libraries are not changed.
    """
    if any(name in os.environ for name in _SETTINGS):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES))


class ReusedBuffers:
    """Pool of flat buffers."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._buffers: list[Tensor] = []

    def take(self, numbers: int, dtype: torch.dtype, device: torch.device, *, pinned: bool = False) -> Tensor:
        """Return an unused buffer with undefined content."""
        for buffer in self._buffers:
            is_same_kind = buffer.numel() == numbers and buffer.dtype == dtype and buffer.device == device
            if is_same_kind and _is_free(buffer):
                return buffer[:]
        buffer = torch.empty(numbers, dtype=dtype, device=device, pin_memory=pinned)
        self._buffers = [*self._buffers[-(self._kept - 1) :], buffer]
        return buffer[:]


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.pool = ReusedBuffers(_KEPT_BY_THREAD)


_MINE: Final = _OfThread()


def scratch(numbers: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a flat tensor with undefined content: a large one on the CPU from a pool of this thread."""
    if device.type != "cpu" or numbers * dtype.itemsize < _LARGE_BYTES:
        return torch.empty(numbers, dtype=dtype, device=device)
    return _MINE.pool.take(numbers, dtype, device)


def copied(vector: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of a flat ``vector`` in ``dtype``, in ``scratch`` memory."""
    return scratch(vector.numel(), dtype, vector.device).copy_(vector)


def _is_free(buffer: Tensor) -> bool:
    """Whether only the pool holds the memory: its own tensor, and the handle that this check creates."""
    return torch._C._storage_Use_Count(buffer.untyped_storage()._cdata) <= 2
