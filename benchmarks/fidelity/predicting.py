"""Predicted beside measured step times: a profile of the calibration runs, or nominal numbers, give the cluster."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import tacit
from benchmarks.fidelity.causes import parts_ms
from benchmarks.fidelity.cells import CALIBRATED, DDP, METHODS, RATES_BITS_PER_S, Place
from benchmarks.fidelity.recording import Cell
from benchmarks.fidelity.timing import step_s
from benchmarks.fidelity.workloads import LEARNING_RATE, workload

SEEDS: Final = tuple(range(5))
NOMINAL_LATENCY_S: Final = 1e-4


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
    return tacit.Profile.of(*(real_run(cell) for cell in runs)).cluster(server="rank0")


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


def predictions(place: Place, name: str, cluster: tacit.Cluster) -> list[tacit.Run]:
    """Return the simulated runs of a cell, for several seeds where step times are random."""
    is_steady = isinstance(cluster.compute, tacit.Constant) or place.is_quick
    return [simulated(place, name, cluster, seed) for seed in (SEEDS[:1] if is_steady else SEEDS)]


def result_of(
    place: Place, name: str, cells: Sequence[Cell], clusters: Mapping[str, tacit.Cluster | None], *, with_causes: bool
) -> dict[str, Any]:
    """Return what was measured in one cell beside what was predicted; {} if nothing was measured.

    with_causes: also return, for the profile, the times by kind of event.
    """
    own = [cell for cell in cells if cell.method == name and cell.turn is not None]
    turns_s = [found for cell in own if (found := measured_s(cell)) is not None]
    if not turns_s:
        return {}
    real_s, method = statistics.fmean(turns_s), METHODS[name]
    result: dict[str, Any] = {"measured_ms": 1e3 * real_s, "steps": place.steps(name)}
    if len(turns_s) > 1:
        result["turns_ms"] = [1e3 * turn_s for turn_s in turns_s]
    for key, cluster in clusters.items():
        if cluster is None:
            continue
        runs = predictions(place, name, cluster)
        foreseen_s = statistics.fmean(step_s(run, method) for run in runs)
        result[f"{key}_ms"], result[f"{key}_error"] = 1e3 * foreseen_s, foreseen_s / real_s - 1
        if with_causes and key == "predicted" and name != DDP:
            result["causes"] = {"measured": parts_ms([real_run(own[0])], method), "predicted": parts_ms(runs, method)}
    about = own[0].about() or {}
    return {**result, "load": about.get("load"), "date": about.get("date"), "priority": about.get("priority")}
