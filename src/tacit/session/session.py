"""A strategy attached to a user's own training loop; what the user holds in hand."""

from __future__ import annotations

import atexit
import logging
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tacit.core.strategy import ServerStrategy, Strategy
from tacit.errors import Interrupted, MisplacedCall, PeerLost, RunError, TacitError, TimedOut, require
from tacit.record.run import Run
from tacit.session.agreement import common_table
from tacit.session.backend import SessionBackend
from tacit.session.checkpoint_shard import CheckpointShard
from tacit.session.duplicate_work import DuplicateWork
from tacit.session.logs import open_log
from tacit.session.metrics import gather_over_workers, mean_over_workers, wait_for_all
from tacit.session.model.extra_state import ExtraState, NetworkWithExtraState
from tacit.session.model.flat_parameters import FlatModel
from tacit.session.model.reported_model import ReportedModel
from tacit.session.model.wrappers import refuse_wrappers
from tacit.session.options import SessionOptions
from tacit.session.recorder import Recorder
from tacit.session.server import SessionServer
from tacit.session.server_model import KeptModel
from tacit.session.steps.attached_worker import AttachedWorker
from tacit.session.steps.closures import Arguments
from tacit.session.steps.optimizers import Optimizers, evaluates_several_times
from tacit.session.steps.step_hooks import StepHooks

_logger: Final = logging.getLogger("tacit")
_open: Final[weakref.WeakValueDictionary[int, Session]] = weakref.WeakValueDictionary()
"""Sessions that are not over, by the ``id`` of each parameter they train."""


class Session:
    """A run in progress, made by ``tacit.attach``. Use it as a context manager, or call ``close`` at the end."""

    def __init__(
        self,
        backend: SessionBackend,
        model: nn.Module,
        optimizers: Optimizers,
        strategy: Strategy[Any],
        *,
        steps: int | None,
        seed: int,
        policies: SessionOptions,
    ) -> None:
        self._backend, self._module, self.strategy = backend, model, strategy
        self.rank, self.size, self.steps, self.seed, self._policies = backend.rank, backend.size, steps, seed, policies
        self.kept_models: list[KeptModel] = []
        self._is_over, self._has_stepped, self.run = (
            False,
            False,
            Run("", str(strategy), backend.size, steps or 0, seed),
        )
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        with self._failing():
            self._refuse_wrappers([*model.parameters()])
            backend.agree(common_table(model, optimizers, strategy, steps, seed, policies))
            self._flat = FlatModel(model)
            extra_state = ExtraState(
                model, optimizers, self._flat.parameters, policies.buffers, policies.optimizer_state
            )
            self._spread_start()
            self._recorder = Recorder(backend, open_log(policies.log, backend.rank), steps)
            self._duplicates = DuplicateWork(backend)
            self._warn_of_full_end()
            network = NetworkWithExtraState(backend.network, extra_state, backend.exchange)
            self._replica = AttachedWorker(backend, network, self._flat, optimizers, strategy, steps, seed)
            self._serving = (
                SessionServer(backend, self._flat, optimizers, strategy, steps, seed)
                if isinstance(strategy, ServerStrategy)
                else None
            )
            self._stepper = StepHooks(backend, self._flat, optimizers, strategy, self._replica)
            self._reporting = ReportedModel(backend, model, self._flat, policies, self._stepper, self._serving)
            self._snapshots = CheckpointShard(backend, model, optimizers, strategy, self._stepper, self._recorder)
            _open.update({id(p): self for p in self._flat.parameters})
            for optimizer in optimizers:
                self._hooks.append(optimizer.register_step_pre_hook(self._before))
                self._hooks.append(optimizer.register_step_post_hook(self._after))
            backend.listen(self, self._stepper.handle)
        if backend.rank == 0 and any(map(evaluates_several_times, optimizers)):
            _logger.warning(
                'LBFGS is reset whenever the strategy changes the model: optimizer_state="%s" does not apply to it, because the curvature of '
                "another model makes it diverge.",
                policies.optimizer_state,
            )
        if backend.world == "processes":
            atexit.register(self._end_with_process)

    def _spread_start(self) -> None:
        """Everybody starts from rank 0's parameters and buffers, frozen ones too."""
        self._backend.spread(self._flat.vector())
        self._flat.settle()
        known = {id(p) for p in self._flat.parameters}
        frozen = (p.data for p in self._module.parameters() if id(p) not in known)
        for tensor in (*frozen, *self._module.buffers()):
            if tensor.numel():
                self._backend.spread(tensor)

    def _warn_of_full_end(self) -> None:
        """EF21 and its relatives end with a full vector of each worker unless the end is known."""
        feedback = getattr(self.strategy, "feedback", None)
        if self.steps is None and self.rank == 0 < self.size - 1 and getattr(feedback, "ends_in_full", False):
            size_bytes = sum(p.numel() * p.element_size() for p in self._flat.parameters)
            _logger.warning(
                "steps=None with feedback=%s: each worker sends its estimate back in full when its data ends, %d bytes to every other worker; "
                "give steps=… to avoid that.",
                feedback,
                size_bytes,
            )

    def _refuse_wrappers(self, parameters: Sequence[nn.Parameter]) -> None:
        """At attach and, for wrappers made after it, in the first step.

        Under the simulator there are no process groups, hence no wrappers.
        """
        if self._backend.world == "processes":
            refuse_wrappers(self._module, parameters)

    # What the user calls.

    @property
    def step(self) -> int:
        """Completed steps."""
        return self._replica.step

    @property
    def updates(self) -> int:
        """Updates behind the model this worker holds: its steps, or in server strategies the server's.

        Schedules go by this.
        """
        return self._replica.step if self._serving is None else self._replica.updates

    @property
    def is_done(self) -> bool:
        """Whether all announced steps are taken, or in server strategies the server's updates made: ``while not
        session.is_done:``.
        """
        return self._is_over or (self.steps is not None and self.updates >= self.steps)

    def observe(self, loss: float | Tensor, samples: float | None = None) -> None:
        """Tell the loss of this step's mini-batch, before ``optimizer.step()``; once per micro-batch where gradients
        are accumulated.

        ``LossPeriod`` and ``AdaCommPeriod`` use the loss of the first step after each averaging: call it in every step.
        samples: how many samples are behind it. Tell it on all ranks or on none: rounds are then weighted by it.
        """
        value = loss if not isinstance(loss, Tensor) else loss.item() if loss.is_cpu else loss.detach()
        self._duplicates.observe(self.step, value)
        self._replica.meter.observe(value, samples)
        self._recorder.meter.observe(value, samples)

    def now_s(self) -> float:
        """Seconds since the run began, without evaluations and checkpoints."""
        return self._backend.now_s()

    def log(self, **measured: float | Tensor | None) -> None:
        """Put an evaluation into the run's history; on rank 0, where the history is kept.

        ``loss``, ``metric`` and ``gradient_norm_squared`` have places of their own in the report; numbers under other
        names are kept and shown too.
        """
        self._recorder.add_evaluation(self.step, measured)

    def mean(self, value: float | Tensor) -> float | Tensor:
        """Return the mean of ``value`` over all workers, e.g. of an accuracy.

        Every rank must call it; the exchange is not counted as traffic.
        """
        self._refuse_if_over("mean()")
        with self._failing():
            return mean_over_workers(self._backend, value)

    def gather(self, value: Any) -> list[Any]:
        """Return every worker's ``value`` in rank order: numbers, texts, tensors, or lists, tuples and dicts of these.

        Every rank must call it.
        """
        self._refuse_if_over("gather()")
        with self._failing():
            return gather_over_workers(self._backend, value)

    def barrier(self) -> None:
        """Wait until every worker has called it."""
        self._refuse_if_over("barrier()")
        with self._failing():
            wait_for_all(self._backend)

    @contextmanager
    def reported_model(self) -> Iterator[nn.Module]:
        """Swap in, for a while, the model the strategy would report now. Collective; the run's clock stands still
        meanwhile.

        That is the mean of the workers' models, or the last round's model with a compressor or an outer optimizer
        (``Strategy.reported``). In server strategies, whose workers are not in step, it is neither: whoever calls it
        gets the server's model.
        """
        self._refuse_if_over("reported_model()")
        with self._reporting.swapped_in(self._failing()):
            yield self._module

    @property
    def server_is_apart(self) -> bool:
        """Whether the strategy's server is a process of its own."""
        return self._serving is not None and self._backend.server_is_apart

    def keep_models(self, every: int) -> None:
        """Let the server keep a copy of its model every so many updates: after the run, rank 0 finds them in
        ``kept_models``.
        """
        if self._serving is not None:
            self._serving.keep_models(every)

    def close(self) -> Run:
        """Play the last round and return the run. The reported model is left in place, and no hook, thread or group."""
        if self._is_over:
            return self.run
        with self._failing():
            if self._serving is not None:
                self._serving.start()
            self._stepper.finish()
            self._reporting.level_out()
            if self._serving is not None:
                self.kept_models = self._serving.kept_models()
            self._reporting.settle_buffers()
            self._recorder.add_row(self.step)
            records = self._backend.exchange(self._recorder.packed())
            is_first = self.rank == self._backend.living[0]
            self._make_run([one for one in records if one] if is_first else [records[self.rank]], "finished")
        self._let_go(None)
        return self.run

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._give_up(error)

    # Checkpoints.

    def model_state_dict(self) -> dict[str, Any]:
        """Return a copy of ``model.state_dict()`` in which no tensor shares memory with another, or with the flat
        buffer; also after ``close``.

        Inside ``reported_model()`` it is the model the strategy reports, otherwise this worker's own.
        """
        state: Mapping[str, Any] = self._module.state_dict()
        return {
            name: value.detach().clone() if isinstance(value, Tensor) else deepcopy(value)
            for name, value in state.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything the strategy remembers on this rank: local, never communicates, safe under ``if rank ==
        0``.
        """
        return self._snapshots.state_dict()

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` returned on this rank. Model and optimizer are the caller's to load."""
        self._snapshots.load_state_dict(stored)

    def checkpoint(self, folder: str | Path) -> Path:
        """Write model, optimizer and session of all ranks into ``folder``; collective. The previous one lives until
        this one is whole.

        In server strategies it is the server's alone and not collective: rank 0 writes it, other ranks return at once.
        """
        self._refuse_if_over("checkpoint()")
        if self._serving is not None:
            with self._failing():
                return self._serving.checkpoint(Path(folder))
        with self._backend.pause(), self._failing():
            return self._snapshots.write(Path(folder))

    def resume(self, folder: str | Path) -> int:
        """Go on from the checkpoint in ``folder``; collective. Return the steps it had completed, so that the loop can
        skip their data.

        Exact with the number of workers that wrote it. With another, all start from the mean of the models it holds. In
        server strategies the server goes on and all workers take its model, however many they are; what is returned are
        its updates.
        """
        self._refuse_if_over("resume()")
        require(self.step == 0, f"resume() comes right after attach; {self.step} steps have been taken already.")
        with self._failing():
            if self._serving is not None:
                return self._serving.resume(Path(folder), self._stepper)
            self._snapshots.resume(Path(folder))
        return self.step

    # The optimizer's hooks.

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        try:
            if not self._has_stepped:
                self._refuse_wrappers(self._flat.parameters)
                self._has_stepped = True
            if self._serving is not None:
                self._serving.start()
            return self._stepper.before(optimizer, args, kwargs)
        except BaseException as error:
            self._give_up(error)
            raise

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        weight = self._replica.weight
        try:
            if self._stepper.after(optimizer):
                self._recorder.end_step(self._replica.meter.step, weight)
                self._duplicates.end_step(self._replica.meter.step)
        except BaseException as error:
            self._give_up(error)
            raise

    # The end.

    def _make_run(self, records: list[bytes], status: str) -> None:
        self.run.workload = self.run.workload or f"<{type(self._module).__name__}>"
        self.run.module = self._module
        self._recorder.complete(self.run, records, status, self._flat, self.step)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Whatever goes wrong in here ends the session: what there is of the run goes with the error."""
        try:
            yield
        except BaseException as error:
            self._give_up(error)
            raise

    def _give_up(self, error: BaseException) -> None:
        """End without the others: no last round, what there is of the run attached to the error."""
        if self._is_over:
            return
        self._is_over = True
        self._backend.leave(error)  # first: what follows takes its time
        try:
            if hasattr(self, "_stepper"):
                self._rescue(error)
                status = "interrupted" if isinstance(error, KeyboardInterrupt) else f"failed: {error}"
                self._make_run([self._recorder.packed()], status)
                if isinstance(error, RunError | Interrupted):
                    error.run = self.run
        except Exception as second:  # noqa: BLE001 - the first error is the one to hear of
            error.add_note(f"What there was of the run could not be kept: {second}")
        finally:
            self._let_go(error)

    def _rescue(self, error: BaseException) -> None:
        """A lost worker must not cost the survivors' work, nor the end of a job its last steps."""
        folder = self._policies.rescue
        is_real = self._backend.world == "processes"  # simulated ones could not wait for each other's files
        is_begun = self.step > 0  # before that there is nothing to lose, and perhaps an older checkpoint to keep
        has_diverged = isinstance(error, PeerLost) and (error.reason or "").startswith("NotFinite")
        if folder is None or not (is_real and is_begun) or has_diverged:
            return
        if not isinstance(error, PeerLost | TimedOut | Interrupted):
            return
        if self._serving is None:
            kept = self._snapshots.rescue(folder, error)
            who = "all" if isinstance(error, Interrupted) else "the others"
            error.add_note(f"What {who} had is in {kept}; the same command resumes from it.")
        elif self._serving.is_here:
            kept = self._serving.checkpoint(folder)
            error.add_note(f"The server's model is in {kept}; the same command resumes from it.")

    def _end_with_process(self) -> None:
        """The script is over and ``close`` was not called: end the session for the script's error, or say what is
        missing.
        """
        if self._is_over:
            return
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # what Python has just printed
        if error is None:
            _logger.warning(
                "session.close() was never called: the last round was not played; call it after the loop, or use `with`."
            )
            error = TacitError("the script ended without session.close()")
        self._give_up(error)

    def _let_go(self, error: BaseException | None) -> None:
        self._is_over = True
        atexit.unregister(self._end_with_process)
        for hook in self._hooks:
            hook.remove()
        for parameter in self._flat.parameters if hasattr(self, "_flat") else ():
            if _open.get(id(parameter)) is self:
                del _open[id(parameter)]
        if hasattr(self, "_stepper"):
            self._stepper.let_go()
            self._flat.release()
            self._recorder.close()
        self._backend.close(error)

    def _refuse_if_over(self, what: str) -> None:
        if self._is_over:
            raise MisplacedCall(f"{what} after the session was closed; attach again to go on.")


def refuse_second(model: nn.Module) -> None:
    """Raise where a session trains parameters of ``model`` already."""
    for name, parameter in model.named_parameters():
        if id(parameter) in _open:
            raise MisplacedCall(
                f"the parameter {name} is attached already; close its session first. Several optimizers of one model are attached together: "
                f"tacit.attach(model, [first, second], …)."
            )
