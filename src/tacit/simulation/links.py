"""Transfer times of messages, which share NICs, and of collectives.

The NIC of a host has one outgoing and one incoming pipe. Transfers in a pipe share its bandwidth evenly, as TCP flows
do. A transfer ends when it has passed both pipes and, if its link is slower than the NICs, the link. Transfers within a
host use no pipe. Collectives do not share pipes with messages: all ranks of a ring send at once, each to its neighbour.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.cluster.cluster import Cluster
from tacit.cluster.faults import MessageLoss, Partition
from tacit.cluster.group_network import GroupNetwork
from tacit.core.collective_bytes import handed_out_bytes, ring_all_reduce_bytes, tree_broadcast_bytes
from tacit.core.randomness import Streams
from tacit.simulation.agenda import Agenda

Array = NDArray[np.float64]
_MOST_PRICES: Final = 256
"""Prices kept for the next collectives of the same sizes; those of compressed messages differ from round to round."""


class Price(NamedTuple):
    """Cost of a collective by position in its group: seconds after all have joined, and bytes that each rank sends."""

    seconds: tuple[float, ...]
    sent_bytes: tuple[int, ...]


class Pipe:
    """One direction of a NIC. Generalised processor sharing: everything inside advances at rate / occupancy.

    Each transfer that enters delays the next end, and a burst of transfers delays it many times. So the agenda keeps
    its earlier entry, which on its turn makes way for the current one.
    """

    def __init__(self, agenda: Agenda, bytes_per_s: float) -> None:
        self._agenda, self._rate, self.is_instant = agenda, bytes_per_s, bytes_per_s == math.inf
        self._inside: list[tuple[float, int, Callable[[], None]]] = []
        self._served, self._as_of_s = 0.0, 0.0  # bytes that a transfer would have got since the start of the pipe
        self._sequence = 0
        self._next_end: tuple[float, int] | None = None  # time and place in the agenda
        self._entered: list[tuple[float, int]] = []  # a heap of the entries in the agenda: times and places

    def push(self, size_bytes: int, done: Callable[[], None]) -> None:
        """Transfer ``size_bytes``, then call ``done``."""
        if self.is_instant:
            done()
            return
        now_s, inside = self._agenda.now_s, self._inside
        if inside:
            self._served += (now_s - self._as_of_s) * self._rate / len(inside)
        self._as_of_s = now_s
        self._sequence += 1
        heapq.heappush(inside, (self._served + size_bytes, self._sequence, done))
        self._plan()

    def _plan(self) -> None:
        """Compute the next end, from the state as of now."""
        left = self._inside[0][0] - self._served
        end_s = self._as_of_s + left * len(self._inside) / self._rate if left > 0.0 else self._as_of_s
        self._next_end = (end_s, self._agenda.reserve())
        if not self._entered or self._next_end < self._entered[0]:
            self._enter(self._next_end)

    def _enter(self, end: tuple[float, int]) -> None:
        heapq.heappush(self._entered, end)
        self._agenda.enter(*end, self._turn)

    def _turn(self) -> None:
        """Handle the first entry in the agenda: end transfers, or enter the end that has replaced it."""
        if heapq.heappop(self._entered) != self._next_end:
            if self._next_end is not None and (not self._entered or self._next_end < self._entered[0]):
                self._enter(self._next_end)
            return
        self._as_of_s, self._next_end, inside = self._agenda.now_s, None, self._inside
        self._served, _, done = heapq.heappop(inside)
        ended = [done]
        while inside and inside[0][0] <= self._served:
            ended.append(heapq.heappop(inside)[2])
        if inside:
            self._plan()
        for done in ended:
            done()


class Flight:
    """A message in flight, or one that has arrived but waits for an earlier message in flight.

    It passes both pipes at once. It enters the receiver's pipe one latency after it enters the sender's.
    """

    __slots__ = (
        "_agenda",
        "_arrival_s",
        "_parts_left",
        "_pipe_in",
        "_queue",
        "_size_bytes",
        "delivered",
        "is_here",
        "latency_s",
    )

    def __init__(
        self, agenda: Agenda, queue: deque[Flight], size_bytes: int, latency_s: float, delivered: Callable[[], None]
    ) -> None:
        self._agenda, self._queue, self._size_bytes, self.latency_s = agenda, queue, size_bytes, latency_s
        self.delivered, self.is_here = delivered, False
        queue.append(self)

    def depart(self, alone_s: float, pipes: tuple[Pipe, Pipe] | None) -> None:
        """Enter the pipes. alone_s: time that the message takes without other messages, in addition to the latency."""
        reached_s = self._agenda.now_s + self.latency_s
        if pipes is None:
            self._agenda.at(reached_s + alone_s, self.arrive)
            return
        pipe_out, self._pipe_in = pipes
        self._arrival_s, self._parts_left = reached_s + alone_s, 2
        pipe_out.push(self._size_bytes, self._leave_sender)
        self._agenda.at(reached_s, self._reach_receiver)

    def _leave_sender(self) -> None:
        self._end_part(self._agenda.now_s + self.latency_s)

    def _reach_receiver(self) -> None:
        self._pipe_in.push(self._size_bytes, self._leave_receiver)

    def _leave_receiver(self) -> None:
        self._end_part(self._agenda.now_s)

    def _end_part(self, end_s: float) -> None:
        self._parts_left -= 1
        if end_s > self._arrival_s:
            self._arrival_s = end_s
        if self._parts_left == 0:
            self._agenda.at(self._arrival_s, self.arrive)

    def arrive(self) -> None:
        """Deliver the message once all messages that were sent before it are delivered."""
        self.is_here, queue = True, self._queue
        while queue and queue[0].is_here:
            queue.popleft().delivered()


class Path(NamedTuple):
    """The way of messages from one node to another: pipes, unless none limits them, and flights in order of sending."""

    latency_s: float
    bandwidth: float
    pipes: tuple[Pipe, Pipe] | None
    queue: deque[Flight]


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
        if open_s > agenda.now_s:
            agenda.at(open_s, lambda: flight.depart(size_bytes / path.bandwidth, path.pipes))
        else:
            flight.depart(size_bytes / path.bandwidth, path.pipes)
        return True

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
            cluster, pipes = self._cluster, None
            if not cluster.is_local(source, target):
                ends = self._pipe("out", cluster.host(source)), self._pipe("in", cluster.host(target))
                pipes = None if all(pipe.is_instant for pipe in ends) else ends
            path = Path(cluster.latency(source, target), cluster.bandwidth(source, target), pipes, deque())
            self._paths[source, target] = path
        return path

    def _pipe(self, direction: str, host: int) -> Pipe:
        if (direction, host) not in self._pipes:
            self._pipes[direction, host] = Pipe(self._agenda, self._cluster.nic_bandwidth(direction, host))
        return self._pipes[direction, host]

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
