"""Traces of runs on real processes whose step times, rounds and work are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tacit.core.collective_bytes import ring_all_reduce_bytes
from tacit.record.run import Run
from tacit.record.trace import Trace

PARAMETERS = 1000


def real_run(
    step_s: Sequence[float],
    *,
    rounds: int = 20,
    steps_per_round: int = 1,
    all_reduce_s: float = 0.5,
    gather_s: float | None = None,
    gather_bytes: int = 400,
    late_s: float = 0.0,
    hosts: Sequence[Sequence[int]] | None = None,
    jitter: float = 0.0,
    seed: int = 0,
    **record: object,
) -> Run:
    """Return a run with rounds: flatten 0.02 s, all-reduce, divide 0.01 s, update 0.05 s. The first steps are slow.

    jitter: relative range of step times. late_s: rank 0 has the result later by this time. gather_s: instead of the all-reduce, encode 0.2 s, an all-gather of this time, decode 0.1 s.
    """
    workers = len(step_s)
    trace, clock, random = Trace(), np.zeros(workers), np.random.default_rng(seed)
    sent = ring_all_reduce_bytes(PARAMETERS + 1, 8, workers)
    for number in range(1, rounds + 1):
        for rank in range(workers):
            for step in range(steps_per_round):
                seconds = step_s[rank] * (10 if number == 1 else 1) * (1 + jitter * random.uniform(-1, 1))
                start = clock[rank]
                trace.compute(rank, (number - 1) * steps_per_round + step + 1, start, start + seconds)
                clock[rank] += seconds
            start = clock[rank]
            work = (
                (("flatten", 0.02, PARAMETERS),)
                if gather_s is None
                else (("flatten", 0.02, PARAMETERS), ("encode TopK", 0.2, PARAMETERS))
            )
            for label, seconds, numbers in work:
                trace.hook(rank, start, start + seconds, label, numbers)
                start, clock[rank] = start + seconds, clock[rank] + seconds
        begun, took = float(clock.max()), all_reduce_s if gather_s is None else gather_s
        for rank in range(workers):
            label = "all-reduce" if gather_s is None else "all-gather"
            if clock[rank] < begun:
                trace.wait(rank, clock[rank], begun, label, number)
            size = sent[rank] if gather_s is None else gather_bytes * (workers - 1)
            end = begun + took + (late_s if rank == 0 else 0.0)
            trace.exchange(rank, begun, end, label, number, size)
            for what, seconds, numbers in (
                ("divide", 0.01, PARAMETERS) if gather_s is None else ("decode TopK", 0.1, PARAMETERS * workers),
                ("update", 0.05, 0),
            ):
                trace.hook(rank, end, end + seconds, what, numbers)
                end += seconds
            clock[rank] = end
    facts = {"world": "processes", "parameters": PARAMETERS, "backend": "gloo", **record}
    if hosts is not None:
        facts["hosts"] = hosts
    return Run("w", "s", workers, rounds * steps_per_round, 0, trace=trace, record=facts)
