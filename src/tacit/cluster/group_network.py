"""The links among the ranks of one group, as arrays: what the times of its collectives depend on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        cluster = self._cluster
        found = np.where(self._is_local, cluster.host_latency_s, cluster.latency_s)
        for (at, to), (source, target) in self._own_links():
            found[at, to] = cluster.latency(source, target)
        np.fill_diagonal(found, 0.0)
        return found

    @cached_property
    def bandwidth(self) -> Array:
        """From each place to each other, of a transfer that shares it with no other."""
        one_by_one = np.minimum(self.out_bandwidth[self.host][:, None], self.in_bandwidth[self.host])
        return np.minimum(self._link_bandwidth, np.where(self._is_local, np.inf, one_by_one))

    @cached_property
    def staged_bandwidth(self) -> Array:
        """As ``bandwidth``, for n − 1 stages in the s-th of which place i sends to place i + s: these share NICs."""
        places, found = np.arange(self.size), np.full((self.size, self.size), np.inf)
        for stage in range(1, self.size):
            targets = (places + stage) % self.size
            from_host, to_host = self.host, self.host[targets]
            crosses = from_host != to_host
            leaving = np.maximum(1, np.bincount(from_host[crosses], minlength=len(self.out_bandwidth)))
            entering = np.maximum(1, np.bincount(to_host[crosses], minlength=len(self.in_bandwidth)))
            shared = np.minimum(
                self.out_bandwidth[from_host] / leaving[from_host], self.in_bandwidth[to_host] / entering[to_host]
            )
            found[places, targets] = np.minimum(
                self._link_bandwidth[places, targets], np.where(crosses, shared, np.inf)
            )
        return found

    @cached_property
    def _is_local(self) -> NDArray[np.bool_]:
        return np.asarray(self.host[:, None] == self.host, np.bool_)

    @cached_property
    def _link_bandwidth(self) -> Array:
        """Of each link itself, without the NICs at its ends."""
        found = np.where(self._is_local, self._cluster.host_bandwidth_bytes_per_s, np.inf)
        for (at, to), (source, target) in self._own_links():
            found[at, to] = self._cluster.link_bandwidth(source, target)
        np.fill_diagonal(found, np.inf)
        return found

    def _own_links(self) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Yield places and ranks of the pairs that the cluster has links of their own for, in both directions."""
        place = {rank: at for at, rank in enumerate(self.group)}
        for pair in self._cluster.links:
            if pair[0] in place and pair[1] in place:
                for source, target in (pair, pair[::-1]):
                    yield (place[source], place[target]), (source, target)

    @cached_property
    def slowest_edge(self) -> tuple[float, float]:
        """The largest latency and the smallest bandwidth on the ring of the places, whose edges are used at once."""
        edges = [(rank, self.group[(place + 1) % self.size]) for place, rank in enumerate(self.group)]
        return max(self._cluster.latency(a, b) for a, b in edges), min(self._cluster.bandwidths(edges))

    def by_host(self, values: Array) -> Array:
        """Return the sums of ``values``, which have one entry per place, over each host."""
        return np.asarray(np.bincount(self.host, weights=values), np.float64)
