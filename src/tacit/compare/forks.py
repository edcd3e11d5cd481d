"""Whether this process may be forked: a fork copies locks, but not the threads that would release them."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Final

import torch

_THREADS: Final = Path("/proc/self/task")


def is_forkable() -> bool:
    """Return whether the only native threads besides this one belong to OpenBLAS, which ends them before a fork.

    Threads of torch, of a progress display or of a notebook make it False, and so does CUDA.
    """
    has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if sys.platform != "linux" or threading.active_count() > 1 or has_cuda:
        return False
    from threadpoolctl import threadpool_info  # loaded only where several processes are wanted

    pools: list[int] = [pool["num_threads"] for pool in threadpool_info() if pool["internal_api"] == "openblas"]
    try:
        return len(list(_THREADS.iterdir())) <= 1 + sum(pools) - len(pools)
    except OSError:
        return False
