"""Base class of simulated worlds: agenda, trace, links, collectives and faults."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from tacit.cluster.cluster import Cluster
from tacit.cluster.faults import Crash, Join, Pause, Slow
from tacit.core.messages import Message
from tacit.core.network import SERVER, Envelope, shard_at
from tacit.core.randomness import Streams
from tacit.errors import Deadlock, PeerLost
from tacit.record.trace import Trace
from tacit.simulation.agenda import Agenda
from tacit.simulation.channels import Channel
from tacit.simulation.collectives import Collectives
from tacit.simulation.computing.compute_times import ComputeTimes
from tacit.simulation.computing.processor import Processor
from tacit.simulation.endpoints import Endpoint
from tacit.simulation.fibers import Stopped
from tacit.simulation.links import Fabric
from tacit.simulation.membership.collectives import MembersCollectives

if TYPE_CHECKING:
    from tacit.simulation.membership.members import Members


class BaseWorld(ABC):
    """A simulated world without its endpoints, which ``set_endpoints`` adds. ``run`` runs the simulation."""

    steps: int | None = None  # optimizer steps per worker, if known in advance

    members: Members | None = None  # of a run that continues without lost workers

    def __init__(
        self, cluster: Cluster, *, seed: int, host: str, is_timing: bool = False, has_server: bool = False
    ) -> None:
        self.cluster, self.seed, self.host, self.is_timing, self.has_server = cluster, seed, host, is_timing, has_server
        self.agenda, self.streams = Agenda(), Streams(seed)
        self.fabric = Fabric(cluster, self.agenda, self.streams)
        self._lost_at: dict[int, float] = {}
        self.channels: list[Channel] = []
        first = self.open_channel()
        self.trace, self.collectives = first.trace, first.collectives
        self._compute_times = [ComputeTimes(cluster, rank, self.streams) for rank in range(cluster.workers)]
        uses_nics = has_server or len({cluster.host(rank) for rank in range(cluster.workers)}) > 1
        if cluster.processor_s_per_byte and uses_nics:
            self.fabric.processors = [times.processor() for times in self._compute_times]
        self._streams: dict[tuple[str, int], np.random.Generator] = {}
        self._living, self._serving = cluster.workers, 0
        self._has_pauses = any(isinstance(fault, Pause) for fault in cluster.faults)

    def open_channel(self) -> Channel:
        """Return a channel for one more session."""
        trace = Trace()
        kind = Collectives if self.members is None else MembersCollectives
        collectives = kind(
            self.cluster.workers,
            self.agenda,
            self.fabric,
            trace,
            self.cluster.timeout_s,
            self.awake_from,
            self.is_timing,
        )
        for rank, at_s in self._lost_at.items():
            collectives.lose(rank, at_s)
        self.channels.append(Channel(len(self.channels), trace, collectives))
        return self.channels[-1]

    def set_endpoints(self, workers: Sequence[Endpoint], servers: Sequence[Endpoint] = ()) -> None:
        """Add the workers, by rank, and the server, by shard."""
        self._learners, self._serving, self._has_servers = workers, len(servers), bool(servers)
        self.channels[0].servers = list(servers)
        self.endpoints: list[Endpoint] = [*servers, *workers]

    @property
    def _servers(self) -> list[Endpoint]:
        return [server for channel in self.channels for server in channel.servers]

    def add_server(self, server: Endpoint, channel: Channel) -> None:
        """Add a server, or one more shard of it, during the run."""
        channel.servers.append(server)
        self._serving += 1
        self.has_server = self._has_servers = True
        self.endpoints.insert(0, server)
        self.agenda.at(self.agenda.now_s, server.fiber.resume)

    def run(self) -> None:
        """Run the events until all fibers have ended; with a server, until the server's fibers have ended."""
        late = {fault.rank: fault for fault in self.cluster.faults if isinstance(fault, Join)}
        for endpoint in self.endpoints:
            if endpoint.rank in late:
                self._absent(endpoint.rank)
            else:
                self.agenda.at(0.0, endpoint.fiber.resume)
        for fault in self.cluster.faults:
            self._plan_fault(fault)
        try:
            self.agenda.run(self._is_over)
            if self.agenda.is_stopped:
                return
            if not self._is_over():
                self._raise_deadlock()
            self.settle()
        finally:
            for endpoint in self.endpoints:
                if not endpoint.fiber.is_over:
                    endpoint.fiber.throw(Stopped())

    @abstractmethod
    def settle(self) -> None:
        """Run deferred operations after all fibers have ended."""

    def _is_over(self) -> bool:
        return self._serving == 0 if self._has_servers else self._living == 0

    def ended(self, endpoint: Endpoint) -> None:
        """Count a fiber that has ended, by return or by error."""
        if endpoint.rank >= 0:
            self._living -= 1
        else:
            self._serving -= 1

    def _raise_deadlock(self) -> None:
        waiting = [
            (endpoint.rank, endpoint.describe_wait(), endpoint.waiting[1])
            for endpoint in self.endpoints
            if endpoint.waiting is not None and not endpoint.fiber.is_over
        ]
        raise Deadlock(waiting, self.agenda.now_s, self.seed)

    # Interface of endpoints.

    def compute_times(self, rank: int) -> ComputeTimes:
        return self._compute_times[rank]

    def processor(self, rank: int) -> Processor | None:
        """Return the core of a rank that communication takes time of; None if it takes none."""
        return self.fabric.processors[rank] if self.fabric.processors else None

    def stream(self, purpose: str, rank: int) -> np.random.Generator:
        if (purpose, rank) not in self._streams:
            self._streams[purpose, rank] = self.streams.numpy(purpose, rank)
        return self._streams[purpose, rank]

    def send(self, sender: Endpoint, channel: Channel, to: int, message: Message) -> None:
        agenda, trace, source, size_bytes = self.agenda, channel.trace, sender.rank, message.size_bytes
        kind, session, is_alone = message.kind, channel.session, message.one_under_way
        now_s = agenda.now_s
        trace.pack_if_long()
        trace.send(source, to, now_s, size_bytes, kind)
        target = channel.servers[shard_at(to)] if to < 0 else self._learners[to]
        life, own_life, generation = target.life, sender.life, self.generation

        def delivered() -> None:
            if sender.life != own_life:  # a new worker has replaced the sender: its messages in flight are lost
                return
            if is_alone:
                sender.alone_under_way.discard(to)
            sender.sent_arrived()
            if target.life == life and not target.is_lost and self.generation == generation:
                trace.receive(to, source, agenda.now_s, size_bytes, kind)
                target.accept(Envelope(source, message, session))

        if self.fabric.transfer(source, to, size_bytes, delivered):
            sender.in_flight += 1
            if is_alone:
                sender.alone_under_way.add(to)

    @property
    def members_change(self) -> bool:
        """Whether the members have to agree on who takes part."""
        return self.members is not None and self.members.is_changing

    @property
    def generation(self) -> int:
        """The number of the generation of members; messages to an earlier one are dropped."""
        return 1 if self.members is None else self.members.generation

    def interrupt(self) -> None:
        """Let all members that wait for others come to the door."""
        for channel in self.channels:
            channel.collectives.interrupt()
        for endpoint in self.endpoints:
            if not endpoint.fiber.is_over:
                endpoint.interrupt()

    def awake_from(self, ranks: Sequence[int]) -> float:
        """Return the earliest time from now on at which none of ``ranks`` is paused."""
        now_s = self.agenda.now_s
        return max(self._compute_times[rank].awake_from(now_s) for rank in ranks) if self._has_pauses else now_s

    def lost_at(self, rank: int) -> float | None:
        return self._lost_at.get(rank)

    # Faults.

    def _plan_fault(self, fault: object) -> None:
        match fault:
            case Crash(rank=rank, at_s=at_s, for_s=for_s):
                self.agenda.at(at_s, lambda: self._crash(rank) if rank >= 0 else self._crash_server())
                if for_s < float("inf"):
                    self.agenda.at(at_s + for_s, lambda: self._return(rank, "return"))
            case Join(rank=rank, at_s=at_s):
                self.agenda.at(at_s, lambda: self._return(rank, "join"))
            case Pause(rank=rank, at_s=at_s, for_s=for_s) | Slow(rank=rank, at_s=at_s, for_s=for_s):
                end_s = at_s + for_s if at_s + for_s < float("inf") else at_s
                self.agenda.at(at_s, lambda: self._record_fault(rank, at_s, end_s, str(fault)))

    def record_wait_at_door(self, rank: int, since_s: float) -> None:
        """Add the time in which a joiner waited to be let in."""
        self._record_fault(rank, since_s, self.agenda.now_s, "at the door")

    def _record_fault(self, rank: int, start_s: float, end_s: float, label: str) -> None:
        """Add a fault to the trace of every session."""
        for channel in self.channels:
            channel.trace.fault(rank, start_s, end_s, label)

    def _crash(self, rank: int) -> None:
        worker, now_s = self._learners[rank], self.agenda.now_s
        if self.members is not None and self.members.forget_joiner(rank):
            self._record_fault(rank, now_s, now_s, "crash")
            return
        if worker.fiber.is_over:
            return
        self._record_fault(rank, now_s, now_s, "crash")
        worker.is_lost = True
        self._lost_at[rank] = now_s
        worker.fiber.throw(Stopped())
        self.lost(rank)
        for channel in self.channels:
            channel.collectives.lose(rank, now_s)
        for endpoint in self.endpoints:
            if not endpoint.fiber.is_over:
                endpoint.peer_lost(rank) if self.members is None else endpoint.interrupt()
        if self.members is None and not self._has_servers and all(learner.is_lost for learner in self._learners):
            self._raise_no_worker_left(rank)

    def _raise_no_worker_left(self, rank: int) -> NoReturn:
        """Raise after the loss of the last worker: nobody waits for it, so the run would end without a word."""
        now_s = self.agenda.now_s
        late = {fault.rank for fault in self.cluster.faults if isinstance(fault, Join) and fault.at_s > now_s}
        crashed = sorted(self._lost_at.keys() - late)
        raise PeerLost(rank, now_s, "the run", "remove a fault.", need="needs a worker", ranks=crashed)

    def _absent(self, rank: int) -> None:
        """Mark a worker that joins later as lost."""
        self._learners[rank].is_lost = True
        self._lost_at[rank] = 0.0
        self._living -= 1
        self.lost(rank)
        for channel in self.channels:
            channel.collectives.lose(rank, 0.0)
        for server in self._servers:
            server.peer_lost(rank)

    def _return(self, rank: int, what: str) -> None:
        """Start a new worker in the place of one that was lost or has not joined yet."""
        worker, now_s = self._learners[rank], self.agenda.now_s
        if not worker.is_lost or self._is_over() or self.is_ending():
            return
        self._record_fault(rank, now_s, now_s, what)
        if self.members is not None:
            self.members.wait(rank)
            return
        self._live_again(rank)
        for channel in self.channels:
            channel.collectives.readmit(rank)
        self.returned(rank)
        worker.fiber.resume()

    def _live_again(self, rank: int) -> None:
        """Count a worker among the living, and give it a new life, which has not started yet."""
        del self._lost_at[rank]
        self._living += 1
        self._learners[rank].live_again()

    def _crash_server(self) -> None:
        if self._servers:
            now_s = self.agenda.now_s
            self._record_fault(SERVER, now_s, now_s, "crash")
            raise PeerLost(
                SERVER,
                now_s,
                "the run",
                "remove the fault, or continue with simulate(…, start=error.run).",
                need="needs it",
            )

    @abstractmethod
    def lost(self, rank: int) -> None:
        """Note that a worker has crashed, before the workers that wait for it are informed."""

    def is_ending(self) -> bool:
        """Whether it is too late to join: all workers have taken their last step."""
        return False

    @abstractmethod
    def returned(self, rank: int) -> None:
        """Prepare the state of a new worker that replaces a lost one."""
