"""Transfer times of messages, which share NICs, and of collectives.

The NIC of a host has one outgoing and one incoming pipe (``flights``). Transfers within a host use no pipe. Collectives
do not share pipes with messages: all ranks of a ring send at once, each to its neighbour.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.cluster.cluster import Cluster
from tacit.cluster.faults import MessageLoss, Partition
from tacit.cluster.group_network import GroupNetwork
from tacit.core.collective_bytes import handed_out_bytes, ring_all_reduce_bytes, tree_broadcast_bytes
from tacit.core.randomness import Streams
from tacit.simulation.agenda import Agenda
from tacit.simulation.computing.processor import Processor
from tacit.simulation.flights import Flight, Path, Pipe

Array = NDArray[np.float64]
_MOST_PRICES: Final = 256
"""Prices kept for the next collectives of the same sizes; those of compressed messages differ from round to round."""


class Price(NamedTuple):
    """Cost of a collective by position in its group: seconds after all have joined, and bytes that each rank sends."""

    seconds: tuple[float, ...]
    sent_bytes: tuple[int, ...]


class Fabric:
    """All links of a cluster."""

    def __init__(self, cluster: Cluster, agenda: Agenda, streams: Streams) -> None:
        self._cluster, self._agenda = cluster, agenda
        self._partitions = [f for f in cluster.faults if isinstance(f, Partition)]
        self._loss = next((f for f in cluster.faults if isinstance(f, MessageLoss) and f.probability > 0), None)
        self._loss_random = streams.numpy("loss")
        self._is_sound = not self._partitions and self._loss is None
        self._is_uniform = cluster.is_uniform
        self._paths: dict[tuple[int, int], Path] = {}
        self._pipes: dict[tuple[str, int], Pipe] = {}
        self._library = cluster.collective_times
        self._networks: dict[tuple[int, ...], GroupNetwork] = {}
        self._rings: dict[tuple[int, ...], tuple[Array, Array]] = {}
        self._prices: dict[object, Price] = {}
        self.processors: Sequence[Processor] = ()  # by rank, where transfers take processor time from computation

    def transfer(self, source: int, target: int, size_bytes: int, delivered: Callable[[], None]) -> bool:
        """Transfer a message and call ``delivered`` at its arrival. Return False if the message is lost."""
        agenda, open_s = self._agenda, 0.0
        if self._is_sound and self._is_uniform:
            agenda.at(agenda.now_s + self._cluster.latency_s, delivered)  # equal latencies keep the order
            return True
        if not self._is_sound:
            if self._loss is not None and self._loss_random.random() < self._loss.probability:
                return False
            open_s = self.open_from((source, target))
            if open_s == math.inf:
                return False
        path = self._path(source, target)
        flight = Flight(agenda, path.queue, size_bytes, path.latency_s, delivered)
        depart = partial(flight.depart, size_bytes / path.bandwidth, path.pipes)
        if self.processors and not self._cluster.is_local(source, target):
            depart = partial(self._depart_with_load, depart, source, target, size_bytes, size_bytes / path.bandwidth)
        if open_s > agenda.now_s:
            agenda.at(open_s, depart)
        else:
            depart()
        return True

    def _depart_with_load(
        self, depart: Callable[[], None], source: int, target: int, size_bytes: int, lasts_s: float
    ) -> None:
        """Let a message depart that takes processor time at both ends while it travels."""
        depart()
        for node in (source, target):
            self.load(node, self._agenda.now_s + lasts_s, size_bytes)

    def load(self, node: int, end_s: float, size_bytes: int) -> None:
        """Let so many bytes, which ``node`` sends or receives from now to ``end_s``, take processor time there."""
        core = self._cluster.core_of(node)
        if core is not None:
            self.processors[core].add(self._agenda.now_s, end_s, size_bytes * self._cluster.processor_s_per_byte)

    def load_all(self, group: Sequence[int], ends_s: Sequence[float], sent_bytes: Sequence[int]) -> None:
        """Let a collective that begins now take processor time of its ranks, which receive as much as they send."""
        if self.processors and len({self._cluster.host(rank) for rank in group}) > 1:
            for rank, end_s, size_bytes in zip(group, ends_s, sent_bytes, strict=True):
                self.load(rank, end_s, 2 * size_bytes)

    def cut_off(self, ranks: Sequence[int]) -> list[int]:
        """Return those of ``ranks`` that a partition currently separates from the others."""
        now_s = self._agenda.now_s
        cuts = [cut for cut in self._partitions if cut.at_s <= now_s < cut.at_s + cut.for_s]
        return sorted({rank for cut in cuts for rank in cut.ranks if rank in ranks})

    def open_from(self, ranks: Sequence[int]) -> float:
        """Return the earliest time from now on at which no partition divides ``ranks``."""
        time_s = self._agenda.now_s
        for cut in sorted(self._partitions, key=lambda f: f.at_s):
            sides = {rank in cut.ranks for rank in ranks}
            if len(sides) == 2 and cut.at_s <= time_s < cut.at_s + cut.for_s:
                time_s = cut.at_s + cut.for_s
        return time_s

    def _path(self, source: int, target: int) -> Path:
        """Return the way of messages from ``source`` to ``target``."""
        path = self._paths.get((source, target))
        if path is None:
            path = self._paths[source, target] = self._new_path(source, target)
        return path

    def _new_path(self, source: int, target: int) -> Path:
        cluster, from_host, to_host = self._cluster, self._cluster.host(source), self._cluster.host(target)
        if from_host == to_host:
            return Path(cluster.latency(source, target), cluster.bandwidth(source, target), None, deque())
        pipe_out, pipe_in = self._pipe("out", from_host), self._pipe("in", to_host)
        pipes = None if pipe_out.is_instant and pipe_in.is_instant else (pipe_out, pipe_in)
        if cluster.links:
            return Path(cluster.latency(source, target), cluster.bandwidth(source, target), pipes, deque())
        # What these would return; a gossip run uses most pairs of nodes only a few times.
        return Path(cluster.latency_s, min(pipe_out.bytes_per_s, pipe_in.bytes_per_s), pipes, deque())

    def _pipe(self, direction: str, host: int) -> Pipe:
        pipe = self._pipes.get((direction, host))
        if pipe is None:
            pipe = self._pipes[direction, host] = Pipe(self._agenda, self._cluster.nic_bandwidth(direction, host))
        return pipe

    def price_all_reduce(self, group: Sequence[int], elements: int, element_bytes: int) -> Price:
        """Ring all-reduce: 2(n−1) stages, each rank passing one of n chunks to its successor."""
        n = len(group)
        key = ("all-reduce", tuple(group), elements, element_bytes)
        if (price := self._prices.get(key)) is not None:
            return price
        if self._library is not None and n > 1:
            time_s = self._library.all_reduce_s(elements * element_bytes, self._network(group))
            if time_s is not None:
                return self._priced(key, time_s, ring_all_reduce_bytes(elements, element_bytes, n), 2 * (n - 1))
        chunks = np.full(n, elements // n) * element_bytes
        chunks[: elements % n] += element_bytes
        # To reduce, rank i sends chunk i − stage; to gather, it starts with the chunk it has just completed, i + 1.
        first_chunks = [*(-stage % n for stage in range(n - 1)), *((1 - stage) % n for stage in range(n - 1))]
        around = np.concatenate((chunks, chunks))
        return self._ring(key, group, (around[first : first + n] for first in first_chunks))

    def price_all_gather(self, group: Sequence[int], sizes_bytes: Sequence[int]) -> Price:
        """Ring all-gather: n−1 stages, in each of which a rank forwards the message it received last."""
        n, key = len(group), ("all-gather", tuple(group), tuple(sizes_bytes))
        if self._library is not None and n > 1 and key not in self._prices:
            sizes = np.asarray(sizes_bytes, np.int64)
            time_s = self._library.all_gather_s(sizes.astype(float), self._network(group))
            if time_s is not None:
                passed_on = sizes * (n - 1) if self._library.sends_to_all else sizes.sum() - np.roll(sizes, -1)
                return self._priced(key, time_s, tuple(passed_on.tolist()), n - 1)
        around = np.asarray((*sizes_bytes, *sizes_bytes), np.int64)
        return self._ring(key, group, (around[n - stage : 2 * n - stage] for stage in range(n - 1)))

    def price_all_to_all(self, group: Sequence[int], sizes_bytes: Sequence[Sequence[int]]) -> Price:
        """Direct all-to-all: n−1 stages, in the s-th of which rank i sends to rank i+s, without synchronisation.

        A rank sends one message after the other, and receives one after the other: transfers do not share NICs.
        """
        n, sizes = len(group), np.asarray(sizes_bytes, np.int64)
        sent_bytes = tuple(handed_out_bytes(sizes_bytes[place], place) for place in range(n))
        if self._library is not None and n > 1:
            time_s = self._library.all_to_all_s(sizes.astype(float), self._network(group))
            if time_s is not None:
                return self._priced(None, time_s, sent_bytes, n - 1)
        network = self._network(group)
        latency_s, bandwidth = network.latency_s, network.staged_bandwidth
        sent_s, received_s, places = np.zeros(n), np.zeros(n), np.arange(n)
        for stage in range(1, n):
            targets = (places + stage) % n
            travel_s = sizes[places, targets] / bandwidth[places, targets]
            sent_s += travel_s
            arrival_s = sent_s + latency_s[places, targets] + self._retries(n)
            received_s[targets] = np.maximum(arrival_s, received_s[targets] + travel_s)
        done_s = float(np.maximum(received_s, sent_s).max()) if n > 1 else 0.0
        return Price((done_s,) * n, sent_bytes)

    def price_broadcast(self, group: Sequence[int], source: int, size_bytes: int) -> Price:
        """Binomial tree: in each stage every rank that has the value sends it to one that does not."""
        n, start = len(group), list(group).index(source)
        if self._library is not None and n > 1:
            times_s = self._library.broadcast_s(size_bytes, start, self._network(group))
            if times_s is not None:
                late_s = self._retries(n)
                times = tuple(time_s + float(late) for time_s, late in zip(times_s, late_s, strict=True))
                return Price(times, tuple(tree_broadcast_bytes(size_bytes, start, n)))
        have_s, sent = [math.inf] * n, [0] * n
        have_s[0] = 0.0
        reach = 1
        while reach < n:
            givers = range(min(reach, n - reach))
            pairs = [(group[(giver + start) % n], group[(giver + reach + start) % n]) for giver in givers]
            for giver, (a, b), bandwidth in zip(givers, pairs, self._cluster.bandwidths(pairs), strict=True):
                travel_s = self._cluster.latency(a, b) + size_bytes / bandwidth
                have_s[giver + reach] = have_s[giver] + travel_s + float(self._retries(1)[0])
                have_s[giver] += size_bytes / bandwidth
                sent[giver] += size_bytes
            reach *= 2
        order = [(position - start) % n for position in range(n)]
        return Price(tuple(have_s[o] for o in order), tuple(sent[o] for o in order))

    def _priced(self, key: object, time_s: float, sent_bytes: tuple[int, ...], messages: int) -> Price:
        """Return the price of a collective that takes ``time_s`` for all; keep it under ``key`` unless that is None.

        messages: how many each rank sends, one after the other; lost ones are sent again.
        """
        n = len(sent_bytes)
        late_s = float(self._retries(n * messages).reshape(n, messages).sum(axis=1).max())
        price = Price((time_s + late_s,) * n, sent_bytes)
        if key is not None:
            self._keep(key, price)
        return price

    def _keep(self, key: object, price: Price) -> None:
        """Keep a price for the next collective of the same sizes; with message loss each one differs."""
        if self._loss is None:
            if len(self._prices) >= _MOST_PRICES:
                self._prices.clear()
            self._prices[key] = price

    def _network(self, group: Sequence[int]) -> GroupNetwork:
        members = tuple(group)
        if members not in self._networks:
            self._networks[members] = GroupNetwork(self._cluster, members)
        return self._networks[members]

    def _ring(self, key: object, group: Sequence[int], stages: Iterable[NDArray[np.int64]]) -> Price:
        """Return the cost of stages in which a rank sends to its successor once it has received the stage before."""
        if key in self._prices:
            return self._prices[key]
        n = len(group)
        latency_s, bandwidth = self._edges_of_ring(tuple(group))
        sizes_bytes = np.array([*stages], np.int64).reshape(-1, n)
        around_s, sent_s = np.zeros(n + 1), np.zeros(n)  # the last number of ``around_s`` is also its first
        received_s, arrival_s = around_s[:-1], around_s[1:]  # a rank receives what its predecessor sends
        for travel_s in sizes_bytes / bandwidth:
            np.maximum(received_s, sent_s, out=sent_s)
            sent_s += travel_s
            np.add(sent_s, latency_s, out=arrival_s)
            if self._loss is not None:
                arrival_s += self._retries(n)
            around_s[0] = around_s[-1]
        done_s = float(np.maximum(received_s, sent_s).max())  # all leave at once: the place in the ring has no effect
        price = Price((done_s,) * n, tuple(sizes_bytes.sum(axis=0).tolist()))
        self._keep(key, price)
        return price

    def _edges_of_ring(self, group: tuple[int, ...]) -> tuple[Array, Array]:
        """Return latency and bandwidth from each rank of a group to the next one."""
        if group not in self._rings:
            edges = [(rank, group[(i + 1) % len(group)]) for i, rank in enumerate(group)]
            latencies_s = [self._cluster.latency(*edge) for edge in edges]
            self._rings[group] = np.array(latencies_s), np.array(self._cluster.bandwidths(edges))
        return self._rings[group]

    def _retries(self, count: int) -> Array:
        """Return the seconds spent on retransmissions, one entry per message of a collective."""
        if self._loss is None:
            return np.zeros(count)
        lost = self._loss_random.geometric(1 - self._loss.probability, count) - 1
        return np.asarray(lost * self._loss.retry_s, np.float64)
