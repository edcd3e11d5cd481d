"""The fields of a profile from one or several measurements: step times, costs of hooks, network and facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.cluster.costs import Cost
from tacit.cluster.delays import Recorded
from tacit.errors import require
from tacit.profiles.measurement import Measurement, Work
from tacit.profiles.network_fit import network_of
from tacit.profiles.pairs import Pair, differences
from tacit.profiles.probe.beside import processor_s_per_byte
from tacit.profiles.strategy_memory import models_of
from tacit.profiles.warnings import warnings_of
from tacit.registry import parse

_MOST_TIMES: Final = 200
"""Step times of a rank in a profile: means of as many equal parts of its sorted measured times."""
_LINE: Final = 4.0
"""Largest over smallest number of elements from which the cost of work is fitted as a line."""
_CLEARLY: Final = 3.0
"""Standard errors by which the steps of a run must be longer to count as lengthened."""
_DIGITS: Final = 4
Seconds = NDArray[np.float64]
_FACTS: Final = ("parameters", "parameter_bytes", "dtype", "batch", "optimizer", "backend")


def combined(
    measurements: Sequence[Measurement], pairs: Mapping[tuple[int, int], Pair] | None = None
) -> dict[str, Any]:
    """Return the fields of the profile of these measurements. pairs: latencies and rates of pairs of ranks."""
    require(bool(measurements), "runs is empty; give at least one run on real processes: Profile.of(run).")
    first = measurements[0].run
    seen: dict[str, list[Any]] = {
        "workers": [m.run.workers for m in measurements],
        "parameters": [m.facts.get("parameters") for m in measurements],
    }
    for name, values in seen.items():
        require(
            len(set(values)) == 1,
            f"the runs have {name} {', '.join(map(str, values))}; give runs of one model on the same workers.",
        )
    undisturbed = [one for one in measurements if not _lengthening_s(one, measurements)]
    with_waits = [_with_longer_rounds(one, _lengthening_s(one, measurements)) for one in measurements]
    hosts = _hosts(measurements[0].facts.get("hosts"), first.workers)
    facts = {name: value for name in _FACTS if (value := measurements[-1].facts.get(name)) is not None}
    backend = str(facts.get("backend", "gloo"))
    return {
        "workers": first.workers,
        "hosts": hosts,
        "compute": _step_times(undisturbed, first.workers),
        "costs": costs_of(measurements),
        **network_of(with_waits, hosts, backend, differences(pairs or {}, hosts)),
        "processor_s_per_byte": short(processor_s_per_byte(one.run.trace for one in measurements)),
        **facts,
        "peak_memory_bytes": _script_memory(measurements),
        "memory_bytes": _largest("memory_bytes", measurements),
        "warnings": tuple(warnings_of(measurements)),
    }


def _lengthening_s(measurement: Measurement, measurements: Sequence[Measurement]) -> float:
    """Return by how much the steps of a run are longer than those of the run with the shortest ones; 0 if not clearly.

    Compression can lengthen the computation, where workers share cores or memory bandwidth. So can the wait for a
    round: the caches are cold after it.
    """
    shortest = min(measurements, key=_mean_step_s)
    if measurement is shortest or (measurement.is_dense and not measurement.exchanges):
        return 0.0
    own, usual = _deviations_s([measurement], [shortest]), _deviations_s([shortest], [shortest])
    longer_s = float(own.mean() - usual.mean())
    error_s = float(np.sqrt(own.var() / len(own) + usual.var() / len(usual)))
    return longer_s if longer_s > _CLEARLY * error_s else 0.0


def _mean_step_s(measurement: Measurement) -> float:
    """Return the mean step of all ranks alike."""
    return float(np.mean([np.mean(times_s) for times_s in measurement.steps_s.values()]))


def _with_longer_rounds(measurement: Measurement, longer_s: float) -> Measurement:
    """Return a run without compression with rounds that take what its steps take longer."""
    if not longer_s or not measurement.is_dense:
        return measurement
    steps = fmean(len(times_s) for times_s in measurement.steps_s.values())
    extra_s = longer_s * steps / len(measurement.exchanges)
    return replace(
        measurement, exchanges=[one._replace(seconds=one.seconds + extra_s) for one in measurement.exchanges]
    )


def _deviations_s(measurements: Iterable[Measurement], usual: Sequence[Measurement]) -> Seconds:
    """Return the step times of all ranks, less the rank's mean in the ``usual`` runs."""
    ranks = usual[0].steps_s
    mean_s = {rank: float(np.mean(np.concatenate([one.steps_s[rank] for one in usual]))) for rank in ranks}
    return np.concatenate([np.asarray(one.steps_s[rank]) - mean_s[rank] for one in measurements for rank in ranks])


def _step_times(measurements: Sequence[Measurement], workers: int) -> list[Recorded]:
    """Return the step times of each rank in these runs. Ranks that do not differ clearly share all their times."""
    times_s = [
        np.concatenate([[*one.steps_s[rank], *one.again_s.get(rank, ())] for one in measurements])
        for rank in range(workers)
    ]
    middle_s = float(np.median([own.mean() for own in times_s]))
    alike = [rank for rank, own in enumerate(times_s) if abs(own.mean() - middle_s) <= _CLEARLY * _error_s(own)]
    shared = _recorded(np.concatenate([times_s[rank] for rank in alike])) if len(alike) > 1 else None
    return [shared if shared is not None and rank in alike else _recorded(own) for rank, own in enumerate(times_s)]


def _error_s(times_s: Seconds) -> float:
    """Return the standard error of the mean."""
    return float(times_s.std() / np.sqrt(len(times_s)))


def _recorded(times_s: Seconds) -> Recorded:
    """Return the times, thinned: means of equal parts of the sorted ones."""
    in_order = np.sort(times_s)
    edges = np.linspace(0, len(in_order), min(_MOST_TIMES, len(in_order)) + 1)
    parts = np.diff(np.interp(edges, np.arange(len(in_order) + 1), np.cumsum([0.0, *in_order]))) / np.diff(edges)
    return Recorded(times_s=[short(max(time_s, 1e-9)) for time_s in parts])


def costs_of(measurements: Sequence[Measurement]) -> dict[str, Cost]:
    """Return the seconds per number of each kind of work in hooks, and of a server's update.

    What steps of a compressed run take longer than those of the run with the shortest is part of the cost of encoding.
    """
    work: dict[str, list[Work]] = {}
    for measurement in measurements:
        longer_s = _lengthening_s(measurement, measurements)
        for label, done in measurement.work.items():
            extra_s = longer_s if label.startswith("encode") else 0.0
            work.setdefault(label, []).extend(Work(one.numbers, one.seconds + extra_s) for one in done)
        parameters = measurement.facts.get("parameters")
        if parameters and measurement.updates_s:  # the optimizer of a server is like that of a worker
            work.setdefault("update", []).extend(Work(parameters, seconds) for seconds in measurement.updates_s)
    return {label: _cost(done) for label, done in sorted(work.items()) if any(one.numbers for one in done)}


def _cost(done: Iterable[Work]) -> Cost:
    """Return seconds per number; with the seconds of each call if the sizes are different enough to fit a line."""
    by_size: dict[int, list[float]] = {}
    for numbers, seconds in done:
        if numbers:
            by_size.setdefault(numbers, []).append(seconds)
    sizes = sorted(by_size)
    times_s = [float(np.mean(by_size[size])) for size in sizes]
    if sizes[-1] >= _LINE * sizes[0]:
        per_number_s, constant_s = np.polyfit(sizes, times_s, 1, w=[len(by_size[size]) ** 0.5 for size in sizes])
        if per_number_s >= 0 and constant_s >= 0:
            return short(per_number_s), short(constant_s)
    return short(sum(times_s) / sum(sizes))


def _hosts(ranks_by_host: Sequence[Sequence[int]] | None, workers: int) -> list[int] | None:
    """Return the host of each rank; None if each has its own, or if hosts are not known."""
    if ranks_by_host is None or len(ranks_by_host) == workers:
        return None
    host_of = {rank: number for number, ranks in enumerate(ranks_by_host) for rank in ranks}
    return [host_of[rank] for rank in range(workers)] if len(host_of) == workers else None


def _largest(name: str, measurements: Iterable[Measurement]) -> dict[int, int]:
    """Return the largest value of a fact of each rank in any run."""
    found: dict[int, int] = {}
    for measurement in measurements:
        by_rank: Mapping[str, int | None] = measurement.facts.get(name, {})
        for rank, value in by_rank.items():
            if value is not None:
                found[int(rank)] = max(value, found.get(int(rank), 0))
    return found


def _script_memory(measurements: Iterable[Measurement]) -> dict[int, int]:
    """Return the peak memory of each rank without that of the strategy: the smallest estimate of all runs."""
    found: dict[int, int] = {}
    for measurement in measurements:
        try:
            models = models_of(parse(measurement.run.strategy, "strategies")) or 0.0
        except ValueError:  # a strategy of the user's own, or a probe
            models = 0.0
        own = models * measurement.facts.get("parameter_bytes", 0)
        for rank, peak in _largest("peak_memory_bytes", [measurement]).items():
            found[rank] = min(max(0, round(peak - own)), found.get(rank, peak))
    return found


def short(value: float) -> float:
    """Return ``value`` with four digits."""
    return float(f"{value:.{_DIGITS}g}")
