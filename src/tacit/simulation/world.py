"""The simulated world of a workload: workers and an optional server as fibers, the engine, and evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from tacit.cluster.cluster import Cluster
from tacit.cluster.faults import Join
from tacit.core.strategy import RunsAhead, Strategy
from tacit.session.server_model import ServerModel
from tacit.simulation.base_world import BaseWorld
from tacit.simulation.computing.backward_overlap import BackwardOverlap, mean_step_s
from tacit.simulation.endpoints import SimulatedServer
from tacit.simulation.engine.engine import Engine
from tacit.simulation.engine.moments import Moments
from tacit.simulation.engine.timing_engine import TimingEngine
from tacit.simulation.evaluation import Evaluator
from tacit.simulation.evaluation.timed import TimedEvaluator
from tacit.simulation.membership.collectives import MembersCollectives
from tacit.simulation.membership.joiners import Everything
from tacit.simulation.membership.members import Members
from tacit.simulation.workers import SimulatedWorker
from tacit.strategies.ddp import DDP
from tacit.workloads.workload import Problem, Token


class World(BaseWorld):
    """The simulation of a workload."""

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
        servers: Sequence[ServerModel] = (),
        server_model: Tensor | None = None,
        moments: Moments | None = None,
    ) -> None:
        is_timing = isinstance(engine, TimingEngine)
        if cluster.fewest_workers < cluster.workers and strategy.regroups:
            late = {fault.rank for fault in cluster.faults if isinstance(fault, Join)}
            self.members = Members(self, cluster, strategy, [r for r in range(cluster.workers) if r not in late])
        super().__init__(cluster, seed=seed, host=host, is_timing=is_timing, has_server=strategy.has_server)
        self.strategy, self.engine, self.evaluator, self.steps = strategy, engine, evaluator, steps
        self.cancels, self.moments = strategy.cancels, moments
        self.collectives.skips_lost = strategy.skips_lost_workers and self.members is None
        if isinstance(self.collectives, MembersCollectives) and self.members is not None:
            self.collectives.members_of_run = self.members
        self.collectives.find_matrix = None if isinstance(engine, TimingEngine) else engine.matrix_of
        if isinstance(strategy, DDP):
            self.collectives.overlap = BackwardOverlap(strategy, engine.layout, partial(mean_step_s, cluster))
        evaluator.evaluates_each_worker = strategy.keeps_models_apart
        kind = type(strategy)
        self.calls_before = kind.before_step is not Strategy.before_step
        self.calls_after = kind.after_step is not Strategy.after_step
        self.calls_reported = kind.reported is not Strategy.reported
        # Without a hook that uses the gradient, a step is one operation; else gradient and update are two.
        self.queue_step = engine.compute_gradient if self.calls_before else self._advance_one
        # Steps whose only hook follows them, and which nothing abandons, are queued and recorded when they start.
        self.acts_after_steps = not (self.calls_before or self.cancels or self.has_server)
        self.queues_periods = self.acts_after_steps
        self.hook_free_steps = strategy.hook_free_steps if isinstance(strategy, RunsAhead) else _none
        if self.fabric.processors:  # a transfer that begins during a step lengthens it
            self.queues_periods, self.hook_free_steps = False, _none
        self.untouched_steps = strategy.untouched_steps if isinstance(strategy, RunsAhead) else _none
        # Steps that are queued in the engine ahead of an evaluation at a time would be part of it.
        self.holds_steps = isinstance(evaluator, TimedEvaluator) and not (self.is_timing or self.has_server)
        self.holds_steps &= not self.fabric.processors
        # Whether steps may be queued behind a hook that has not run yet.
        self.queues_past_hooks = (
            isinstance(strategy, RunsAhead) and type(strategy).untouched_steps is not RunsAhead.untouched_steps
        )
        self.rate_of = (-1, 0.0)  # the step that was asked for last, and its learning rate
        self.samplers = None if problem is None or self.is_timing else problem.samplers
        self.server_model = server_model
        self.workers = [self.make_worker(rank) for rank in range(cluster.workers)]
        self.servers = [self.make_server(shard, model) for shard, model in enumerate(servers)]
        self.set_endpoints(self.workers, self.servers)
        self.is_resumed = False  # whether the run continues another run: workers then join
        self._plan_observations()

    def _plan_observations(self) -> None:
        """Let the agenda call evaluations at times, and the test whether the run has reached its target."""
        agenda, evaluator = self.agenda, self.evaluator
        if evaluator.until_loss is not None:
            agenda.allow_observations()
            evaluator.on_arrival = lambda time_s: agenda.observe(time_s, self._stop_at_target)
        if isinstance(evaluator, TimedEvaluator):
            agenda.allow_observations()
            agenda.observe(evaluator.next_s, self._observe)

    def _stop_at_target(self) -> None:
        """Compute the models of steps that all workers have completed; end the run if one reaches the target."""
        self.engine.settle()
        target = self.evaluator.target
        if target is not None and target.time_s <= self.agenda.now_s:  # a later one may be computed ahead
            self.agenda.stop()

    def _observe(self) -> None:
        """Evaluate the model of this moment, and let steps be queued that end before the next evaluation."""
        evaluator = self.evaluator
        assert isinstance(evaluator, TimedEvaluator)
        evaluator.observe(self)
        if evaluator.target is not None:
            self.agenda.stop()
            return
        self.agenda.observe(evaluator.next_s, self._observe)
        for worker in self.workers if self.holds_steps else ():
            worker.release_steps(evaluator.next_s)

    @property
    def next_evaluation_s(self) -> float:
        """The time of the next evaluation at a time."""
        return self.evaluator.next_s if isinstance(self.evaluator, TimedEvaluator) else math.inf

    def make_worker(self, rank: int) -> SimulatedWorker:
        return SimulatedWorker(self, rank)

    def make_server(self, shard: int, model: ServerModel) -> SimulatedServer:
        return SimulatedServer(self, shard, model)

    def resume(self, kept: Sequence[dict[str, Any]]) -> None:
        """Let the server continue from its stored state, by shard."""
        self.is_resumed = True
        for server, own in zip(self.servers, kept, strict=True):
            server.restore(own)

    def settle(self) -> None:
        self.engine.settle()

    def lost(self, rank: int) -> None:
        self.workers[rank].release_steps()
        self.evaluator.lost(rank)
        if self.members is not None:
            self.members.lose(rank)

    def is_ending(self) -> bool:
        alive = [worker for worker in self.workers if not worker.is_lost]
        return not self.has_server and bool(alive) and all(worker.progress() >= self.steps for worker in alive)

    def returned(self, rank: int) -> None:
        """Let a new worker start at the step of the slowest worker, with the initial model."""
        others = [worker.progress() for worker in self.workers if worker.rank != rank and not worker.is_lost]
        self.workers[rank].step = min(others, default=self.workers[rank].step)
        self.engine.reset(rank)
        self.evaluator.returned(rank, self.workers[rank].step)

    def let_in(self, rank: int, everything: Everything) -> None:
        """Give a joiner everything that a member has; its fiber starts when it is resumed."""
        worker, donor = self.workers[rank], everything.donor.rank
        self.engine.settle()
        self._live_again(rank)
        self.channels[0].collectives.let_in(rank, donor)
        everything.give(worker)
        self.evaluator.returned(rank, worker.step)

    def _advance_one(self, rank: int, step: int, token: Token) -> None:
        self.engine.advance(rank, step, [token])

    # Interface of endpoints.

    def learning_rate(self, step: int) -> float:
        """Return the learning rate at ``step``, and keep it in ``rate_of``."""
        rate = self.engine.learning_rate(step)
        self.rate_of = (step, rate)
        return rate

    def batches(self, rank: int) -> Callable[[int], list[Token]]:
        """Return a function that draws the worker's next mini-batches."""
        return (lambda count: [None] * count) if self.samplers is None else self.samplers[rank].take

    def shared_stream(self, rank: int) -> np.random.Generator:
        """Return the rank's copy of the random stream that is equal on all ranks."""
        if ("shared", rank) not in self._streams:
            self._streams["shared", rank] = self.streams.numpy("shared")
        return self._streams["shared", rank]

    def set_shared_stream(self, rank: int, stream: np.random.Generator) -> None:
        """Let the rank continue with the shared random numbers of another one."""
        self._streams["shared", rank] = stream

    def updated(self, server: SimulatedServer) -> None:
        """Evaluate the model after an update of the server, or of its first shard, if that is due."""
        if self.evaluator.is_due(server.updates):
            assert self.server_model is not None
            self.evaluator.measure(server.updates, self.agenda.now_s, self.server_model)
            if self.evaluator.target is not None and server.updates < self.steps:
                self.agenda.observe(self.agenda.now_s, self.agenda.stop)  # after the replies of this moment


def _none(worker: SimulatedWorker, state: Any) -> int:
    """Return the number of hook-free steps of a strategy that does not know them."""
    return 0
