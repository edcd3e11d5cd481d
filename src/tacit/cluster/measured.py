"""A simulated cluster with the step times and the network of a run on real processes, to predict similar runs.

Step times are measured: all that a worker did between two steps, without waits and exchanges, which the simulator
computes. The simulator draws from them, with each worker's mean speed. If the run has all-reduces, the network is set
so that one takes the measured mean time; otherwise it is that of the run's settings.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tacit.cluster.cluster import Cluster
from tacit.cluster.delays import Recorded
from tacit.errors import require
from tacit.record.run import Run
from tacit.record.trace import CANCELLED, COMPUTE, EXCHANGE, WAIT

_MOST_TIMES: Final = 200
"""Number of step times in the cluster: means of as many equal parts of the sorted measured times."""
_SAME_SPEED: Final = 0.02
"""Workers whose mean speeds differ by less than this have equal speeds."""
_DIGITS: Final = 4


def measured_cluster(run: Run) -> Cluster:
    """Return a cluster with the measured step times and network of ``run``, a run on real processes."""
    require(
        run.record.get("world") == "processes",
        f"this run of {run.strategy} was not on real processes, so it has no measured step times; "
        f"give a run that tacit train wrote.",
    )
    by_rank = _step_times_s(run)
    require(
        len(by_rank) == run.workers,
        f"the trace of this run has steps of {len(by_rank)} of {run.workers} workers; give a complete run.",
    )
    everyone = np.concatenate(list(by_rank.values()))
    speed = {rank: float(everyone.mean() / times_s.mean()) for rank, times_s in by_rank.items()}
    alike = np.sort(np.concatenate([times_s * speed[rank] for rank, times_s in by_rank.items()]))
    edges = np.linspace(0, len(alike), min(_MOST_TIMES, len(alike)) + 1)
    parts = np.diff(np.interp(edges, np.arange(len(alike) + 1), np.cumsum([0.0, *alike]))) / np.diff(edges)
    latency_s, bandwidth = _network(run)
    return Cluster(
        workers=run.workers,
        compute=Recorded(times_s=[_short(time_s) for time_s in parts]),
        speed={rank: _short(pace) for rank, pace in speed.items() if abs(pace - 1) > _SAME_SPEED},
        latency_s=latency_s,
        bandwidth_bytes_per_s=bandwidth,
        cancel="step_end",
    )


def _step_times_s(run: Run) -> dict[int, np.ndarray]:
    """Return the step times by rank: all that a worker did between two steps, without waits and exchanges."""
    columns = run.trace.columns()
    found = {}
    for rank in range(run.workers):
        chosen = (columns["rank"] == rank) & np.isin(columns["kind"], (COMPUTE, CANCELLED, WAIT, EXCHANGE))
        times_s, until_s = list[float](), 0.0
        events = zip(*(columns[name][chosen].tolist() for name in ("kind", "start_s", "time_s")), strict=True)
        for kind, start_s, time_s in sorted(events, key=lambda event: event[1:]):
            if kind in (COMPUTE, CANCELLED):
                times_s.append(max(time_s - until_s, time_s - start_s))
            elif times_s and start_s > until_s:
                times_s[-1] += start_s - until_s  # its update, and what precedes the round
            until_s = max(until_s, time_s)
        if times_s:
            found[rank] = np.maximum(times_s, 1e-9)
    return found


def _network(run: Run) -> tuple[float, float]:
    """Return latency and bandwidth: those of the settings, or those at which an all-reduce takes its mean time."""
    table = run.config.get("cluster", {})
    usual = Cluster()
    latency_s = float(table.get("latency_s", usual.latency_s))
    bandwidth = float(table.get("bandwidth_bytes_per_s", usual.bandwidth_bytes_per_s))
    columns = run.trace.columns()
    rounds = (columns["kind"] == EXCHANGE) & np.char.startswith(columns["label"].astype(str), "all-reduce")
    if not rounds.any() or run.workers < 2:
        return latency_s, bandwidth
    took_s = float((columns["time_s"] - columns["start_s"])[rounds].mean())
    sent_bytes = float(columns["size_bytes"][rounds].mean())
    if took_s <= sent_bytes / bandwidth:
        return 0.0, _short(sent_bytes / max(took_s, 1e-9))
    return _short((took_s - sent_bytes / bandwidth) / (2 * (run.workers - 1))), bandwidth  # a ring has 2(n − 1) stages


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
