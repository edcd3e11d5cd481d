"""Real-time priority for the processes of a benchmark. Needs the standard library alone: every environment runs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PRIORITY: Final = 20


def set_priority(priority: int, thread: int = 0) -> None:
    os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(priority))


def asked_priority(rank: int | None = None) -> str:
    """Ask for real-time priority for all threads, those to come included, and return what the process got.

    rank: pins the threads to the core of this rank. The kernel does not spread threads of one real-time priority over
    the cores: two ranks may share one for long.
    """
    cores = sorted(os.sched_getaffinity(0))
    try:
        for thread in Path("/proc/self/task").iterdir():
            set_priority(PRIORITY, int(thread.name))
            if rank is not None:
                os.sched_setaffinity(int(thread.name), {cores[rank % len(cores)]})
    except OSError as error:
        return f"usual ({error.strerror})"
    return f"SCHED_RR {PRIORITY}"
