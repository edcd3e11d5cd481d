"""Strategies that run the hook before a step of all ranks in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from tacit.core.network import Gathered, MessageType
from tacit.core.strategy import ActsForAll, Strategy
from tacit.errors import RunError
from tacit.simulation.engine.engine import Engine
from tacit.simulation.lockstep.columns import Seconds
from tacit.simulation.lockstep.loop import Lockstep, LockstepWorker
from tacit.simulation.world import World
from tacit.workloads.workload import Tokens


def acts_together(world: World) -> bool:
    """Return whether ``before_step`` is the only hook of all ranks, and can be one call."""
    strategy = world.strategy
    if not isinstance(strategy, ActsForAll) or "before_step_of_all" not in vars(type(strategy)):
        return False
    if world.is_timing or world.has_server or world.cancels or world.calls_after or world.calls_reported:
        return False
    if world.fabric.processors or strategy.handles or type(strategy).finish is not Strategy.finish:
        return False
    return strategy.acts_for_all(world.workers[0])


class ActingTogether(Lockstep):
    """The loop over the steps of all workers; ``AllWorkers`` of the hook."""

    announced = "acts_for_all(…) is True"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        assert isinstance(world.engine, Engine)
        self._engine = world.engine
        self.workers = [LockstepWorker(self, rank) for rank in range(self._workers)]

    def run(self) -> None:
        """Run all steps, each with a hook."""
        world, engine, strategy, evaluator = self._world, self._engine, self._world.strategy, self._evaluator
        assert isinstance(strategy, ActsForAll)
        states = [strategy.init(worker) for worker in self.workers]
        for step in range(world.steps):
            self._compute(step)
            strategy.before_step_of_all(self, states)
            engine.update_all(step)
            if evaluator.is_due(step + 1):
                evaluator.reached_by_all(step + 1, self._now_s)
                evaluator.take_all(step + 1, engine.matrix, before=True, after=True)
        engine.settle()
        world.agenda.now_s = float(self._now_s.max())

    def _compute(self, step: int) -> None:
        """Let the time of one step of all workers pass, and compute their gradients."""
        times_s, agenda = self._times.of_steps(self._now_s, 1), self._world.agenda
        self._trace.pack_if_long()
        agenda.now_s = float(times_s[:, 1].min())  # when the first hook uses its gradient
        self._compute_gradients(step, times_s, self._batches.take(1))
        self._trace.record_steps_of_all(step + 1, times_s)
        self._now_s = times_s[:, 1].copy()
        agenda.now_s = float(self._now_s[0])
        for worker in self.workers:
            worker.begin_hook(step)

    def _compute_gradients(self, step: int, times_s: Seconds, tokens: Sequence[Tokens]) -> None:
        try:
            self._engine.compute_gradients(step, tokens)
        except RunError:  # in the hook of the first worker that has ended its step
            first = int(np.argmin(times_s[:, 1]))
            self._trace.compute(first, step + 1, *times_s[first].tolist())
            raise

    # Interface of hooks of all workers.

    @property
    def gradients(self) -> Tensor:
        return self._engine.gradients

    def all_gather(self, make: Callable[[], Sequence[MessageType]]) -> Gathered[MessageType]:
        """Let the time of the exchange pass; return the messages, which are made when the last worker has joined."""
        self._world.agenda.now_s = float(self._now_s.max())
        messages = Gathered(make())
        sizes_bytes = [message.size_bytes for message in messages]
        price = self._world.fabric.price_all_gather(self._world.collectives.all_ranks, sizes_bytes)
        self._exchange("all-gather", price)
        return messages
