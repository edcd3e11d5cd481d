"""A strategy's hooks around the steps of a user's optimizer, or of several that step one after the other.

    before   the gradient is ready: ``before_step``, before the first optimizer; then each updates, unless strategy or GradScaler skips that
    after    the step counts: ``after_step``, after the last optimizer

Steps that the strategy calls quiet cost two counters and a line of the trace.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from tacit.core.messages import Message
from tacit.core.state_io import restore, restore_generator, store, store_generator
from tacit.core.strategy import Strategy, TakesJoiners, hook_free_steps, merged_state
from tacit.core.weights import has_data
from tacit.errors import MisplacedCall
from tacit.session.backend import SessionBackend
from tacit.session.model.flat_parameters import FlatModel
from tacit.session.steps.attached_worker import AttachedWorker
from tacit.session.steps.closures import Arguments, Closure, StandIn, closure_in, evaluate, with_stand_in
from tacit.session.steps.grad_scaler import GradScalerSteps
from tacit.session.steps.optimizer_turns import OptimizerTurns
from tacit.session.steps.optimizers import Optimizers, evaluates_several_times, needs_gradient
from tacit.strategies.local_sgd.periods import UNTIL_THE_END

_logger: Final = logging.getLogger("tacit")


class StepHooks:
    """Plays one worker's part of a strategy, step by step."""

    def __init__(
        self,
        backend: SessionBackend,
        flat: FlatModel,
        optimizers: Optimizers,
        strategy: Strategy[Any],
        replica: AttachedWorker,
    ) -> None:
        self._backend, self._flat, self._optimizers = backend, flat, optimizers
        self._strategy, self._replica = strategy, replica
        self.calls_before = needs_gradient(strategy)
        self._calls_after = type(strategy).after_step is not Strategy.after_step
        self._has_landed = self._is_held = False
        self.own_steps = 0  # with data of this rank's own
        self._is_collective = not (strategy.has_server or strategy.handles)
        self._groups = len(optimizers.param_groups)
        self._with_curvature = [o for o in optimizers if evaluates_several_times(o)]  # of the model as they left it
        self._has_warned = False  # of steps that change nothing
        self._is_skipped = False  # no optimizer updates in the step under way
        self._turns = OptimizerTurns(optimizers, flat.parameters, watches=self.calls_before)
        with self.in_hook():
            self.state = strategy.init(replica)
            self.quiet = self._hook_free_steps()
        self._scaling = GradScalerSteps(optimizers, flat.parameters)

    def let_go(self) -> None:
        self._release()
        self._turns.let_go()
        self._scaling.end()

    @contextmanager
    def in_hook(self) -> Iterator[None]:
        """What every hook runs in: alone, without gradients, and with the model as one vector."""
        with self._backend.hook_lock, torch.no_grad():
            yield
            self._flat.settle()
        self._backend.hooked()

    @property
    def step(self) -> int:
        """Completed steps."""
        return self._replica.step

    def join(self) -> None:
        """Take up the run where others are."""
        if isinstance(self._strategy, TakesJoiners):
            with self.in_hook():
                self._strategy.join(self._replica, self.state)

    def reported(self) -> Tensor:
        """Return this worker's share of the model to report, whose mean over workers is reported; in server strategies
        the whole. In a hook.
        """
        share = self._strategy.reported(self._replica, self.state)
        return self._replica.parameters if share is None else share

    def handle(self, source: int, message: Message) -> None:
        """Give a message to the strategy; the stage has taken the monitor."""
        self._strategy.on_message(self._replica, self.state, source, message)

    # The optimizers' steps.

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """``optimizer`` is about to step with these arguments; return others for it, or None."""
        closure = closure_in(args[1:], kwargs)
        self._turns.forget_hidden()
        if self._is_surplus:
            return self._ignore_step(optimizer, args, kwargs, closure)
        has_hook = self.calls_before and not self.quiet
        loss = evaluate(closure) if has_hook and closure is not None else None
        if self._turns.are_under_way:
            self._scaling.follow(optimizer)
            self._turns.follow(optimizer)
        else:
            self._begin_step(optimizer, has_hook=has_hook)
        if self._is_skipped:
            self._turns.hide_gradients(optimizer)
        if not has_hook or closure is None:
            return None
        return with_stand_in(args, kwargs, closure, StandIn(loss, type(optimizer).__name__, self._flat.parameters))

    def _begin_step(self, optimizer: Optimizer, *, has_hook: bool) -> None:
        """``optimizer`` steps first: let the strategy's hook happen."""
        replica = self._replica
        if self._strategy.has_server and replica.steps is not None and replica.updates >= replica.steps:
            self._warn_of_surplus(f"the server has made all steps={replica.steps} updates")
        self._release()  # held still if the optimizer raised in the step before
        self._backend.compute(replica.step + 1)
        replica.scaler_skips = self._scaling.begin_step(optimizer)
        self._turns.begin()
        if has_hook:
            self._call_before()
            self._turns.communicated(optimizer, overflowed=replica.scaler_skips)
        elif self._strategy.cancels:
            with self._backend.hook_lock:  # from here on it is too late to abandon it
                self._land()
        overflowed = replica.scaler_skips and not replica.gradient_was_set
        self._is_skipped = overflowed or replica.update_is_skipped or replica.is_abandoned

    @property
    def _is_surplus(self) -> bool:
        """Whether all announced steps are taken. (A server counts updates: its learners go on until it has made them.)"""
        replica = self._replica
        is_last_over = replica.steps is not None and replica.step >= replica.steps
        return is_last_over and not self._strategy.has_server

    def _ignore_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any], closure: Closure | None
    ) -> Arguments | None:
        """Let a step after the last announced one change nothing: others do not take part in it."""
        self._warn_of_surplus(f"all steps={self._replica.steps} announced steps are taken")
        loss = None if closure is None else evaluate(closure)
        self._turns.hide_gradients(optimizer)
        if closure is None:
            return None
        return with_stand_in(args, kwargs, closure, StandIn(loss, type(optimizer).__name__, self._flat.parameters))

    def _warn_of_surplus(self, what: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "%s, so further steps change nothing; end the loop there (while not session.is_done), or attach with the true number.",
                what,
            )

    def after(self, optimizer: Optimizer) -> bool:
        """``optimizer`` has stepped; return whether the step is over: whether all have."""
        if self._is_surplus:
            self._turns.show_gradients()
            return False
        if not self._turns.end(optimizer):
            return False
        self.own_steps += 1
        if self.quiet:
            self._end_step()
            self.quiet -= 1
            self._backend.stepped()
        else:
            with self._backend.hook_lock:
                self._end_step()
                self._call_after()
                self._backend.stepped()
            self._release()
        return True

    def _land(self) -> None:
        self._backend.landed(self._replica.step + 1, self._replica.is_abandoned)
        self._has_landed = True

    def _end_step(self) -> None:
        replica = self._replica
        if not self._has_landed:
            self._land()
        self._has_landed = False
        replica.meter.end_step(None if replica.is_abandoned else replica.weight)
        replica.scaler_skips = replica.update_is_skipped = replica.gradient_was_set = replica.is_abandoned = False

    def _call_before(self) -> None:
        replica = self._replica
        self._refuse_new_group()
        self._backend.total_weight = math.inf  # a strategy that takes no mean is believed to have a gradient
        if self._calls_after:
            self._hold()
        with self.in_hook():
            self._land()
            if not replica.is_abandoned:
                replica.meter.count(replica.weight)
                self._strategy.before_step(replica, self.state)
        if replica.gradient_was_set and not has_data(self._backend.total_weight):
            replica.gradient_was_set = False  # nobody had a gradient: nobody steps

    def _call_after(self) -> None:
        self._refuse_new_group()
        with self.in_hook():
            before = self._flat.vector().clone() if self._with_curvature else None
            self._strategy.after_step(self._replica, self.state)
            self.quiet = self._hook_free_steps()
            if before is not None and not torch.equal(before, self._flat.vector()):
                for optimizer in self._with_curvature:
                    optimizer.state.clear()

    def _hold(self) -> None:
        """Keep handlers out from the hook before the update to the end of the one after it: the end of a step is one
        action, in both worlds.
        """
        self._backend.hook_lock.__enter__()
        self._is_held = True

    def _release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._backend.hook_lock.__exit__(None, None, None)

    def _hook_free_steps(self) -> int:
        return hook_free_steps(self._strategy, self._replica, self.state)

    def _refuse_new_group(self) -> None:
        if sum(len(optimizer.param_groups) for optimizer in self._optimizers) != self._groups:
            raise MisplacedCall(
                "add_param_group after tacit.attach: ranks would not agree on what is trained; "
                "add all groups first, or close the session and attach again."
            )

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return what strategy and worker remember, as tensors, numbers and text."""
        replica = self._replica
        return {
            "meter": replica.meter.state_dict(),
            "quiet": self.quiet,
            "state": store(self.state),
            "random": store_generator(replica.random),
            "shared_random": store_generator(replica.shared_random),
        }

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` returned."""
        with self.in_hook():
            self.state = restore(self.state, stored["state"], self._replica.network.finished)
        restore_generator(self._replica.random, stored["random"])
        self._take_counters(stored)

    def load_merged(self, stored: Sequence[Mapping[str, Any]], mine: int) -> None:
        """Go on from what workers of another number remembered, with the counters of the ``mine``-th."""
        with self.in_hook():
            states = [restore(self.state, one["state"], None) for one in stored]
            self.state = merged_state(self._strategy, states, self._replica.rank, self._replica.size)
        self._take_counters(stored[mine])

    def _take_counters(self, stored: Mapping[str, Any]) -> None:
        self._replica.meter.load_state_dict(stored["meter"])
        restore_generator(self._replica.shared_random, stored["shared_random"])
        self.quiet = stored["quiet"]

    # The end.

    def finish(self) -> None:
        """Join the others' rounds until all have come to their end, then play the last one."""
        self._turns.refuse_end_within()
        if self._is_collective and self._backend.size > 1:
            self._drain()
        with self.in_hook():
            self._strategy.finish(self._replica, self.state)

    def _drain(self) -> None:
        """Take the steps this rank has no data for, with weight 0, until no rank has any weight; at most up to the
        announced number.
        """
        replica = self._replica
        replica.is_ghost = True
        while replica.steps is None or replica.step < replica.steps:
            left = UNTIL_THE_END if replica.steps is None else replica.steps - replica.step
            if self.quiet >= left:
                if replica.steps is not None:
                    replica.meter.skip(left)
                return
            replica.meter.skip(self.quiet)
            self.quiet = 0
            self._backend.total_weight = -1.0
            with self.in_hook():
                self._strategy.before_step(replica, self.state)
            replica.meter.end_step(0.0)
            replica.gradient_was_set = False
            self._call_after()
            if self._backend.total_weight == 0.0:
                return
