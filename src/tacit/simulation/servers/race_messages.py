"""Messages of a race on a network: pushes to the server, and models to groups of learners.

A message passes two pipes at once, as in ``simulation/flights.py``: it enters the receiver's one latency after the
sender's, and arrives when it has left both. Where nothing else happens before it arrives, its arrival follows from
sizes and rates alone; else messages share the server's pipes, whose next ends are events.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tacit.cluster.cluster import Cluster
from tacit.core.network import SERVER
from tacit.simulation.servers.pipes import OwnPipe, SharedPipe, Tie
from tacit.simulation.servers.server_rows import MessageSizes

NEVER: Final = math.inf
_MARGIN: Final = 1.001  # of the longest time that a message may take, for rounding


class Link(NamedTuple):
    """The way of messages between the server and one learner, in one direction."""

    latency_s: float
    bandwidth: float
    own: OwnPipe | None  # the learner's side; None: no NIC limits the messages


class Models(NamedTuple):
    """Models of one version and size on their way to learners."""

    version: int
    is_restart: bool  # whether they cancel steps in progress
    sent_s: float
    size_bytes: int
    ranks: list[int]
    numbers: list[int]  # of the transfers in the learners' own pipes, by rank


Held = list[tuple[int, int, float]]
"""Models that a learner's own pipe still holds: rank, number of the transfer, earliest arrival."""


class RaceMessages:
    """All messages under way. At ``next_s`` something happens to one of them, which ``proceed`` lets happen.

    ends: a heap of the ends of steps. receive_push, receive_models: called at an arrival, with its time.
    """

    def __init__(
        self,
        cluster: Cluster,
        sizes: MessageSizes,
        ends: Sequence[tuple[float, int]],
        receive_push: Callable[[float, int, int], None],
        receive_models: Callable[[float, int, bool, list[int]], None],
    ) -> None:
        self._cluster, self._sizes, self._ends = cluster, sizes, ends
        self._receive_push, self._receive_models = receive_push, receive_models
        host, ranks = cluster.host(SERVER), range(cluster.workers)
        self._pipe_in: SharedPipe[tuple[int, int, int, float]] = SharedPipe(cluster.nic_bandwidth("in", host))
        self._pipe_out: SharedPipe[Models] = SharedPipe(cluster.nic_bandwidth("out", host))
        self._up = [self._link(rank, SERVER) for rank in ranks]
        self._down = [self._link(SERVER, rank) for rank in ranks]
        self._events: list[tuple[float, int, Callable[..., None], Any]] = [(NEVER, 0, receive_push, ())]  # a heap
        self._sequence = itertools.count(1)
        self._at_learners = (receive_models, self._leave_learners)
        self.soon: deque[tuple[float, Callable[..., None], Any]] = deque()  # what happens before anything else
        self._leaving = [0] * cluster.workers  # by learner: the number of the model that leaves the server next
        self._arrival_s = [0.0] * cluster.workers  # by learner: arrival of its last model, which may lie ahead
        in_rate, out_rate = (cluster.nic_bandwidth(way, host) for way in ("in", "out"))
        self._longest_push_s = [_longest_s(link, in_rate, sizes.push_bytes) for link in self._up]
        largest = max(sizes.model_bytes, sizes.restart_bytes)
        self._longest_model_s = max(_longest_s(link, out_rate, largest) for link in self._down)
        self._each_model_s = _MARGIN * largest / out_rate
        self._are_remote = all(link.own is not None for link in self._down)

    def _link(self, source: int, target: int) -> Link:
        cluster, is_push = self._cluster, target == SERVER
        own = None
        if not cluster.is_local(source, target):
            rate = cluster.nic_bandwidth(*(("out", cluster.host(source)) if is_push else ("in", cluster.host(target))))
            if not (rate == math.inf and (self._pipe_in if is_push else self._pipe_out).is_instant):
                own = OwnPipe(rate)
        return Link(cluster.latency(source, target), cluster.bandwidth(source, target), own)

    def next_s(self) -> float:
        """Return when something happens next."""
        event_s, in_s, out_s = self._events[0][0], self._pipe_in.end_s, self._pipe_out.end_s
        if event_s <= in_s and event_s <= out_s:
            return event_s
        return in_s if in_s < out_s else out_s

    def others_arrive(self, now_s: float, is_restart: bool) -> bool:
        """Return whether restarts arrive at ``now_s`` where these are models, or models where these are restarts."""
        arriving = [about for time_s, handle, about in self.soon if handle == self._receive_models and time_s <= now_s]
        return any(about[1] != is_restart for about in arriving)

    def _are_quiet_until(self, time_s: float) -> bool:
        """Return whether nothing else happens, and no step ends, up to ``time_s``."""
        return time_s < self._ends[0][0] and time_s < self.next_s()

    def proceed(self, now_s: float) -> None:
        """Let happen what happens at ``now_s``, which is ``next_s()``."""
        events = self._events
        if events[0][0] == now_s:
            _, _, handle, about = heapq.heappop(events)
            handle(now_s, *about)
            at_learners = self._at_learners  # the order of models at learners does not matter
            while events[0][0] == now_s and handle in at_learners and events[0][2] in at_learners:
                _, _, handle, about = heapq.heappop(events)
                handle(now_s, *about)
        elif self._pipe_in.end_s == now_s:
            left = self._pipe_in.leave()
            if len(left) > 1:
                raise Tie
            self._leave_nics(now_s, *left[0])
        else:
            while self._pipe_out.end_s == now_s and not self.soon:  # several ends may differ by less than a rounding
                for models in self._pipe_out.leave():
                    self._leave_server(now_s, models)

    def _at(self, time_s: float, now_s: float, handle: Callable[..., None], *about: object) -> None:
        """Call ``handle`` at ``time_s`` with that time and ``about``."""
        if time_s <= now_s:
            self.soon.append((now_s, handle, about))
        else:
            heapq.heappush(self._events, (time_s, next(self._sequence), handle, about))

    # Pushes.

    def push(self, now_s: float, rank: int, version: int, *, is_alone: bool) -> None:
        """Send a push. is_alone: nothing else happens now."""
        latency_s, bandwidth, own = self._up[rank]
        size_bytes, reached_s = self._sizes.push_bytes, now_s + latency_s
        arrival_s = reached_s + size_bytes / bandwidth
        if own is None:
            if is_alone and arrival_s <= now_s and not self.soon:
                self._receive_push(now_s, rank, version)
            else:
                self._at(arrival_s, now_s, self._receive_push, rank, version)
        elif (
            is_alone
            and own.end_s == self._pipe_in.end_s == NEVER
            and self._are_quiet_until(now_s + self._longest_push_s[rank])
        ):
            left_s, in_s = own.pass_alone(now_s, size_bytes), self._pipe_in.pass_alone(reached_s, size_bytes)
            self._receive_push(max(arrival_s, left_s + latency_s, in_s), rank, version)
        else:
            number = own.enter(now_s, size_bytes)
            self._at(reached_s, now_s, self._reach_server, rank, version, number, arrival_s)

    def _reach_server(self, now_s: float, rank: int, version: int, number: int, arrival_s: float) -> None:
        push = (rank, version, number, arrival_s)
        if self._pipe_in.is_instant:
            self._leave_nics(now_s, *push)
        else:
            self._pipe_in.enter(now_s, self._sizes.push_bytes, 1, push)

    def _leave_nics(self, now_s: float, rank: int, version: int, number: int, arrival_s: float) -> None:
        """Deliver a push that has left the server's NIC, when it has also left the learner's."""
        latency_s, _, own = self._up[rank]
        assert own is not None
        left_s = own.end_of(number, now_s)
        if left_s is None:
            self._at(own.end_s, now_s, self._leave_nics, rank, version, number, max(arrival_s, now_s))
            return
        self._at(max(arrival_s, left_s + latency_s, now_s), now_s, self._receive_push, rank, version)

    def exchange_alone(self, now_s: float, rank: int, *, is_answered: bool) -> tuple[float, float] | None:
        """Send a push and, if it is answered at once, a model back; return their arrivals.

        Return None, without effect, where another event comes before their end. No model is on its way.
        """
        (latency_s, bandwidth, own), sizes = self._up[rank], self._sizes
        until_s = now_s + self._longest_push_s[rank]
        if is_answered:
            until_s += self._longest_model_s + self._each_model_s
        if own is None or own.end_s < NEVER or self._pipe_in.end_s < NEVER or not self._are_remote or self.soon:
            return None
        if not self._are_quiet_until(until_s):
            return None
        reached_s = now_s + latency_s
        left_s, in_s = own.pass_alone(now_s, sizes.push_bytes), self._pipe_in.pass_alone(reached_s, sizes.push_bytes)
        arrived_s = max(reached_s + sizes.push_bytes / bandwidth, left_s + latency_s, in_s)
        if not is_answered:
            return arrived_s, arrived_s
        latency_s, bandwidth, own = self._down[rank]
        assert own is not None
        reached_s = arrived_s + latency_s
        left_s, in_s = (
            self._pipe_out.pass_alone(arrived_s, sizes.model_bytes),
            own.pass_alone(reached_s, sizes.model_bytes),
        )
        return arrived_s, max(reached_s + sizes.model_bytes / bandwidth, left_s + latency_s, in_s)

    # Models.

    def send_one(self, now_s: float, version: int, rank: int, *, is_alone: bool) -> None:
        """Send a model to one learner. is_alone: nothing else happens now, and no other model is on its way."""
        latency_s, bandwidth, own = self._down[rank]
        size_bytes, reached_s = self._sizes.model_bytes, now_s + latency_s
        arrival_s = reached_s + size_bytes / bandwidth
        if own is None:
            self._note_arrival(rank, arrival_s)
        elif is_alone and self._are_quiet_until(now_s + self._longest_model_s + self._each_model_s):
            left_s, in_s = self._pipe_out.pass_alone(now_s, size_bytes), own.pass_alone(reached_s, size_bytes)
            arrival_s = max(arrival_s, left_s + latency_s, in_s)
            if not self.soon:
                self.soon.append((arrival_s, self._receive_models, (version, False, [rank])))
                return
        else:
            self._enter(now_s, Models(version, False, now_s, size_bytes, [rank], []))
            return
        self._at(arrival_s, now_s, self._receive_models, version, False, [rank])

    def send(self, now_s: float, version: int, models: list[int], restarts: list[int], *, is_alone: bool) -> None:
        """Send models to some learners and restarts to others. is_alone: as for ``send_one``."""
        sizes, count, pipe_out = self._sizes, len(models) + len(restarts), self._pipe_out
        is_alone = (
            is_alone
            and self._are_remote
            and self._are_quiet_until(now_s + self._longest_model_s + count * self._each_model_s)
        )
        if is_alone and count == len(models):
            self._pass_alone(pipe_out.pass_alone(now_s, sizes.model_bytes, count), now_s, version, False, models)
            return
        if is_alone and count == len(restarts):
            self._pass_alone(pipe_out.pass_alone(now_s, sizes.restart_bytes, count), now_s, version, True, restarts)
            return
        for ranks, size_bytes in ((models, sizes.model_bytes), (restarts, sizes.restart_bytes)):
            if ranks:
                group = Models(version, ranks is restarts, now_s, size_bytes, ranks, [])
                if is_alone and not pipe_out.is_instant:
                    pipe_out.enter(now_s, size_bytes, len(ranks), group)
                else:
                    self._enter(now_s, group)
        while is_alone and pipe_out.end_s < NEVER:
            left_s = pipe_out.end_s
            for group in pipe_out.leave():
                self._pass_alone(left_s, now_s, version, group.is_restart, group.ranks)

    def _pass_alone(self, left_s: float, sent_s: float, version: int, is_restart: bool, ranks: list[int]) -> None:
        """Deliver models that leave the server at ``left_s`` and find the learners' pipes empty."""
        size_bytes = self._sizes.restart_bytes if is_restart else self._sizes.model_bytes
        arrivals, down = dict[float, list[int]](), self._down
        for rank in ranks:
            latency_s, bandwidth, own = down[rank]
            reached_s = sent_s + latency_s
            in_s, out_s = own.pass_alone(reached_s, size_bytes), left_s + latency_s  # type: ignore[union-attr]
            arrival_s = reached_s + size_bytes / bandwidth
            if arrival_s < out_s:
                arrival_s = out_s
            if arrival_s < in_s:
                arrival_s = in_s
            if arrival_s in arrivals:
                arrivals[arrival_s].append(rank)
            else:
                arrivals[arrival_s] = [rank]
        is_first = len(arrivals) == 1 and not self.soon
        for arrival_s, some in arrivals.items():
            if is_first and arrival_s > sent_s:
                self.soon.append((arrival_s, self._receive_models, (version, is_restart, some)))
            else:
                self._at(arrival_s, sent_s, self._receive_models, version, is_restart, some)

    def _enter(self, now_s: float, models: Models) -> None:
        """Let models enter the NICs."""
        size_bytes, numbers, remote, arrivals = models.size_bytes, models.numbers, list[int](), dict[float, list[int]]()
        for rank in models.ranks:
            latency_s, bandwidth, own = self._down[rank]
            reached_s = now_s + latency_s
            if own is None:
                arrivals.setdefault(reached_s + size_bytes / bandwidth, []).append(rank)
            else:
                remote.append(rank)
                numbers.append(own.enter(reached_s, size_bytes))
        self._deliver(now_s, models, arrivals, [])
        if remote and self._pipe_out.is_instant:
            self._leave_server(now_s, models._replace(ranks=remote))
        elif remote:
            self._pipe_out.enter(now_s, size_bytes, len(remote), models._replace(ranks=remote))

    def _leave_server(self, now_s: float, models: Models) -> None:
        """Deliver models that have left the server's NIC, when they have also left the learners'."""
        _, _, sent_s, size_bytes, ranks, numbers = models
        down, leaving, held = self._down, self._leaving, Held()
        for rank, number in zip(ranks, numbers, strict=True):
            latency_s, bandwidth, _ = down[rank]
            if number != leaving[rank]:
                raise Tie  # it has overtaken an earlier one
            leaving[rank] += 1
            held.append((rank, number, max(sent_s + latency_s + size_bytes / bandwidth, now_s + latency_s)))
        self._leave_learners(now_s, models, held, is_ahead=True)

    def _leave_learners(self, now_s: float, models: Models, held: Held, is_ahead: bool = False) -> None:
        """Deliver models that have left the learners' NICs.

        is_ahead: whether to look one latency ahead; what enters by then has been sent.
        """
        arrivals, later = dict[float, list[int]](), Held()
        for rank, number, arrival_s in held:
            latency_s, _, own = self._down[rank]
            assert own is not None
            left_s = own.end_of(number, now_s + latency_s if is_ahead else now_s)
            if left_s is None:
                later.append((rank, number, arrival_s))
            else:
                arrivals.setdefault(max(arrival_s, left_s), []).append(rank)
        self._deliver(now_s, models, arrivals, later)

    def _deliver(self, now_s: float, models: Models, arrivals: dict[float, list[int]], held: Held) -> None:
        for arrival_s, ranks in arrivals.items():
            for rank in ranks:
                self._note_arrival(rank, arrival_s)
            self._at(arrival_s, now_s, self._receive_models, models.version, models.is_restart, ranks)
        ends = dict[float, Held]()
        for one in held:
            own = self._down[one[0]].own
            assert own is not None
            ends.setdefault(own.end_s, []).append(one)
        for end_s, some in ends.items():
            self._at(end_s, now_s, self._leave_learners, models, some)

    def _note_arrival(self, rank: int, arrival_s: float) -> None:
        """Note when a model arrives; raise ``Tie`` if a restart may have overtaken a model, which is larger."""
        if self._arrival_s[rank] >= arrival_s:
            raise Tie
        self._arrival_s[rank] = arrival_s


def _longest_s(link: Link, server_rate: float, size_bytes: int) -> float:
    """Return more than the time that a message takes if it shares no pipe."""
    rates = (link.bandwidth, server_rate, math.inf if link.own is None else link.own.bytes_per_s)
    return _MARGIN * (link.latency_s + sum(size_bytes / rate for rate in rates))
