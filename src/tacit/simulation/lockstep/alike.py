"""Strategies whose ranks act alike: the hooks of worker 0 run for all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from torch import Tensor

from tacit.core.network import Parts
from tacit.core.strategy import RunsAhead
from tacit.errors import MisplacedCall
from tacit.simulation.engine.engine import Engine
from tacit.simulation.engine.means import Given, equal_means
from tacit.simulation.lockstep.loop import Lockstep, LockstepWorker
from tacit.simulation.world import World

_FARTHEST_AHEAD: Final = 256  # steps computed at once


def acts_alike(world: World) -> bool:
    """Return whether the hooks of worker 0 can run for all."""
    strategy, engine = world.strategy, world.engine
    if not isinstance(strategy, RunsAhead) or "ranks_act_alike" not in vars(type(strategy)):
        return False
    weights = {engine.weight(rank) for rank in range(world.cluster.workers)}
    return strategy.ranks_act_alike and world.acts_after_steps and len(weights) == 1


class ActingAlike(Lockstep):
    """The loop over the steps of all workers, and the hooks after steps of worker 0."""

    announced = "ranks_act_alike is True"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._leader = LockstepWorker(self, 0, all_reduce_mean=self._all_reduce_mean)

    def run(self) -> None:
        world, strategy, leader = self._world, self._world.strategy, self._leader
        assert isinstance(strategy, RunsAhead)
        state = strategy.init(leader)
        step = 0
        while step < world.steps:
            left = world.steps - step
            hook_free = min(strategy.hook_free_steps(leader, state), left)
            ahead = min(hook_free, _FARTHEST_AHEAD)
            has_hooks = ahead == hook_free < left
            self._advance(step, ahead, has_hooks)
            step += ahead + has_hooks
            leader.begin(step)
            if has_hooks:
                self._after_step(state, step)
        strategy.finish(leader, state)
        world.agenda.now_s = float(self._now_s.max())

    def _advance(self, first: int, ahead: int, has_hooks: bool) -> None:
        """Take the hook-free steps of all workers and one step with hooks; evaluate after hook-free ones."""
        engine, evaluator, steps = self._world.engine, self._evaluator, ahead + has_hooks
        times_s = self._times.of_steps(self._now_s, steps)
        tokens, done = self._batches.take(steps), 0
        self._trace.pack_if_long()
        self._trace.record_steps_of_all(first + 1, times_s)
        self._world.agenda.now_s = float(times_s[:, -1].min())  # when the first hook would use a result
        for due in evaluator.due_between(first + 1, first + ahead):
            engine.advance_all(first + done, [own[done : due - first] for own in tokens])
            done = due - first
            evaluator.reached_by_all(due, times_s[:, done])
            self._snapshot(due, before=True, after=True)
        engine.advance_all(first + done, [own[done:] for own in tokens] if done else tokens)
        self._now_s = times_s[:, -1].copy()
        self._world.agenda.now_s = float(self._now_s[0])

    def _after_step(self, state: Any, step: int) -> None:
        """Run the hook of the leader after ``step``."""
        evaluator = self._evaluator
        is_due = evaluator.is_due(step)
        if is_due:
            self._snapshot(step, before=True, after=False)
        self._world.strategy.after_step(self._leader, state)
        if is_due:
            evaluator.reached_by_all(step, self._now_s)
            self._snapshot(step, before=False, after=True)

    def _snapshot(self, step: int, *, before: bool, after: bool) -> None:
        if isinstance(self._world.engine, Engine):
            self._evaluator.take_all(step, self._world.engine.matrix, before=before, after=after)

    def _all_reduce_mean(
        self,
        parts: Parts,
        weight: float = 1.0,
        *,
        group: Sequence[int] | None = None,
        into: Tensor | None = None,
        extra_state: bool = True,
    ) -> Tensor:
        """Average over all workers, and let the time of the exchange pass; return the means of the numbers."""
        if group is not None:
            raise MisplacedCall(f"{self.announced}, but a hook averages over group={group}; return False.")
        world, given = self._world, Given(parts, into)
        numbers = given.elements if world.cluster.costs and self._workers > 1 else 0  # one worker copies nothing
        if numbers:
            self.spend("flatten", numbers)
        elements = given.elements + 1  # with the weight
        ranks, element_bytes = world.collectives.all_ranks, given.tensor.element_size()
        self._exchange("all-reduce", world.fabric.price_all_reduce(ranks, elements, element_bytes))
        matrix = world.engine.matrix if isinstance(world.engine, Engine) else None
        if given.into is not given.tensor or given.tensor is not world.engine.row(0):
            raise MisplacedCall(f"{self.announced}, but a hook does not average the parameters into themselves.")
        means = equal_means(given, weight, self._workers, matrix)
        if numbers:
            self.spend("divide", numbers)
        return means
