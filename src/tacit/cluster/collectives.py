"""Times of collectives as a library runs them: gloo by its algorithm, any other by a table of measured times.

``Cluster(collectives=…)`` takes one of them. Without it, collectives are priced as rings without overheads.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from tacit.cluster.group_network import Array, GroupNetwork
from tacit.core.specs import Spec
from tacit.errors import require

_SEGMENT_BYTES: Final = 2**20
"""The largest segment of gloo's all-reduce."""


class CollectiveTimes(Spec, ABC):
    """Base class of the times of collectives, in seconds after the last rank has joined.

    A method that returns None leaves its collective to the prices of a ring.
    """

    sends_to_all = False  # whether an all-gather sends each message to every other rank itself, not around a ring

    @abstractmethod
    def all_reduce_s(self, size_bytes: float, network: GroupNetwork) -> float | None:
        """Return the time of an all-reduce of ``size_bytes`` on each rank."""

    @abstractmethod
    def all_gather_s(self, sizes_bytes: Array, network: GroupNetwork) -> float | None:
        """Return the time of an all-gather of one message per rank."""

    @abstractmethod
    def all_to_all_s(self, sizes_bytes: Array, network: GroupNetwork) -> float | None:
        """Return the time of an all-to-all; ``sizes_bytes[i, j]`` goes from place i to place j."""

    @abstractmethod
    def broadcast_s(self, size_bytes: float, source: int, network: GroupNetwork) -> Sequence[float] | None:
        """Return the time of a broadcast from the place ``source``, for each place."""


@dataclass(frozen=True, kw_only=True)
class Gloo(CollectiveTimes):
    """Collectives as gloo runs them over TCP.

    An all-reduce is a ring at every size. Its segments have at most 1 MiB, two are in flight, and each one waits for a
    notice that its receiver is ready. All-gather and all-to-all send everything at once, after the lengths; a broadcast
    is a binomial tree whose ranks send to all their children at once. Where links differ, the slowest one of the ring
    sets its pace.

    software_s_per_byte: processor time per byte of a segment, to receive, add and send it. The default is fitted to
    published times (``fitted_gloo``). What a broadcast or an all-to-all only sends or receives takes half of it.
    """

    software_s_per_byte: float = 1.64e-9

    sends_to_all = True

    def __post_init__(self) -> None:
        value = self.software_s_per_byte
        require(0 <= value < math.inf, f"software_s_per_byte={value} must be at least 0 and finite; try 1.6e-9.")

    def ring_s(
        self, size_bytes: float, *, workers: int, latency_s: float = 0.0, bandwidth_bytes_per_s: float = math.inf
    ) -> float:
        """Return the time of an all-reduce on equal links."""
        if workers < 2:
            return 0.0
        wanted = max(math.ceil(size_bytes / _SEGMENT_BYTES), 2 * workers)
        per_rank = math.ceil(wanted / workers)
        segment_bytes = size_bytes / (per_rank * workers)
        wire_s, software_s = segment_bytes / bandwidth_bytes_per_s, segment_bytes * self.software_s_per_byte
        pairs = per_rank * (workers - 1) / 2  # of segments that a rank passes on in each of the two phases
        first_s = 2 * latency_s + 2 * wire_s + software_s
        next_s = max(2 * wire_s, 2 * latency_s + wire_s + software_s, 2 * software_s)
        return 2 * (first_s + (pairs - 1) * next_s)

    def all_reduce_s(self, size_bytes: float, network: GroupNetwork) -> float:
        latency_s, bandwidth = network.slowest_edge
        return self.ring_s(size_bytes, workers=network.size, latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)

    def all_gather_s(self, sizes_bytes: Array, network: GroupNetwork) -> float:
        local = np.bincount(network.host)[network.host]  # ranks on the host of each place, itself included
        total = sizes_bytes.sum()
        within = network.by_host(sizes_bytes)
        return self._at_once_s(
            network,
            leaving=network.by_host(sizes_bytes * (network.size - local)),
            entering=(total - within) * np.bincount(network.host),
            handled=np.maximum(sizes_bytes * (network.size - 1), total - sizes_bytes),
            slowest_pair_s=float((sizes_bytes / network.bandwidth.min(axis=1)).max()),
        )

    def all_to_all_s(self, sizes_bytes: Array, network: GroupNetwork) -> float:
        others = np.where(np.eye(network.size, dtype=bool), 0, sizes_bytes)
        crossing = np.where(network.host[:, None] == network.host, 0, others)
        return self._at_once_s(
            network,
            leaving=network.by_host(crossing.sum(axis=1)),
            entering=network.by_host(crossing.sum(axis=0)),
            handled=np.maximum(others.sum(axis=1), others.sum(axis=0)),
            slowest_pair_s=float((others / network.bandwidth).max()),
        )

    def _at_once_s(
        self, network: GroupNetwork, *, leaving: Array, entering: Array, handled: Array, slowest_pair_s: float
    ) -> float:
        """Return the time of transfers that all start at once; lengths are exchanged first, with the same latencies.

        leaving, entering: bytes that pass the NIC of each host. handled: bytes that each rank sends or receives.
        """
        latency_s = float(network.latency_s.max())
        nics_s = max((leaving / network.out_bandwidth).max(), (entering / network.in_bandwidth).max())
        wire_s = max(float(nics_s), slowest_pair_s)
        software_s = float(handled.max()) * self.software_s_per_byte / 2
        return 4 * latency_s + max(wire_s, software_s)

    def broadcast_s(self, size_bytes: float, source: int, network: GroupNetwork) -> list[float]:
        n, places = network.size, [(source + step) % network.size for step in range(network.size)]
        have_s = [0.0] * n  # by place
        for step, giver in enumerate(places):
            reaches = (2**bit for bit in range(n.bit_length()))
            takers = [places[step + reach] for reach in reaches if step < reach < n - step]
            sending_s = [self._to_child_s(size_bytes, giver, taker, takers, network) for taker in takers]
            if step == 0:  # it waits for the first notice; those of later ranks come in the meantime
                have_s[giver] += max((float(network.latency_s[taker, giver]) for taker in takers), default=0.0)
            for taker, time_s in zip(takers, sending_s, strict=True):
                have_s[taker] = have_s[giver] + time_s + float(network.latency_s[giver, taker])
            have_s[giver] += max(sending_s, default=0.0)
        return have_s

    def _to_child_s(
        self, size_bytes: float, giver: int, taker: int, takers: Sequence[int], network: GroupNetwork
    ) -> float:
        """Return the time in which ``giver`` sends to ``taker`` while it sends to all ``takers``, without latency."""
        host = network.host
        crossing = sum(bool(host[other] != host[giver]) for other in takers) if host[taker] != host[giver] else 0
        nic_s = crossing * size_bytes / float(network.out_bandwidth[host[giver]])
        software_s = len(takers) * size_bytes * self.software_s_per_byte / 2
        return max(nic_s, software_s, size_bytes / float(network.bandwidth[giver, taker]))


@dataclass(frozen=True)
class Measured(CollectiveTimes):
    """Measured times of collectives, by size: ``Measured({1_000: 0.0004, 1_000_000: 0.011})``.

    Between two sizes times are interpolated linearly. Below the smallest size they are constant; above the largest they
    grow as between the last two, or in proportion where only one is given. Collectives without a table are priced as
    rings. Measure with as many ranks as take part, on the network of the cluster: latency and bandwidth have no effect.

    all_reduce: seconds by bytes on each rank. all_gather: by bytes of the largest message. all_to_all: by the most
    bytes that a rank sends to others. broadcast: by bytes.
    """

    all_reduce: Mapping[float, float]
    all_gather: Mapping[float, float] = field(default_factory=dict, kw_only=True)
    all_to_all: Mapping[float, float] = field(default_factory=dict, kw_only=True)
    broadcast: Mapping[float, float] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("all_reduce", "all_gather", "all_to_all", "broadcast"):
            table = getattr(self, name)
            require(
                isinstance(table, Mapping) and (bool(table) or name != "all_reduce"),
                f"{name}={table!r} must map bytes to seconds; write Measured({{1000: 0.0004, 1000000: 0.011}}).",
            )
            for size_bytes, seconds in table.items():
                is_valid = all(isinstance(number, int | float) for number in (size_bytes, seconds))
                require(
                    is_valid and 0 < size_bytes < math.inf and 0 <= seconds < math.inf,
                    f"{name}={{{size_bytes!r}: {seconds!r}}} must map positive bytes to seconds; try {{1000: 0.0004}}.",
                )

    def all_reduce_s(self, size_bytes: float, network: GroupNetwork) -> float:
        return _interpolated(self.all_reduce, size_bytes)

    def all_gather_s(self, sizes_bytes: Array, network: GroupNetwork) -> float | None:
        return _interpolated(self.all_gather, float(sizes_bytes.max())) if self.all_gather else None

    def all_to_all_s(self, sizes_bytes: Array, network: GroupNetwork) -> float | None:
        sent = sizes_bytes.sum(axis=1) - np.diag(sizes_bytes)
        return _interpolated(self.all_to_all, float(sent.max())) if self.all_to_all else None

    def broadcast_s(self, size_bytes: float, source: int, network: GroupNetwork) -> list[float] | None:
        return [_interpolated(self.broadcast, size_bytes)] * network.size if self.broadcast else None


def _interpolated(table: Mapping[float, float], size_bytes: float) -> float:
    """Return the time for ``size_bytes``: piecewise linear, constant below the table, growing above it."""
    sizes = sorted(table)
    times = [table[size] for size in sizes]
    if size_bytes <= sizes[-1]:
        return float(np.interp(size_bytes, sizes, times))
    if len(sizes) == 1:
        return times[0] * size_bytes / sizes[0]
    slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
    return times[-1] + max(0.0, slope) * (size_bytes - sizes[-1])


class MeasuredAllReduce(NamedTuple):
    """A measured all-reduce: its size, its workers, their links and the time."""

    size_bytes: float
    workers: int
    seconds: float
    latency_s: float = 0.0
    bandwidth_bytes_per_s: float = math.inf


def fitted_gloo(measured: Iterable[MeasuredAllReduce]) -> Gloo:
    """Return ``Gloo`` with the software time at which the geometric mean of predicted over measured times is 1.

    Without latency and bandwidth, the software time contains the time of the network.
    """
    cells = list(measured)
    require(bool(cells), "measured is empty; give at least one MeasuredAllReduce of two or more workers.")
    for cell in cells:
        require(
            cell.workers >= 2 and cell.seconds > 0,
            f"{cell} must have at least 2 workers and a positive time; leave it out.",
        )

    def excess(software_s_per_byte: float) -> float:
        made = Gloo(software_s_per_byte=software_s_per_byte)
        return math.fsum(
            math.log(
                made.ring_s(
                    cell.size_bytes,
                    workers=cell.workers,
                    latency_s=cell.latency_s,
                    bandwidth_bytes_per_s=cell.bandwidth_bytes_per_s,
                )
                / cell.seconds
            )
            for cell in cells
        )

    low, high = 1e-15, 1.0  # seconds per byte
    for _ in range(80):  # bisection: predicted times grow with the software time
        middle = math.sqrt(low * high)
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return Gloo(software_s_per_byte=high)
