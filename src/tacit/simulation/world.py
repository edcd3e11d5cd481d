"""The simulated world: workers and perhaps a server as fibers, one agenda, one trace, and what is done about faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from tacit.errors import Deadlock
from tacit.faults import Crash, Pause, Slow
from tacit.messages import Message
from tacit.network import SERVER
from tacit.randomness import Streams
from tacit.simulation.agenda import Agenda
from tacit.simulation.cluster import Cluster
from tacit.simulation.endpoints import Endpoint, SimulatedServer
from tacit.simulation.engine import Engine, TimingEngine
from tacit.simulation.evaluation import Evaluator
from tacit.simulation.fibers import Stopped
from tacit.simulation.links import Fabric
from tacit.simulation.meetings import Meetings
from tacit.simulation.paces import Pace
from tacit.simulation.rows import RowOptimizer
from tacit.simulation.workers import SimulatedWorker
from tacit.strategies.strategy import Strategy
from tacit.trace import FAULT, RECEIVE, SEND, Trace
from tacit.workloads.workload import Problem, Token


class World:
    """Everything one simulation consists of. ``run`` lets it happen."""

    def __init__(
        self,
        strategy: Strategy[object],
        cluster: Cluster,
        problem: Problem | None,
        engine: Engine | TimingEngine,
        evaluator: Evaluator,
        *,
        steps: int,
        seed: int,
        host: str,
        server: tuple[Tensor, RowOptimizer] | None = None,
    ) -> None:
        self.strategy, self.cluster, self.engine, self.evaluator = strategy, cluster, engine, evaluator
        self.steps, self.seed, self.host = steps, seed, host
        self.is_timing = isinstance(engine, TimingEngine)
        self.trace, self.agenda, self.streams = Trace(), Agenda(), Streams(seed)
        self.fabric = Fabric(cluster, self.agenda, self.streams)
        self.meetings = Meetings(
            cluster.workers, self.agenda, self.fabric, self.trace, cluster.timeout_s, self._awake_from, self.is_timing
        )
        self.has_server, self.cancels = strategy.has_server, strategy.cancels
        kind = type(strategy)
        self.calls_before = kind.before_step is not Strategy.before_step
        self.calls_after = kind.after_step is not Strategy.after_step
        self.calls_reported = kind.reported is not Strategy.reported
        # A step whose gradient no hook looks at is one wish; else gradient and update are two, with the hook between.
        self.queue_step = engine.compute_gradient if self.calls_before else self._advance_one
        self._samplers = None if problem is None or self.is_timing else problem.samplers
        self._streams: dict[tuple[str, int], np.random.Generator] = {}
        self._lost_at: dict[int, float] = {}
        self._living = cluster.workers
        self._has_pauses = any(isinstance(fault, Pause) for fault in cluster.faults)
        self._server_model = server
        self.workers = [SimulatedWorker(self, rank) for rank in range(cluster.workers)]
        self.server = SimulatedServer(self) if self.has_server else None
        self.endpoints: list[Endpoint] = [*([self.server] if self.server else []), *self.workers]

    def run(self) -> None:
        """Let everything happen until all fibers (with a server: its own) are over."""
        for endpoint in self.endpoints:
            self.agenda.at(0.0, endpoint.fiber.resume)
        for fault in self.cluster.faults:
            self._plan_fault(fault)
        try:
            self.agenda.run(self._is_over)
            if not self._is_over():
                self._raise_deadlock()
            self.engine.settle()
        finally:
            for endpoint in self.endpoints:
                if not endpoint.fiber.is_over:
                    endpoint.fiber.throw(Stopped())

    def _is_over(self) -> bool:
        if self.server is not None:
            return self.server.fiber.is_over
        return self._living == 0

    def ended(self, endpoint: Endpoint) -> None:
        """A fiber has come to its end, whichever way."""
        self._living -= endpoint.rank != SERVER

    def _raise_deadlock(self) -> None:
        parked = [(e.rank, e.waiting) for e in self.endpoints if e.waiting is not None and not e.fiber.is_over]
        waiting = [(rank, str(what), since_s) for rank, (what, since_s) in parked]
        raise Deadlock(waiting, self.agenda.now_s, self.seed)

    def _advance_one(self, rank: int, step: int, token: Token) -> None:
        self.engine.advance(rank, step, [token])

    # What endpoints need.

    def pace(self, rank: int) -> Pace:
        return Pace(self.cluster, rank, self.streams)

    def batches(self, rank: int) -> Callable[[int], list[Token]]:
        """Return what draws the worker's next mini-batches."""
        return (lambda count: [None] * count) if self._samplers is None else self._samplers[rank].take

    def stream(self, purpose: str, rank: int) -> np.random.Generator:
        if (purpose, rank) not in self._streams:
            self._streams[purpose, rank] = self.streams.numpy(purpose, rank)
        return self._streams[purpose, rank]

    def shared_stream(self, rank: int) -> np.random.Generator:
        """Return the rank's own copy of the stream that all ranks share."""
        if ("shared", rank) not in self._streams:
            self._streams["shared", rank] = self.streams.numpy("shared")
        return self._streams["shared", rank]

    def send(self, sender: Endpoint, to: int, message: Message) -> None:
        now_s, size_bytes = self.agenda.now_s, message.size_bytes
        self.trace.pack_if_long()
        self.trace.record(SEND, sender.rank, now_s, now_s, peer=to, size_bytes=size_bytes, label=message.kind)
        target = self.server if to == SERVER else self.workers[to]
        assert target is not None

        def delivered() -> None:
            sender.sent_arrived()
            target.deliver(sender.rank, message)

        if self.fabric.transfer(sender.rank, to, size_bytes, delivered):
            sender.in_flight += 1

    def record_receive(self, rank: int, source: int, message: Message) -> None:
        now_s = self.agenda.now_s
        self.trace.record(RECEIVE, rank, now_s, now_s, peer=source, size_bytes=message.size_bytes, label=message.kind)

    def _awake_from(self, ranks: Sequence[int]) -> float:
        """Return the first moment from now at which none of ``ranks`` is paused."""
        now_s = self.agenda.now_s
        return max(self.workers[rank].pace.awake_from(now_s) for rank in ranks) if self._has_pauses else now_s

    def lost_at(self, rank: int) -> float | None:
        return self._lost_at.get(rank)

    # The server's model.

    def server_model(self) -> Tensor:
        assert self._server_model is not None
        return self._server_model[0][0]

    def update_server(self, gradient: Tensor, learning_rate: float | None, updates: int) -> None:
        assert self._server_model is not None
        matrix, optimizer = self._server_model
        if not self.is_timing:
            assert isinstance(self.engine, Engine)
            factor = None if learning_rate is None else learning_rate / optimizer.base_rate
            optimizer.step([0], [updates - 1], self.engine.layout.split(gradient.unsqueeze(0)), factor)
        if self.evaluator.is_due(updates):
            self.evaluator.measure(updates, self.agenda.now_s, matrix[0])

    # Faults.

    def _plan_fault(self, fault: object) -> None:
        match fault:
            case Crash(rank=rank, at_s=at_s):
                self.agenda.at(at_s, lambda: self._crash(rank))
            case Pause(rank=rank, at_s=at_s, for_s=for_s) | Slow(rank=rank, at_s=at_s, for_s=for_s):
                end_s = at_s + for_s if at_s + for_s < float("inf") else at_s
                self.agenda.at(at_s, lambda: self.trace.record(FAULT, rank, at_s, end_s, label=str(fault)))

    def _crash(self, rank: int) -> None:
        worker, now_s = self.workers[rank], self.agenda.now_s
        if worker.fiber.is_over:
            return
        self.trace.record(FAULT, rank, now_s, now_s, label="crash")
        worker.is_lost = True
        self._lost_at[rank] = now_s
        worker.fiber.throw(Stopped())
        self.evaluator.lost(rank)
        self.meetings.lose(rank, now_s)
        for endpoint in self.endpoints:
            if not endpoint.fiber.is_over:
                endpoint.peer_lost(rank)
