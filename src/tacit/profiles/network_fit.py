"""Latency, bandwidth and times of collectives that agree with the measured rounds.

The model is gloo's (``Gloo``). The smallest all-gather gives the latency, the largest all-reduce the bandwidth; what
remains between the model and the measured times is kept as factors by size (``Calibrated``). Collectives of other
libraries are kept as tables (``Measured``), and only messages use the fitted latency and bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from tacit.cluster.calibrated import Calibrated
from tacit.cluster.cluster import Cluster
from tacit.cluster.collectives import Gloo, Measured
from tacit.cluster.group_network import GroupNetwork
from tacit.profiles.measurement import Measurement
from tacit.profiles.pairs import Differences
from tacit.profiles.rounds import Round, round_time_s, rounds_of

_LATENCY_SHARE: Final = 0.5
"""The most that latency may take of the shortest round."""
_MOST: Final = 1e13
"""The largest bandwidth that is considered, in bytes per second."""
_DIGITS: Final = 4
_ALIKE: Final = Differences()


def network_of(
    measurements: Sequence[Measurement],
    hosts: Sequence[int] | None,
    backend: str,
    different: Differences = _ALIKE,
) -> dict[str, Any]:
    """Return latency, bandwidth and collectives as fields of a cluster; those of the run's settings without rounds.

    hosts: of each rank; None: each has its own. If all ranks share one, latency and bandwidth are those within a host.
    different: NICs and links that differ from the others.
    """
    workers = measurements[0].run.workers
    rounds = rounds_of((e for m in measurements for e in m.exchanges), workers)
    given: Mapping[str, Any] = measurements[0].run.config.get("cluster", {})
    usual = Cluster()
    if not rounds:
        latency_s, bandwidth = usual.latency_s, usual.bandwidth_bytes_per_s
        return {
            "latency_s": given.get("latency_s", latency_s),
            "bandwidth_bytes_per_s": given.get("bandwidth_bytes_per_s", bandwidth),
        }
    model = _Model(workers, hosts, different)
    fitted = _fitted(rounds, model, float(given.get("latency_s", usual.latency_s)))
    links = model.links(_short(fitted.latency_s), _short(fitted.bandwidth))
    network = model.network(_short(fitted.latency_s), _short(fitted.bandwidth))
    if backend == "gloo":
        return {**links, "collectives": _calibrated(rounds, fitted.gloo, network)}
    return {**links, **_tables(rounds)}


class _Model(NamedTuple):
    """The cluster whose latency and bandwidth are fitted."""

    workers: int
    hosts: Sequence[int] | None
    different: Differences

    def links(self, latency_s: float, bandwidth: float) -> dict[str, Any]:
        """Return latency, bandwidth and what differs from them as fields of a cluster."""
        within = "host_" if self.hosts is not None and len(set(self.hosts)) == 1 else ""
        common = {f"{within}latency_s": latency_s, f"{within}bandwidth_bytes_per_s": bandwidth}
        return {**common, **self.different.fields(latency_s, bandwidth)}

    def network(self, latency_s: float, bandwidth: float) -> GroupNetwork:
        """Return the links of a cluster with this latency and bandwidth."""
        cluster = Cluster(workers=self.workers, hosts=self.hosts, **self.links(latency_s, bandwidth))
        return GroupNetwork(cluster, range(self.workers))

    def time_s(self, one: Round, latency_s: float, bandwidth: float, gloo: Gloo) -> float:
        return round_time_s(one, self.network(latency_s, bandwidth), gloo)


class _Fitted(NamedTuple):
    latency_s: float
    bandwidth: float
    gloo: Gloo


def _fitted(rounds: Sequence[Round], model: _Model, usual_latency_s: float) -> _Fitted:
    """Return latency, bandwidth and software time with which gloo's model meets the largest round."""
    reduces = [one for one in rounds if one.label == "all-reduce"]
    gathers = [one for one in rounds if one.label != "all-reduce"]
    largest = max(reduces or gathers, key=lambda one: one.size_bytes)
    most_s = _LATENCY_SHARE * largest.seconds / (4 * (model.workers - 1))
    measured_s = model.different.latency_s
    latency_s = min(usual_latency_s if measured_s is None else measured_s, most_s)
    bandwidth, gloo = math.inf, Gloo()
    for _ in range(4):  # the latency depends on the bandwidth and the other way round; this converges quickly
        bandwidth, gloo = _bandwidth(largest, model, latency_s)
        if gathers and measured_s is None:
            smallest = min(gathers, key=lambda one: one.size_bytes)
            wire_s = model.time_s(smallest, 0.0, bandwidth, gloo)
            latency_s = min(max((smallest.seconds - wire_s) / 4, 1e-6), most_s)
    return _Fitted(latency_s, bandwidth, gloo)


def _bandwidth(largest: Round, model: _Model, latency_s: float) -> tuple[float, Gloo]:
    """Return the bandwidth at which the round takes its time; without software time if that alone were too long."""
    for gloo in (Gloo(), Gloo(software_s_per_byte=0.0)):
        time_s = partial(_time_at, largest, model, latency_s, gloo)
        if time_s(_MOST) < largest.seconds:
            return _solved(time_s, largest.seconds), gloo
    return largest.size_bytes / largest.seconds, Gloo(software_s_per_byte=0.0)


def _time_at(one: Round, model: _Model, latency_s: float, gloo: Gloo, bandwidth: float) -> float:
    return model.time_s(one, latency_s, bandwidth, gloo)


def _solved(time_s: Callable[[float], float], wanted_s: float) -> float:
    """Return the bandwidth at which ``time_s``, which falls with it, is ``wanted_s``."""
    low, high = 1.0, _MOST
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if time_s(middle) > wanted_s else (low, middle)
    return high


def _calibrated(rounds: Iterable[Round], gloo: Gloo, network: GroupNetwork) -> Calibrated:
    factors: dict[str, dict[float, float]] = {}
    for one in rounds:
        factor = one.seconds / max(round_time_s(one, network, gloo), 1e-12)
        factors.setdefault(one.label.replace("-", "_"), {})[round(one.size_bytes)] = _short(factor)
    return Calibrated(gloo=gloo, **factors)


def _tables(rounds: Iterable[Round]) -> dict[str, Measured]:
    tables: dict[str, dict[float, float]] = {}
    for one in rounds:
        tables.setdefault(one.label.replace("-", "_"), {})[round(one.size_bytes)] = _short(one.seconds)
    reduces = tables.pop("all_reduce", None)
    return {} if reduces is None else {"collectives": Measured(reduces, **tables)}


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
