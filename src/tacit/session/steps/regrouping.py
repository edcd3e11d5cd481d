"""Changes of the members while a session runs: what the strategy, the user and joiners are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer

from tacit.core.strategy import Strategy
from tacit.errors import LeftOut
from tacit.session.backend import SessionBackend
from tacit.session.checkpoint_shard import CheckpointShard
from tacit.session.steps.attached_worker import AttachedWorker
from tacit.session.steps.closures import Arguments
from tacit.session.steps.step_hooks import StepHooks

RegroupCallback = Callable[[Sequence[int]], object]
"""Gets the ranks that take part from now on."""


class Regrouping:
    """One session's part in changes of the members."""

    def __init__(
        self,
        backend: SessionBackend,
        strategy: Strategy[Any],
        hooks: StepHooks,
        worker: AttachedWorker,
        shard: CheckpointShard,
    ) -> None:
        self._backend, self._strategy, self._hooks, self._worker = backend, strategy, hooks, worker
        self._shard, self._membership = shard, backend.membership
        self._callbacks = list[RegroupCallback]()
        self._told = tuple(worker.network.members)
        if self._membership is not None:
            self._membership.attach_session(self)

    def on_regroup(self, callback: RegroupCallback) -> None:
        """Call ``callback`` with the members at the beginning of the next step when they have changed."""
        self._callbacks.append(callback)

    def join(self) -> bool:
        """Join the run if this worker does not hold its model, because it has come late or was left out; say if so."""
        if self._membership is None or self._membership.holds:
            return False
        self._membership.join()
        return True

    def begin_step(self) -> None:
        """Take joiners in if a round has said that some wait; tell the user of other members.

        All members are between the same two steps, and nothing else of the script's comes before the next hook. So a
        joiner continues with that step.
        """
        if self._membership is None:
            return
        if self._membership.is_due:
            self._membership.at_boundary()
        members = tuple(self._worker.network.members)
        if members != self._told:
            self._told = members
            for callback in self._callbacks:
                callback(members)

    # Hooks. A worker that the others have left out joins again in the hook that hears of it, and takes part in their
    # step with weight 0: its own gradient is that of another model.

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Prepare a step as ``StepHooks.before`` does."""
        while True:
            try:
                if self._hooks.is_at_boundary:
                    self.begin_step()
                return self._hooks.before(optimizer, args, kwargs)
            except LeftOut:
                self.join()
                self._worker.has_stale_gradient = True

    def after(self, optimizer: Optimizer) -> float | None:
        """Complete a step as ``StepHooks.after`` does; if this worker joins again meanwhile, that of the members."""
        complete = self._hooks.after
        while True:
            try:
                return complete(optimizer)
            except LeftOut:
                self.join()
                complete = self._hooks.after_again

    # What the membership calls.

    @property
    def step(self) -> int:
        """Completed steps."""
        return self._hooks.step

    def everything(self) -> bytes:
        """Return the state of this worker, for joiners."""
        return self._shard.everything()

    def adopt(self, everything: bytes) -> None:
        """Continue from the state of another worker."""
        self._shard.adopt(everything)

    def members_changed(self, members: Sequence[int]) -> None:
        """Tell the strategy who takes part from now on."""
        with self._hooks.in_hook():
            self._strategy.regrouped(self._worker, self._hooks.state, members)
