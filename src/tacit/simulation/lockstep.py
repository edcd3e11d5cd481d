"""Runs of strategies whose ranks act alike: the hooks of worker 0 run for all workers, without fibers.

Workers differ in their compute times, mini-batches and parameters. Compute times are one matrix, mini-batches are
drawn for many steps at once, parameters are the engine's matrix. An all-reduce starts when the last worker is there, as
in ``collectives``. Results and traces are those of fibers: the same operations in the same order for each worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.cluster.costs import cost_s
from tacit.core.network import Parts
from tacit.core.strategy import RunsAhead
from tacit.errors import MisplacedCall
from tacit.record.trace import HOOK
from tacit.simulation.agenda import rare_collections
from tacit.simulation.computing.compute_times import ComputeTimes
from tacit.simulation.engine.engine import Engine
from tacit.simulation.engine.means import Given, equal_means
from tacit.simulation.evaluation.timed import TimedEvaluator
from tacit.simulation.workers import SimulatedWorker
from tacit.simulation.world import World
from tacit.workloads.workload import Sampler, Tokens

Seconds = NDArray[np.float64]
_FARTHEST_AHEAD: Final = 256  # steps computed at once
_SAMPLES_DRAWN: Final = 2**19  # of all workers' mini-batches at once, about


def run_lockstep(world: World) -> bool:
    """Run the world without fibers, if its ranks act alike; return whether it has run."""
    strategy, engine, evaluator = world.strategy, world.engine, world.evaluator
    if not isinstance(strategy, RunsAhead) or "ranks_act_alike" not in vars(type(strategy)):
        return False
    if not strategy.ranks_act_alike:
        return False
    if type(world) is not World or world.cluster.faults or not world.acts_after_steps or world.moments is not None:
        return False
    if evaluator.until_loss is not None or isinstance(evaluator, TimedEvaluator):
        return False
    if len({engine.weight(rank) for rank in range(world.cluster.workers)}) > 1:
        return False
    with rare_collections(), torch.no_grad():
        _Lockstep(world).run()
    return True


class _Leader(SimulatedWorker):
    """Worker 0, which acts for all workers."""

    lockstep: _Lockstep

    def spend(self, what: str, numbers: int) -> None:
        self.lockstep.spend(what, numbers)

    def block(self, what: object) -> None:
        raise MisplacedCall(
            f"{self.world.strategy}: ranks_act_alike is True, but a hook waits for {what}; return False."
        )

    def begin(self, step: int) -> None:
        """Refer to the worker after its step number ``step``."""
        self.step, self._current = step, max(0, step - 1)


class _LockstepNetwork:
    """The network of the leader: all-reduces of all workers."""

    def __init__(self, lockstep: _Lockstep, size: int) -> None:
        self._lockstep, self.rank, self.size = lockstep, 0, size

    def all_reduce_mean(
        self,
        parts: Parts,
        weight: float = 1.0,
        *,
        group: Sequence[int] | None = None,
        into: Tensor | None = None,
        extra_state: bool = True,
    ) -> Tensor:
        if group is not None:
            raise MisplacedCall(f"ranks_act_alike is True, but a hook averages over group={group}; return False.")
        return self._lockstep.all_reduce(Given(parts, into), weight)

    def __getattr__(self, name: str) -> Any:
        raise MisplacedCall(f"ranks_act_alike is True, but a hook calls network.{name}; let it return False.")


class _Lockstep:
    """The loop over the steps of all workers."""

    def __init__(self, world: World) -> None:
        self._world, self._trace, self._evaluator = world, world.trace, world.evaluator
        self._workers = world.cluster.workers
        self._now_s: Seconds = np.zeros(self._workers)  # by rank
        self._times = _Times([world.compute_times(rank) for rank in range(self._workers)])
        self._batches = _Batches(world.samplers, self._workers, world.steps)
        self._leader = leader = _Leader(world, 0)
        leader.lockstep = self
        leader.network = _LockstepNetwork(self, self._workers)  # type: ignore[assignment]

    def run(self) -> None:
        """Run all steps, and the hooks of the leader."""
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

    # Interface of the leader.

    def spend(self, what: str, numbers: int) -> None:
        """Let the time of work in a hook pass on all workers."""
        costs = self._world.cluster.costs
        if costs and (seconds := cost_s(costs, what, numbers)) > 0:
            start_s, self._now_s = self._now_s, self._now_s + seconds
            ranks = np.arange(self._workers)
            self._trace.record_many(HOOK, ranks, self._now_s, start_s, label=what, value=float(numbers))
            self._world.agenda.now_s = float(self._now_s[0])

    def all_reduce(self, given: Given, weight: float) -> Tensor:
        """Average over all workers, and let the time of the exchange pass; return the means of the numbers."""
        world, trace, collectives, kind = self._world, self._trace, self._world.collectives, "all-reduce"
        numbers = given.elements if world.cluster.costs and self._workers > 1 else 0  # one worker copies nothing
        if numbers:
            self.spend("flatten", numbers)
        ranks, elements = collectives.all_ranks, given.elements + 1  # with the weight
        price = world.fabric.price_all_reduce(ranks, elements, given.tensor.element_size())
        index = collectives.rounds = collectives.rounds + 1
        joined_s, begun_s = self._now_s, float(self._now_s.max())
        ends_s = begun_s + np.array(price.seconds)
        trace.exchanges(ranks, begun_s, ends_s.tolist(), kind, index, price.sent_bytes)
        late = np.flatnonzero(joined_s < begun_s).tolist()
        trace.waits(late, joined_s[late].tolist(), begun_s, kind, index)
        self._now_s = ends_s
        world.agenda.now_s = float(ends_s[0])
        matrix = world.engine.matrix if isinstance(world.engine, Engine) else None
        if given.into is not given.tensor or given.tensor is not world.engine.row(0):
            raise MisplacedCall("ranks_act_alike is True, but a hook does not average the parameters into themselves.")
        means = equal_means(given, weight, self._workers, matrix)
        if numbers:
            self.spend("divide", numbers)
        return means


class _Times:
    """Compute times of all workers."""

    def __init__(self, workers: Sequence[ComputeTimes]) -> None:
        self._workers = workers
        self._are_steady = all(one.is_steady for one in workers)
        self._drawn: Seconds = np.empty((len(workers), 0))  # work of coming steps, one row per worker
        self._used = 0

    def of_steps(self, start_s: Seconds, count: int) -> Seconds:
        """Draw the work of ``count`` steps of each worker; return its start and the end of each step, by rows."""
        if not self._are_steady:
            own = zip(self._workers, start_s.tolist(), strict=True)
            return np.array([times.times_of_steps(begin_s, count) for times, begin_s in own])
        while self._used + count > self._drawn.shape[1]:
            more = np.stack([times.draw_block() for times in self._workers])
            self._drawn, self._used = np.concatenate((self._drawn[:, self._used :], more), axis=1), 0
        times_s = np.empty((len(self._workers), count + 1))
        times_s[:, 0], times_s[:, 1:] = start_s, self._drawn[:, self._used : self._used + count]
        self._used += count
        return np.cumsum(times_s, axis=1, out=times_s)  # from left to right, as one addition after the other


class _Batches:
    """Mini-batches of all workers, drawn for many steps at once."""

    def __init__(self, samplers: Sequence[Sampler] | None, workers: int, steps: int) -> None:
        self._samplers, self._workers, self._left = samplers, workers, steps  # steps that are not drawn yet
        self._drawn: list[Tokens] = []  # by rank
        self._used = self._held = 0  # steps of those drawn

    def take(self, count: int) -> list[Tokens]:
        """Return the next ``count`` mini-batches of each worker."""
        if self._samplers is None:
            return [range(count)] * self._workers
        if self._used + count > self._held:
            self._draw(self._samplers, count)
        begin, end = self._used, self._used + count
        self._used = end
        return self._drawn if begin == 0 and end == self._held else [own[begin:end] for own in self._drawn]

    def _draw(self, samplers: Sequence[Sampler], count: int) -> None:
        """Draw at least ``count`` steps, behind those that are not used yet."""
        at_once = count * (_SAMPLES_DRAWN // (samplers[0].batch_size * self._workers * count) or 1)
        more, unused = min(at_once, self._left), self._held - self._used
        drawn = [sampler.take(more) for sampler in samplers]
        if unused:
            drawn = [_joined(own[self._used :], new) for own, new in zip(self._drawn, drawn, strict=True)]
        self._drawn, self._left, self._used, self._held = drawn, self._left - more, 0, unused + more


def _joined(one: Tokens, other: Tokens) -> Tokens:
    return np.concatenate((one, other)) if isinstance(one, np.ndarray) else [*one, *other]
