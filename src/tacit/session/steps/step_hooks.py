"""A strategy's hooks around the steps of a user's optimizer, or of several that step one after the other.

    before   the gradient is ready: ``before_step`` runs before the first optimizer; then each optimizer updates, unless
             strategy or GradScaler skips the update
    after    the step is complete: ``after_step`` runs after the last optimizer

A step without hooks costs two counters and a row of the trace.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from tacit.core.messages import Message
from tacit.core.state_io import restore, restore_generator, store, store_generator
from tacit.core.strategy import RunsAhead, Strategy, TakesJoiners, merged_state
from tacit.core.weights import has_data
from tacit.errors import MembersChanged, MisplacedCall
from tacit.session.model.flat_parameters import FlatModel
from tacit.session.steps.attached_worker import AttachedWorker
from tacit.session.steps.closures import Arguments, Closure, SubstituteClosure, closure_in, evaluate, with_substitute
from tacit.session.steps.grad_scaler import GradScalerSteps
from tacit.session.steps.optimizer_sequence import OptimizerSequence
from tacit.session.steps.optimizers import Optimizers, evaluates_several_times, needs_gradient
from tacit.session.steps.step_context import StepContext

HookResult = TypeVar("HookResult")

_logger: Final = logging.getLogger("tacit")


class StepHooks:
    """Calls the hooks of one worker's strategy, step by step."""

    def __init__(
        self,
        step: StepContext,
        flat: FlatModel,
        optimizers: Optimizers,
        strategy: Strategy[Any],
        worker: AttachedWorker,
    ) -> None:
        self._step, self._flat, self._optimizers = step, flat, optimizers
        self._strategy, self._worker = strategy, worker
        self.calls_before = needs_gradient(strategy)
        self._calls_after = type(strategy).after_step is not Strategy.after_step
        self._ends_in_hook = self._calls_after or isinstance(strategy, RunsAhead) or bool(strategy.handles)
        self.own_steps = 0  # with data of this rank
        self._groups = len(optimizers.param_groups)
        self._with_curvature = [o for o in optimizers if evaluates_several_times(o)]
        self._has_warned = False  # of steps that change nothing
        self._is_skipped = False  # whether no optimizer updates in the step in progress
        self._sequence = OptimizerSequence(optimizers, flat.parameters, watches=self.calls_before)
        with self.in_hook():
            self.state = strategy.init(worker)
            self.hook_free_steps = self._count_hook_free_steps()
        self._scaler = GradScalerSteps(optimizers, flat.parameters)

    def close(self) -> None:
        """Release the hook lock and remove everything that was registered on parameters and optimizers."""
        self._step.release()
        self._sequence.close()
        self._scaler.close()

    @contextmanager
    def in_hook(self) -> Iterator[None]:
        """Run a hook: under the hook lock, without gradients, with the model as one vector."""
        self._step.enter_hook()
        try:
            with torch.no_grad():
                yield
                self._flat.write_back()
        finally:
            self._step.leave_hook()

    @property
    def step(self) -> int:
        """Completed steps."""
        return self._worker.step

    def join(self) -> None:
        """Fetch the model of a run that other workers have begun."""
        if isinstance(self._strategy, TakesJoiners):
            with self.in_hook():
                self._run_hook(self._strategy.join)
                self.hook_free_steps = self._count_hook_free_steps()

    def _run_hook(self, hook: Callable[[Any, Any], HookResult], *, again: bool = False) -> HookResult | None:
        """Run a hook of the strategy. If its server has been started again meanwhile, join it as a new learner.

        The learner's gradient is lost then. again: run the hook once more.
        """
        while True:
            try:
                return hook(self._worker, self.state)
            except MembersChanged:
                if not (self._strategy.has_server and isinstance(self._strategy, TakesJoiners)):
                    raise
                self.state = self._strategy.init(self._worker)
                if hook != self._strategy.join:
                    self._run_hook(self._strategy.join)
                    if not again:
                        return None

    def reported(self) -> Tensor:
        """Return this worker's share of the model to report; in server strategies the whole model. Call in a hook."""
        share = self._run_hook(self._strategy.reported, again=True)
        return self._worker.parameters if share is None else share

    def finish(self) -> None:
        """Call the strategy's ``finish``."""
        with self.in_hook():
            self._worker.check_model()
            self._run_hook(self._strategy.finish, again=True)

    def handle(self, source: int, message: Message) -> None:
        """Pass a message to the strategy. The backend holds the hook lock."""
        self._strategy.on_message(self._worker, self.state, source, message)

    # Before the update.

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Prepare the step of ``optimizer`` with these arguments; return others for it, or None."""
        closure = closure_in(args[1:], kwargs)
        self._sequence.discard_hidden()
        if self._is_surplus:
            return self._ignore_step(optimizer, args, kwargs, closure)
        has_hook = self.calls_before and not self.hook_free_steps
        loss = evaluate(closure) if has_hook and closure is not None else None
        if self._sequence.has_begun:
            self._scaler.begin_next(optimizer)
            self._sequence.begin_next(optimizer)
        else:
            self._begin_step(optimizer, has_hook=has_hook)
        if self._is_skipped:
            self._sequence.hide_gradients(optimizer)
        if not has_hook or closure is None:
            return None
        return with_substitute(
            args, kwargs, closure, SubstituteClosure(loss, type(optimizer).__name__, self._flat.parameters)
        )

    def _begin_step(self, optimizer: Optimizer, *, has_hook: bool) -> None:
        """Run the strategy's hook before ``optimizer``, the first one, steps."""
        worker = self._worker
        if self._strategy.has_server and worker.steps is not None and worker.updates >= worker.steps:
            self._warn_of_surplus(f"the server has made all steps={worker.steps} updates")
        self._sequence.begin()
        if has_hook:
            self._call_before(optimizer)
            self._sequence.mark_communicated(optimizer, overflowed=worker.scaler_skips)
        else:
            self._step.begin(worker.step + 1, in_hook=self._strategy.cancels)
            if self._strategy.cancels:  # from here on handlers cannot abandon the step
                self._step.leave_hook()
            worker.scaler_skips = self._scaler.begin_step(optimizer)
        overflowed = (worker.scaler_skips or worker.has_stale_gradient) and not worker.gradient_was_set
        self._is_skipped = overflowed or worker.update_is_skipped or self._step.is_abandoned

    def _call_before(self, optimizer: Optimizer) -> None:
        self._check_groups()
        step, worker = self._step, self._worker
        step.begin(worker.step + 1, in_hook=True)
        try:
            worker.scaler_skips = self._scaler.begin_step(optimizer)
            step.total_weight = math.inf  # a strategy that takes no mean has a gradient
            if not step.is_abandoned:
                worker.meter.count(worker.weight)
                with torch.no_grad():
                    self._run_hook(self._strategy.before_step)
                    self._flat.write_back()
        except BaseException:
            step.leave_hook()
            raise
        # With a hook after the update, handlers wait until both hooks have run, in both worlds.
        step.leave_hook(keep_lock=self._calls_after)
        if worker.gradient_was_set and not has_data(step.total_weight):
            worker.gradient_was_set = False  # no rank has a gradient, so none updates

    # Steps after the last one.

    @property
    def _is_surplus(self) -> bool:
        """Whether all announced steps are taken. Learners continue until their server has made its updates."""
        worker = self._worker
        is_last_over = worker.steps is not None and worker.step >= worker.steps
        return is_last_over and not self._strategy.has_server

    def _ignore_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any], closure: Closure | None
    ) -> Arguments | None:
        """Let a step after the last announced one change nothing, because other ranks do not take part in it."""
        self._warn_of_surplus(f"all steps={self._worker.steps} announced steps are taken")
        loss = None if closure is None else evaluate(closure)
        self._sequence.hide_gradients(optimizer)
        if closure is None:
            return None
        return with_substitute(
            args, kwargs, closure, SubstituteClosure(loss, type(optimizer).__name__, self._flat.parameters)
        )

    def _warn_of_surplus(self, what: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "%s, so further steps change nothing; end the loop there (while not session.is_done), "
                "or attach with the true number.",
                what,
            )

    # After the update.

    def after(self, optimizer: Optimizer) -> float | None:
        """Complete the step of ``optimizer``; return the time if it was the last one, so that the step is over."""
        if self._is_surplus:
            self._sequence.restore_gradients()
            return None
        if not self._sequence.end(optimizer):
            return None
        self.own_steps += 1
        return self._complete_step()

    def after_again(self, optimizer: Optimizer) -> float | None:
        """Complete the step of the members, whose state this worker has got in the last hook of a step of its own."""
        self._worker.has_stale_gradient = True
        return self._complete_step()

    def _complete_step(self) -> float:
        if self.hook_free_steps:
            self._count_step()
            self.hook_free_steps -= 1
        elif self._ends_in_hook:
            self._call_after_locked()
        else:
            self._check_groups()
            self._count_step()
        return self._step.end()

    def _call_after_locked(self) -> None:
        """Complete the step under the hook lock, which ``StepContext.end`` releases."""
        self._step.enter_hook()
        try:
            self._count_step()
            self.call_after()
        except BaseException:
            self._step.leave_hook()
            raise

    def _count_step(self) -> None:
        worker = self._worker
        worker.meter.end_step(None if self._step.is_abandoned else worker.weight)
        worker.scaler_skips = worker.update_is_skipped = worker.gradient_was_set = False
        worker.has_stale_gradient = False

    @property
    def is_at_boundary(self) -> bool:
        """Whether no optimizer has stepped since the last step was completed, and another step is to come."""
        return not (self._sequence.has_begun or self._is_surplus)

    @torch.no_grad()
    def call_after(self) -> None:
        """Call the strategy's hook after the update, under the hook lock."""
        self._check_groups()
        before = self._flat.vector().clone() if self._with_curvature else None
        if self._calls_after:
            self._worker.check_model()
            self._run_hook(self._strategy.after_step)
        self.hook_free_steps = self._count_hook_free_steps()
        if before is not None and not torch.equal(before, self._flat.vector()):
            for optimizer in self._with_curvature:
                optimizer.state.clear()
        self._flat.write_back()

    def call_before_without_data(self) -> None:
        """Call the strategy's hook before an update that this rank has no data for, under the hook lock."""
        self._strategy.before_step(self._worker, self.state)
        self._flat.write_back()

    def _count_hook_free_steps(self) -> int:
        if isinstance(self._strategy, RunsAhead):
            return self._strategy.hook_free_steps(self._worker, self.state)
        return 0

    def _check_groups(self) -> None:
        if sum(len(optimizer.param_groups) for optimizer in self._optimizers) != self._groups:
            raise MisplacedCall(
                "add_param_group after tacit.attach: ranks would not agree on what is trained; "
                "add all groups first, or close the session and attach again."
            )

    def check_complete(self) -> None:
        """Raise if the session ends while some optimizers have stepped and others have not."""
        self._sequence.check_complete()

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return the state of strategy and worker as tensors, numbers and text."""
        worker = self._worker
        return {
            "meter": worker.meter.state_dict(),
            "quiet": self.hook_free_steps,
            "state": store(self.state),
            "random": store_generator(worker.random),
            "shared_random": store_generator(worker.shared_random),
            "extra_rounds": worker.network.rounds,
        }

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Continue from what ``state_dict`` returned."""
        with self.in_hook():
            self.state = restore(self.state, stored["state"], self._worker.network.finished)
        restore_generator(self._worker.random, stored["random"])
        self._load_counters(stored)

    def state_for_joiners(self) -> dict[str, Any]:
        """Return what ``adopt`` needs on another worker."""
        return {**self.state_dict(), "moments": self._worker.network.agreed_moments}

    def adopt(self, stored: Mapping[str, Any]) -> None:
        """Continue from another worker's state, with this worker's own random stream."""
        own = store_generator(self._worker.random)
        self.load_state_dict(stored)
        restore_generator(self._worker.random, own)
        self._worker.network.agreed_moments = stored["moments"]

    def load_merged(self, stored: Sequence[Mapping[str, Any]], mine: int) -> None:
        """Continue from the states of another number of workers, with the counters of the ``mine``-th."""
        with self.in_hook():
            states = [restore(self.state, one["state"], None) for one in stored]
            self.state = merged_state(self._strategy, states, self._worker.rank, self._worker.size)
        self._load_counters(stored[mine])

    def _load_counters(self, stored: Mapping[str, Any]) -> None:
        self._worker.meter.load_state_dict(stored["meter"])
        restore_generator(self._worker.shared_random, stored["shared_random"])
        self._worker.network.rounds = stored.get("extra_rounds", 0)  # earlier versions averaged all in every round
        self.hook_free_steps = stored["quiet"]
