"""Setting of the C library that keeps freed memory for the next blocks.

glibc returns freed blocks of some megabytes to the kernel, which then maps and clears every page of the next block.
That is a good part of the cost of encryption, which copies every message several times, and of the simulator's calls,
which allocate gradients of all workers. Steps of a convolutional model took 3.8 ms, or 5.3 ms with 900 page faults,
depending on where the heap ended. So glibc is asked to keep the blocks, in real runs too.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 256 * 2**20
"""Freed memory at the end of a heap that is kept: as much as the window for large messages of an endpoint."""
_BLOCK_BYTES: Final = 32 * 2**20
"""Blocks up to this size are taken from a heap; the largest value that glibc allows."""
_SETTINGS: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


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
