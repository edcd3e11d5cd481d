"""A simulated worker: its life from step to step, and what strategies see of it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from torch import Tensor

from tacit.core.network import Envelope
from tacit.core.parameter_layout import Layout
from tacit.core.strategy import TakesJoiners, check_cancels, hook_free_steps
from tacit.core.worker import ObservedLosses
from tacit.errors import MisplacedCall
from tacit.record.trace import Trace
from tacit.simulation.endpoints import Endpoint
from tacit.simulation.fibers import is_grad_enabled, set_grad_enabled
from tacit.workloads.workload import Token

if TYPE_CHECKING:
    from tacit.simulation.world import World

_FARTHEST_AHEAD: Final = 256
"""Quiet steps queued at once: enough to fill the engine's calls, few enough to remember."""


class SimulatedWorker(Endpoint):
    """A worker whose parameters are a row of the engine's matrix and whose compute time is drawn."""

    world: World

    def __init__(self, world: World, rank: int) -> None:
        super().__init__(world, rank)
        self.pace = world.pace(rank)
        self._take_batches = world.batches(rank)
        self.step = 0
        self.boundary_s = 0.0  # when the last step landed
        self.state: Any = None
        self._is_initialised = False
        self._current = 0  # the step that hooks are about, from 0
        self._updates = 0  # behind the server's model that this worker holds
        self._quiet_ends: list[float] = []
        self._base_step = 0
        self._update_is_skipped = self._is_abandoned = False
        self._step_in_progress: StepInProgress | None = None

    # What strategies see.

    @property
    def parameters(self) -> Tensor:
        if self.is_handling:
            raise MisplacedCall("a handler may not touch worker.parameters; work on tensors of the state instead.")
        return self.world.engine.row(self.rank)

    @property
    def layout(self) -> Layout:
        return self.world.engine.layout

    @property
    def gradient(self) -> Tensor:
        return self.world.engine.gradient(self.rank)

    @gradient.setter
    def gradient(self, value: Tensor) -> None:
        self.world.engine.set_gradient(self.rank, value)

    @property
    def learning_rate(self) -> float:
        return self.world.engine.learning_rate(self._updates if self.world.has_server else self._current)

    @property
    def weight(self) -> float:
        return self.world.engine.weight(self.rank)

    @property
    def shared_random(self) -> np.random.Generator:
        return self.world.shared_stream(self.rank)

    def take_observed(self) -> ObservedLosses:
        return self.world.engine.take_observed(self.rank)

    def report_total_weight(self, total_weight: float) -> None:
        """Nothing follows from it here: data never ends."""

    def average_extra_state(self, weight: float) -> None:
        """Nothing rides: a workload's buffers are its replicas' own."""

    def set_model_version(self, updates: int) -> None:
        self._updates = updates

    def skip_update(self) -> None:
        self._update_is_skipped = True

    def abandon_step(self) -> None:
        check_cancels(self.world.strategy)
        if self._step_in_progress is not None:
            self._step_in_progress.abandon()

    # Its life.

    def progress(self) -> int:
        """Return the steps completed by now, those run ahead not counted."""
        if not self._quiet_ends:
            return self.step
        return self._base_step + bisect_right(self._quiet_ends, self.world.agenda.now_s)

    def live_again(self) -> None:
        super().live_again()
        self.state, self._is_initialised, self._step_in_progress, self._quiet_ends = None, False, None, []
        self._update_is_skipped = self._is_abandoned = False
        self.pace.crash_s = self.pace.crash_after(self.world.agenda.now_s)
        self.boundary_s = self.world.agenda.now_s

    def live(self) -> None:
        world, strategy = self.world, self.world.strategy
        self.state = state = strategy.init(self)
        self._is_initialised = True
        if (self.life > 1 or world.is_resumed) and isinstance(strategy, TakesJoiners):
            strategy.join(self, state)
        early, self._inbox = self._inbox, deque()
        for envelope in early:
            self.accept(envelope)
        calls_before, calls_after, evaluator = world.calls_before, world.calls_after, world.evaluator
        while world.has_server or self.step < world.steps:
            if not self._compute():
                continue
            if self._is_abandoned:  # an attempt like any other, but its gradient is dropped
                self._is_abandoned = False
            elif calls_before:
                self._current = self.step
                strategy.before_step(self, state)
                if self._update_is_skipped:
                    self._update_is_skipped = False
                else:
                    world.engine.update(self.rank, self.step)
            self._current = self.step
            self.step += 1
            is_due = evaluator.is_due(self.step) and not world.has_server
            if is_due:
                world.engine.snapshot(self.rank, self.step, evaluator.before)
            if calls_after:
                strategy.after_step(self, state)
            if is_due:
                self._report()
        self._current = max(0, self.step - 1)
        strategy.finish(self, state)

    def _report(self) -> None:
        world = self.world
        world.evaluator.reached(self.step, world.agenda.now_s)
        share = self._share()
        if share is None:
            world.engine.snapshot(self.rank, self.step, world.evaluator.after)
        else:
            world.evaluator.after(self.rank, self.step, share)

    def _share(self) -> Tensor | None:
        """Return this worker's share of the model to evaluate, as it is now; None: its parameters."""
        world = self.world
        return world.strategy.reported(self, self.state) if world.calls_reported and not world.is_timing else None

    def _compute(self) -> bool:
        """Spend the time of the coming quiet steps and of one loud one; return whether there was a loud one."""
        world, rank, first = self.world, self.rank, self.step
        left = world.steps - first if not world.has_server else 1
        silent = min(hook_free_steps(world.strategy, self, self.state), left)
        quiet = min(silent, _FARTHEST_AHEAD)
        has_loud = quiet == silent < left
        now_s, crash_s = world.agenda.now_s, self.pace.crash_s
        times_s = self.pace.times_of_steps(now_s, quiet + has_loud) if quiet else [now_s, self.pace.end_of_step(now_s)]
        batches = self._take_batches(bisect_right(times_s, crash_s, 1) - 1)  # one for each step that no crash cuts off
        if quiet:
            self._queue_quiet(batches[:quiet], times_s)
        if times_s[-1] > crash_s:
            self.block("its own crash")  # ``Stopped`` is raised here
        if has_loud and not world.cancels:
            world.queue_step(rank, first + quiet, batches[quiet])
        start_s, end_s = times_s[quiet], times_s[-1]
        step_in_progress = self._step_in_progress = StepInProgress(self, start_s, first + quiet + 1, self.world.trace)
        end_s = self._fly(step_in_progress, end_s, is_loud=has_loud)
        self._step_in_progress = None
        self.step, self._quiet_ends = first + quiet, []
        self.boundary_s = world.agenda.now_s
        if not has_loud:
            return False
        if step_in_progress.is_abandoned:
            self._is_abandoned = True
            return True
        if world.cancels:
            world.queue_step(rank, self.step, batches[quiet])
        world.trace.compute(rank, self.step + 1, start_s, end_s)
        return True

    def _fly(self, step_in_progress: StepInProgress, end_s: float, *, is_loud: bool) -> float:
        """Park until the steps under way have landed; return when that was. ``is_loud``: a hook follows."""
        agenda = self.world.agenda
        agenda.at(end_s, step_in_progress.land)
        self.waiting = ("its own computation", agenda.now_s)
        self.fiber.park()
        self.waiting = None
        return end_s

    def _queue_quiet(self, batches: list[Token], times_s: list[float]) -> None:
        """Queue whole steps in the engine, one for each mini-batch, and the evaluations that are due on the way."""
        rank, first, engine, evaluator = self.rank, self.step, self.world.engine, self.world.evaluator
        done = first + len(batches)
        self._base_step, self._quiet_ends = first, times_s[1 : len(batches) + 1]
        self.world.trace.record_steps(rank, first + 1, times_s[: len(batches) + 1])
        queued = first
        for due in evaluator.due_between(first + 1, done):
            engine.advance(rank, queued, batches[queued - first : due - first])
            self.step = due  # for ``reported``, which looks at the worker after this step
            share = self._share()
            engine.snapshot(rank, due, evaluator.both if share is None else evaluator.before)
            if share is not None:
                evaluator.after(rank, due, share)
            evaluator.reached(due, times_s[due - first])
            queued = due
        self.step = first
        engine.advance(rank, queued, batches[queued - first :])

    def accept(self, envelope: Envelope) -> None:
        """Give handled kinds to ``on_message``, also after the last step; a paused worker takes nothing before it
        wakes.
        """
        agenda = self.world.agenda
        awake_s = self.pace.awake_from(agenda.now_s)
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


class StepInProgress:
    """A step being computed: it lands, or is abandoned."""

    __slots__ = ("_is_over", "_start_s", "_trace", "_worker", "is_abandoned", "step")

    def __init__(self, worker: Endpoint, start_s: float, step: int, trace: Trace) -> None:
        self._worker, self._start_s, self.step, self._trace = worker, start_s, step, trace
        self.is_abandoned = self._is_over = False

    def land(self) -> None:
        if not self._is_over and not self._worker.is_lost:
            self.close()
            self._worker.fiber.resume()

    def close(self) -> None:
        """Be over, without waking anybody."""
        self._is_over = True
        if self.is_abandoned:
            self._record()

    def abandon(self) -> None:
        """Drop the gradient: at once, or when it is done, as the cluster says."""
        if self.is_abandoned:
            return
        self.is_abandoned = True
        world = self._worker.world
        if world.cluster.cancel == "instant":
            self._is_over = True
            self._record()
            world.agenda.at(world.agenda.now_s, self._worker.fiber.resume)

    def _record(self) -> None:
        now_s, rank = self._worker.world.agenda.now_s, self._worker.rank
        self._trace.cancelled(rank, self.step, self._start_s, now_s)
