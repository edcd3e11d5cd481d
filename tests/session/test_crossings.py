"""One gradient through ``attach`` and ``AllReduce`` crosses the packages of tacit at most 12 times."""

from __future__ import annotations

from tests.runtime.processes import together
from tools import trace_crossings


def crossings() -> tuple[int, list[str]]:
    """Return the rank and the functions that one step calls in other packages."""
    calls = trace_crossings.Calls()
    rank = trace_crossings.record_step(trace_crossings.tacit.AllReduce(), calls)
    return rank, [callee for _, callee in calls.crossings]


def test_two_workers_cross_packages_at_most_twelve_times_in_a_step() -> None:
    for rank, (named, called) in enumerate(together(2, crossings)):
        assert named == rank
        assert len(called) <= 12, called
        assert "runtime/network.py:ProcessNetwork.all_reduce_mean" in called  # the trace is not empty
