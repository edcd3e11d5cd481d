"""The simulated worker: its loop over steps, and the interface that strategies use."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from torch import Tensor

from tacit.core.network import Envelope
from tacit.core.parameter_layout import Layout
from tacit.core.strategy import TakesJoiners, check_cancels
from tacit.core.worker import ObservedLosses, VectorMean
from tacit.errors import MisplacedCall
from tacit.simulation.computing.compute_times import StepInProgress
from tacit.simulation.computing.processor import Processor
from tacit.simulation.endpoints import Endpoint
from tacit.simulation.engine.moments import NetworkWithMoments
from tacit.simulation.evaluation.held_steps import HeldSteps
from tacit.simulation.evaluation.timed import TimedEvaluator
from tacit.simulation.fibers import is_grad_enabled, set_grad_enabled
from tacit.simulation.network import SimulatedNetwork
from tacit.workloads.workload import Token

if TYPE_CHECKING:
    from tacit.simulation.world import World

_FARTHEST_AHEAD: Final = 256
"""Hook-free steps queued at once: enough to fill the calls of the engine, few enough to fit into memory."""


class SimulatedWorker(Endpoint):
    """A worker whose parameters are a row of the engine's matrix and whose compute times are drawn."""

    world: World

    def __init__(self, world: World, rank: int) -> None:
        super().__init__(world, rank)
        self.compute_times = world.compute_times(rank)
        self._take_batches = world.batches(rank)
        self.step = 0
        self.boundary_s = 0.0  # end of the last step
        self.state: Any = None
        self._is_initialised = False
        self._current = 0  # the step that hooks refer to, from 0
        self._updates = 0  # version of the server's model that this worker has
        self._times_s: list[float] = []  # start of the steps in progress, and their ends
        self._ahead = self._base_step = 0  # number of hook-free steps among them, and of steps before them
        self._queued = 0  # steps in the engine's queue beyond those in progress
        self._update_is_skipped = self._is_abandoned = False
        self._deferred_gradient: Tensor | None = None  # of this step, if its update is skipped
        self._step_in_progress: StepInProgress | None = None
        self.plain_network = self.network
        self._with_moments: NetworkWithMoments | None = None  # where rounds average or reset the optimizer's moments
        if world.moments is not None:
            self._with_moments = world.moments.network_of(self)
            self.network = cast(SimulatedNetwork, self._with_moments)
        self.has_joined = False  # it begins with the state of a member
        self._held = HeldSteps(partial(world.engine.advance, rank)) if world.holds_steps else None

    # Interface of strategies.

    @property
    def parameters(self) -> Tensor:
        if self.is_handling:
            raise MisplacedCall("a handler may not touch worker.parameters; work on tensors of the state instead.")
        if self._queued:
            self._refuse_touch("parameters")
        return self.world.engine.row(self.rank)

    @property
    def layout(self) -> Layout:
        return self.world.engine.layout

    @property
    def gradient(self) -> Tensor:
        if self._queued:
            self._refuse_touch("gradient")
        if not self._update_is_skipped:
            return self.world.engine.gradient(self.rank)
        if self._deferred_gradient is None:
            self._deferred_gradient = self.world.engine.deferred_gradient(self.rank)
        return self._deferred_gradient

    @gradient.setter
    def gradient(self, value: Tensor) -> None:
        self.world.engine.set_gradient(self.rank, value)
        self._deferred_gradient = None

    @property
    def learning_rate(self) -> float:
        world = self.world
        step = self._updates if world.has_server else self._current
        known, rate = world.rate_of  # most ranks ask for the same step
        return rate if step == known else world.learning_rate(step)

    @property
    def weight(self) -> float:
        return self.world.engine.weight(self.rank)

    @property
    def shared_random(self) -> np.random.Generator:
        return self.world.shared_stream(self.rank)

    def take_observed(self) -> ObservedLosses:
        if self._queued:
            self._refuse_touch("take_observed()")
        return self.world.engine.take_observed(self.rank)

    def report_total_weight(self, total_weight: float) -> None:
        """Do nothing: the data of a workload never ends."""

    def average_extra_state(self, weight: float, mean: VectorMean | None = None) -> None:
        """Average the optimizer's moments, if the run does so; each replica of a workload keeps its own buffers."""
        if self._with_moments is not None:
            self._with_moments.average_extra_state(self.parameters, weight, mean)

    def set_model_version(self, updates: int) -> None:
        self._updates = updates

    def now_s(self) -> float:
        return self.world.agenda.now_s

    def skip_update(self) -> None:
        self._update_is_skipped = True

    def abandon_step(self) -> None:
        check_cancels(self.world.strategy)
        if self._step_in_progress is not None:
            self._step_in_progress.abandon()

    def _refuse_touch(self, used: str) -> None:
        """Raise: later steps are queued because the strategy has announced that it does not use ``used`` now."""
        raise MisplacedCall(
            f"untouched_steps() counts step {self.step}, whose hook uses worker.{used}; let it count fewer steps."
        )

    # The loop over steps.

    def progress(self) -> int:
        """Return the number of steps completed by now, without those computed ahead."""
        if not self._ahead:
            return self.step
        return self._base_step + bisect_right(self._times_s, self.world.agenda.now_s, 1, self._ahead + 1) - 1

    def live_again(self) -> None:
        super().live_again()
        self.state, self._is_initialised, self._step_in_progress, self._ahead = None, False, None, 0
        self._update_is_skipped, self._is_abandoned, self._deferred_gradient, self._queued = False, False, None, 0
        self.is_door_due = self.is_regrouping = self.has_joined = False
        self.compute_times.crash_s = self.compute_times.crash_after(self.world.agenda.now_s)
        self.boundary_s = self.world.agenda.now_s

    def live(self) -> None:
        world, strategy, members = self.world, self.world.strategy, self.world.members
        state = self.state if self.has_joined else strategy.init(self)
        self.state = state
        self._is_initialised = True
        if members is not None and (self.has_joined or len(members.ranks) < self.size):
            members.adapt(self)  # a joiner, or a run that begins without some workers
        if (self.life > 1 or world.is_resumed) and isinstance(strategy, TakesJoiners):
            strategy.join(self, state)
        early, self._inbox = self._inbox, deque()
        for envelope in early:
            self.accept(envelope)
        calls_before, calls_after, evaluator = world.calls_before, world.calls_after, world.evaluator
        while world.has_server or self.step < world.steps:
            if not self._compute():
                if self.step == world.steps and isinstance(evaluator, TimedEvaluator):
                    world.engine.snapshot(self.rank, self.step, evaluator.before)
                    self._report()
                continue
            if self._is_abandoned:  # the step counts, but its gradient is dropped
                self._is_abandoned = False
            elif calls_before:
                self._current = self.step
                strategy.before_step(self, state)
                if self._update_is_skipped:
                    self._update_is_skipped, self._deferred_gradient = False, None
                else:
                    world.engine.update(self.rank, self._updates if world.has_server else self.step)
            self._current = self.step
            self.step += 1
            is_due = not world.has_server and evaluator.is_due(self.step)
            if is_due:
                world.engine.snapshot(self.rank, self.step, evaluator.before)
            if calls_after:
                strategy.after_step(self, state)
            if is_due:
                self._report()
            if members is not None and self.step < world.steps and members.opens_for(self):
                members.regroup(self, "the end of a step", lets_in=True)
        self._current = max(0, self.step - 1)
        strategy.finish(self, state)

    def regroup(self, waiting_for: object) -> None:
        members = self.world.members
        if members is not None and members.is_changing:
            members.regroup(self, waiting_for, lets_in=False)

    def begin_generation(self) -> None:
        """Drop messages of an earlier generation of members."""
        self._inbox.clear()
        self.is_door_due = False

    def continue_counters_of(self, donor: SimulatedWorker) -> None:
        """Continue the counters of a member, whose copy this joiner is."""
        self._updates, self.boundary_s = donor._updates, self.world.agenda.now_s
        if self._with_moments is not None and donor._with_moments is not None:
            self._with_moments.rounds = donor._with_moments.rounds

    def _report(self) -> None:
        world = self.world
        world.evaluator.reached(self.step, world.agenda.now_s)
        share = self._share()
        if share is None:
            world.engine.snapshot(self.rank, self.step, world.evaluator.after)
        else:
            world.evaluator.after(self.rank, self.step, share)

    def _share(self) -> Tensor | None:
        """Return this worker's share of the model to evaluate now; None: its parameters."""
        world = self.world
        return world.strategy.reported(self, self.state) if world.calls_reported and not world.is_timing else None

    def reported_now(self) -> Tensor | None:
        """Return this worker's share of the model of this moment; None: its parameters."""
        before, self.step = self.step, self.progress()
        try:
            return self._share() if self._is_initialised else None
        finally:
            self.step = before

    def release_steps(self, until_s: float = math.inf) -> None:
        """Queue held steps that end until ``until_s``."""
        if self._held is not None:
            self._held.release(until_s)

    def _compute(self) -> bool:
        """Let the time of the next hook-free steps and of one step with hooks pass; return whether one has hooks."""
        if self.processor is not None:
            self._compute_beside_transfers(self.processor)
            return True
        world, first, times = self.world, self.step, self.compute_times
        left = world.steps - first if not world.has_server else 1
        hook_free = min(world.hook_free_steps(self, self.state), left)
        ahead = min(hook_free, _FARTHEST_AHEAD)
        has_hooks = ahead == hook_free < left
        now_s, crash_s = world.agenda.now_s, times.crash_s
        times_s = times.times_of_steps(now_s, ahead + has_hooks) if ahead else [now_s, times.end_of_step(now_s)]
        if world.queues_periods and times_s[-1] < crash_s:
            self._wait_for_period(times_s, ahead)
        else:
            # One mini-batch per step that ends before a crash.
            batches = self._take_batches(bisect_right(times_s, crash_s, 1) - 1)
            whole = min(ahead, len(batches))
            self._queue(batches[:whole], times_s[: whole + 1], whole)
            if times_s[-1] > crash_s:
                self.block("a step until its crash")  # ``Stopped`` is raised here
            self._wait_for_step(batches[ahead:], times_s[ahead], times_s[-1])
        self._ahead, self.boundary_s = 0, world.agenda.now_s
        return has_hooks

    def _compute_beside_transfers(self, processor: Processor) -> None:
        """Let the time of one step pass, which transfers lengthen that begin before it ends."""
        world, rank, number, start_s = self.world, self.rank, self.step, self.world.agenda.now_s
        step = self._step_in_progress = StepInProgress(self, start_s, number + 1, world.trace)
        self.pass_work(
            processor, start_s, self.compute_times.work_of_step(), step.end, lambda: self._step_in_progress is step
        )
        self._step_in_progress, self._is_abandoned = None, step.is_abandoned
        (batch,) = self._take_batches(1)
        if not step.is_abandoned:
            world.queue_step(rank, number, batch)
            world.trace.compute(rank, number + 1, start_s, world.agenda.now_s)
        self.boundary_s = world.agenda.now_s

    def _wait_for_period(self, times_s: list[float], ahead: int) -> None:
        """Queue and record all steps now, and park until the last one has ended."""
        world, done, steps = self.world, self.step + ahead, len(times_s) - 1
        before, agenda = self._queued, world.agenda
        wanted = self._steps_to_queue(steps) if world.queues_past_hooks else steps
        self._queued = 0
        self._queue(self._take_batches(wanted - before), times_s, ahead, before)
        agenda.at(times_s[-1], self.fiber.resume)
        self.waiting = ("a step", agenda.now_s)
        self.fiber.park()
        if self._held is not None:
            self._held.release(math.inf)
        self.waiting, self.step, self._queued = None, done, wanted - steps

    def _steps_to_queue(self, steps: int) -> int:
        """Return how many coming steps to have in the engine's queue: ``steps``, and more if hooks allow it.

        Further steps may begin before a hook has run that does not use their results, but not before an evaluation.
        """
        world, first = self.world, self.step
        if self._held is not None:
            return steps
        untouched = min(world.untouched_steps(self, self.state), _FARTHEST_AHEAD)
        wanted = max(min(untouched + 1, world.steps - first), self._queued)
        if wanted <= steps or self.compute_times.crash_s < math.inf:
            return steps
        due = world.evaluator.due_between(first + steps, first + wanted - 1)
        return due[0] - first if due else wanted

    def _wait_for_step(self, batches: Sequence[Token], start_s: float, end_s: float) -> None:
        """Park until the step with hooks has ended; without a batch, until the last hook-free one has."""
        world, rank, number = self.world, self.rank, self.step + self._ahead
        has_hooks = len(batches) > 0
        if has_hooks and not world.cancels:
            if self._held is None:
                world.queue_step(rank, number, batches[0])
            else:
                self._held.hold_last(end_s, partial(world.queue_step, rank, number, batches[0]))
                self._held.release(world.next_evaluation_s)
        step = self._step_in_progress = StepInProgress(self, start_s, number + 1, world.trace)
        end_s = self._wait_for_end(step, end_s, has_hooks=has_hooks)
        if self._held is not None:
            self._held.release(math.inf)
        self._step_in_progress, self.step = None, number
        if not has_hooks:
            return
        self._is_abandoned = step.is_abandoned
        if not step.is_abandoned:
            if world.cancels:
                world.queue_step(rank, number, batches[0])
            world.trace.compute(rank, number + 1, start_s, end_s)

    def _wait_for_end(self, step: StepInProgress, end_s: float, *, has_hooks: bool) -> float:
        """Park until the step has ended; return its end. ``has_hooks``: a hook follows the step."""
        agenda = self.world.agenda
        agenda.at(end_s, step.end)
        self.waiting = ("a step", agenda.now_s)
        self.fiber.park()
        self.waiting = None
        return end_s

    def _queue(self, batches: Sequence[Token], times_s: list[float], ahead: int, before: int = 0) -> None:
        """Queue whole steps in the engine, one per mini-batch, and the evaluations due in the first ``ahead`` steps.

        before: the number of steps that are queued already.
        """
        world, rank, first = self.world, self.rank, self.step
        self._base_step, self._times_s, self._ahead = first, times_s, ahead
        if len(times_s) == 1:
            return
        world.trace.record_steps(rank, first + 1, times_s)
        if self._held is not None:
            self._held.hold(first, batches, times_s[1:])
            self._held.release(world.next_evaluation_s)
        elif world.evaluator.next_due(first) <= first + ahead:
            self._queue_evaluations(batches, times_s, ahead, before)
        else:
            world.engine.advance(rank, first + before, batches)

    def _queue_evaluations(self, batches: Sequence[Token], times_s: list[float], ahead: int, before: int) -> None:
        """Queue steps and the evaluations between them."""
        rank, first, engine, evaluator = self.rank, self.step, self.world.engine, self.world.evaluator
        begin = queued = first + before
        for due in evaluator.due_between(first + 1, first + ahead):
            engine.advance(rank, queued, batches[queued - begin : due - begin])
            evaluator.reached(due, times_s[due - first])
            self.step = due  # ``reported`` refers to the worker after this step
            share = self._share()
            engine.snapshot(rank, due, evaluator.both if share is None else evaluator.before)
            if share is not None:
                evaluator.after(rank, due, share)
            queued = due
        self.step = first
        engine.advance(rank, queued, batches[queued - begin :])

    def accept(self, envelope: Envelope) -> None:
        """Pass handled kinds to ``on_message``, also after the last step; a paused worker does so when it wakes."""
        agenda = self.world.agenda
        awake_s = max(self.compute_times.awake_from(agenda.now_s), self.busy_until_s)
        if awake_s > agenda.now_s:
            agenda.at(awake_s, lambda: self.accept(envelope))
        elif self.is_lost:
            return
        elif self._is_initialised and envelope.message.is_of(*self.world.strategy.handles):
            self._handle(envelope)
        else:
            super().accept(envelope)

    def _handle(self, envelope: Envelope) -> None:
        strategy, self.step = self.world.strategy, self.progress()
        self.is_handling, self.replies_left = True, 1
        grad = is_grad_enabled()
        set_grad_enabled(False)
        try:
            message = envelope.message.received_as(strategy.handles)
            strategy.on_message(self, self.state, envelope.source, message)
        finally:
            self.is_handling = False
            set_grad_enabled(grad)
