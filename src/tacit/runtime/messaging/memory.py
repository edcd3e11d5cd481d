"""What the C library does with the memory of messages that have gone.

CURVE copies every message several times on its way. glibc gives freed blocks of some megabytes back to the kernel and
has every page of the next ones mapped anew, which is a good part of what encryption costs: it is asked to keep them.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 256 * 2**20
"""Freed memory at the end of a heap that is kept; as much as may be under way to peers."""
_BLOCK_BYTES: Final = 32 * 2**20
"""Blocks up to this size are taken from a heap; glibc allows no more."""
_SETTINGS: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_memory() -> bool:
    """Ask the C library to keep freed memory, and return whether it will.

    The user's own settings of it stand; others than glibc are left alone.
    """
    if any(name in os.environ for name in _SETTINGS):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES))
