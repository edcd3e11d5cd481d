"""Times of gloo's collectives, corrected by factors that were measured on a cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tacit.cluster.collectives import CollectiveTimes, Gloo
from tacit.cluster.group_network import Array, GroupNetwork
from tacit.errors import require

_TABLES: Final = ("all_reduce", "all_gather", "all_to_all", "broadcast")

Factors = Mapping[float, float]
"""Measured time over the time of ``gloo``, by size in bytes."""


@dataclass(frozen=True, kw_only=True)
class Calibrated(CollectiveTimes):
    """Times of ``gloo`` times measured factors: ``Calibrated(all_reduce={614_444: 1.04})``.

    Unlike ``Measured`` it depends on the number of workers, the latency and the bandwidth of the cluster, so it also
    prices collectives of fewer workers and of other networks. Between two sizes the factor is interpolated on a
    logarithmic scale of bytes; outside them it is that of the nearest size. Without factors the time is that of
    ``gloo``.

    all_reduce, broadcast: by bytes on each rank. all_gather: by bytes of the largest message. all_to_all: by the most
    bytes that a rank sends to others.
    """

    gloo: Gloo = Gloo()
    all_reduce: Factors = field(default_factory=dict)
    all_gather: Factors = field(default_factory=dict)
    all_to_all: Factors = field(default_factory=dict)
    broadcast: Factors = field(default_factory=dict)

    sends_to_all = True

    def __post_init__(self) -> None:
        for name in _TABLES:
            for size_bytes, factor in getattr(self, name).items():
                require(
                    0 < size_bytes < math.inf and 0 < factor < math.inf,
                    f"{name}={{{size_bytes!r}: {factor!r}}} must map bytes to a factor on gloo's time, both positive; "
                    f"try {{1000: 1.1}}.",
                )

    def all_reduce_s(self, size_bytes: float, network: GroupNetwork) -> float:
        return self.gloo.all_reduce_s(size_bytes, network) * _factor(self.all_reduce, size_bytes)

    def all_gather_s(self, sizes_bytes: Array, network: GroupNetwork) -> float:
        return self.gloo.all_gather_s(sizes_bytes, network) * _factor(self.all_gather, float(sizes_bytes.max()))

    def all_to_all_s(self, sizes_bytes: Array, network: GroupNetwork) -> float:
        sent = sizes_bytes.sum(axis=1) - np.diag(sizes_bytes)
        return self.gloo.all_to_all_s(sizes_bytes, network) * _factor(self.all_to_all, float(sent.max()))

    def broadcast_s(self, size_bytes: float, source: int, network: GroupNetwork) -> Sequence[float]:
        factor = _factor(self.broadcast, size_bytes)
        return [time_s * factor for time_s in self.gloo.broadcast_s(size_bytes, source, network)]


def _factor(factors: Factors, size_bytes: float) -> float:
    if not factors or size_bytes <= 0:
        return 1.0
    sizes = sorted(factors)
    return float(np.interp(math.log(size_bytes), [math.log(size) for size in sizes], [factors[size] for size in sizes]))
