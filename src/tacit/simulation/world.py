"""The simulated world of a workload: workers and perhaps a server as fibers, the engine, and evaluations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from tacit.simulation.cluster import Cluster
from tacit.simulation.endpoints import SimulatedServer
from tacit.simulation.engine import Engine, TimingEngine
from tacit.simulation.evaluation import Evaluator
from tacit.simulation.rows import RowOptimizer
from tacit.simulation.surroundings import Surroundings
from tacit.simulation.workers import SimulatedWorker
from tacit.strategies.strategy import Strategy
from tacit.workloads.workload import Problem, Token


class World(Surroundings):
    """Everything the simulation of a workload consists of. ``run`` lets it happen."""

    steps: int

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
        is_timing = isinstance(engine, TimingEngine)
        super().__init__(cluster, seed=seed, host=host, is_timing=is_timing, has_server=strategy.has_server)
        self.strategy, self.engine, self.evaluator, self.steps = strategy, engine, evaluator, steps
        self.cancels = strategy.cancels
        kind = type(strategy)
        self.calls_before = kind.before_step is not Strategy.before_step
        self.calls_after = kind.after_step is not Strategy.after_step
        self.calls_reported = kind.reported is not Strategy.reported
        # A step whose gradient no hook looks at is one wish; else gradient and update are two, with the hook between.
        self.queue_step = engine.compute_gradient if self.calls_before else self._advance_one
        self._samplers = None if problem is None or self.is_timing else problem.samplers
        self._server_model = server
        self.workers = [SimulatedWorker(self, rank) for rank in range(cluster.workers)]
        self.server = SimulatedServer(self) if self.has_server else None
        self.inhabit(self.workers, self.server)

    def settle(self) -> None:
        self.engine.settle()

    def lost(self, rank: int) -> None:
        self.evaluator.lost(rank)

    def _advance_one(self, rank: int, step: int, token: Token) -> None:
        self.engine.advance(rank, step, [token])

    # What endpoints need.

    def batches(self, rank: int) -> Callable[[int], list[Token]]:
        """Return what draws the worker's next mini-batches."""
        return (lambda count: [None] * count) if self._samplers is None else self._samplers[rank].take

    def shared_stream(self, rank: int) -> np.random.Generator:
        """Return the rank's own copy of the stream that all ranks share."""
        if ("shared", rank) not in self._streams:
            self._streams["shared", rank] = self.streams.numpy("shared")
        return self._streams["shared", rank]

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
