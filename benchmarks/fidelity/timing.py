"""The time of a step of a run, real or simulated: one definition for both."""

from __future__ import annotations

import statistics

import numpy as np

import tacit
from benchmarks.fidelity.cells import Method
from tacit.record.trace import COMPUTE, NOTE


def window_of(run: tacit.Run, method: Method) -> dict[int, tuple[float, float]]:
    """Return from when to when each rank is timed: from the start of a step to the start of another, whole periods later.

    The first steps that ``method`` skips do not count, and the last step ends the window when it starts. For server
    strategies it is the time from 0 to the last update.
    """
    if method.has_server:
        (times_s,) = run.trace.unordered(("time_s",), NOTE, "update")
        return {rank: (0.0, float(times_s.max())) for rank in range(run.workers)}
    ranks, steps, starts_s = run.trace.unordered(("rank", "step", "start_s"), COMPUTE)
    found = {}
    for rank in range(run.workers):
        own = (ranks == rank) & np.isin(steps, (method.skipped + 1, run.steps))
        begin_s, end_s = starts_s[own][np.argsort(steps[own])].tolist()
        found[rank] = (begin_s, end_s)
    return found


def counted(run: tacit.Run, method: Method) -> int:
    """Return the steps in the window, or for server strategies the updates."""
    return (
        len(run.trace.unordered(("value",), NOTE, "update")[0]) if method.has_server else run.steps - 1 - method.skipped
    )


def step_s(run: tacit.Run, method: Method) -> float:
    """Return the seconds of a step, the mean over ranks; for server strategies the seconds of an update."""
    lengths_s = [end_s - begin_s for begin_s, end_s in window_of(run, method).values()]
    return statistics.fmean(lengths_s) / counted(run, method)
