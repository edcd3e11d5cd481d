"""The links among the ranks of one group, as arrays: what the times of its collectives depend on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tacit.cluster.cluster import Cluster

Array = NDArray[np.float64]


class GroupNetwork:
    """Latencies and bandwidths among the ranks of a group, by their places in it."""

    def __init__(self, cluster: Cluster, group: Sequence[int]) -> None:
        self._cluster, self.group, self.size = cluster, tuple(group), len(group)
        numbers = [cluster.host(rank) for rank in group]
        hosts = sorted(set(numbers))
        self.host = np.array([hosts.index(number) for number in numbers])  # by place: 0, 1, … for each host
        self.out_bandwidth = np.array([cluster.nic_bandwidth("out", number) for number in hosts])  # by host
        self.in_bandwidth = np.array([cluster.nic_bandwidth("in", number) for number in hosts])

    @cached_property
    def latency_s(self) -> Array:
        """From each place to each other."""
        return np.array([[self._cluster.latency(a, b) if a != b else 0.0 for b in self.group] for a in self.group])

    @cached_property
    def bandwidth(self) -> Array:
        """From each place to each other, of a transfer that shares it with no other."""
        rows = [[self._cluster.bandwidth(a, b) if a != b else np.inf for b in self.group] for a in self.group]
        return np.array(rows)

    @cached_property
    def slowest_edge(self) -> tuple[float, float]:
        """The largest latency and the smallest bandwidth on the ring of the places, whose edges are used at once."""
        edges = [(rank, self.group[(place + 1) % self.size]) for place, rank in enumerate(self.group)]
        return max(self._cluster.latency(a, b) for a, b in edges), min(self._cluster.bandwidths(edges))

    def by_host(self, values: Array) -> Array:
        """Return the sums of ``values``, which have one entry per place, over each host."""
        return np.asarray(np.bincount(self.host, weights=values), np.float64)
