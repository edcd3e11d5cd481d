"""Predicted and measured step times: one function measures both, and a profile or nominal numbers give the cluster."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

import tacit
from benchmarks.fidelity.cells import CALIBRATED, DDP, METHODS, RATES_BITS_PER_S, Method, Place
from benchmarks.fidelity.recording import Cell
from benchmarks.fidelity.workloads import LEARNING_RATE, workload
from tacit.record.trace import COMPUTE, NOTE

SEEDS: Final = tuple(range(5))
NOMINAL_LATENCY_S: Final = 1e-4


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


def measured_s(cell: Cell) -> float | None:
    """Return the seconds of a step of a real run; None if it was not made."""
    about = cell.about()
    if about is None:
        return None
    if cell.method == DDP:
        return statistics.fmean(ends_s[-1] / len(ends_s) for ends_s in about["ends_s"])
    return step_s(real_run(cell), METHODS[cell.method])


def real_run(cell: Cell) -> tacit.Run:
    """Return a real run; raise if something was evaluated in it."""
    run = tacit.Run.load(cell.folder)
    if any(row.get("metric") is not None or row.get("gradient_norm_squared") is not None for row in run.history):
        raise ValueError(f"{cell.folder} has evaluations, which stop the clock; make the run again without them.")
    return run


def profiled_cluster(place: Place, cells: Sequence[Cell]) -> tacit.Cluster | None:
    """Return the cluster that the calibration runs describe; None if one is missing."""
    runs = [cell for cell in cells if cell.turn is None and cell.about() is not None]
    if len(runs) < len(CALIBRATED):
        return None
    if not hasattr(tacit, "Profile"):
        from tacit.cluster.measured import measured_cluster

        return replace(measured_cluster(real_run(runs[0])), server="rank0")
    cluster: tacit.Cluster = tacit.Profile.of(*(real_run(cell) for cell in runs)).cluster(server="rank0")
    return cluster


def nominal_cluster(place: Place) -> tacit.Cluster | None:
    """Return the cluster by the sleep, the rate of the network and a latency of 0.1 ms; None without a sleep."""
    if not place.sleep_s:
        return None
    rate = RATES_BITS_PER_S[place.network]
    sleeps_s = [place.sleep_of(rank) for rank in range(place.hosts)]
    return tacit.Cluster(
        workers=place.hosts,
        compute=tacit.Constant(mean_s=place.sleep_s),
        speed={rank: place.sleep_s / own for rank, own in enumerate(sleeps_s) if own != place.sleep_s},
        latency_s=NOMINAL_LATENCY_S,
        bandwidth_bytes_per_s=math.inf if rate is None else rate / 8,
        server="rank0",
    )


def simulated(place: Place, name: str, cluster: tacit.Cluster, seed: int) -> tacit.Run:
    """Return the simulated run of a cell."""
    steps = place.steps(name)
    return tacit.simulate(
        workload(place.model),
        METHODS[name].strategy,
        cluster=cluster,
        steps=steps,
        lr=LEARNING_RATE,
        seed=seed,
        timing_only=True,
        evaluate_every=steps,
    )


def predicted_s(place: Place, name: str, cluster: tacit.Cluster) -> float:
    """Return the simulated seconds of a step: the mean over seeds where step times are random."""
    seeds = SEEDS[:1] if isinstance(cluster.compute, tacit.Constant) else SEEDS
    return statistics.fmean(step_s(simulated(place, name, cluster, seed), METHODS[name]) for seed in seeds)


def result_of(
    place: Place, name: str, cells: Sequence[Cell], clusters: dict[str, tacit.Cluster | None]
) -> dict[str, Any]:
    """Return what was measured in one cell beside what was predicted; {} if nothing was measured."""
    own = [cell for cell in cells if cell.method == name and cell.turn is not None]
    turns_s = [found for cell in own if (found := measured_s(cell)) is not None]
    if not turns_s:
        return {}
    real_s = statistics.fmean(turns_s)
    result: dict[str, Any] = {"measured_ms": 1e3 * real_s, "steps": place.steps(name)}
    if len(turns_s) > 1:
        result["turns_ms"] = [1e3 * turn_s for turn_s in turns_s]
    for key, cluster in clusters.items():
        if cluster is not None:
            foreseen_s = predicted_s(place, name, cluster)
            result[f"{key}_ms"], result[f"{key}_error"] = 1e3 * foreseen_s, foreseen_s / real_s - 1
    about = own[0].about() or {}
    return {**result, "load": about.get("load"), "date": about.get("date"), "priority": about.get("priority")}
