"""The session that ``tacit.attach`` returns: a strategy attached to a user's own training loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from tacit.core.compatibility.deprecation import warn_renamed
from tacit.core.strategy import Strategy
from tacit.errors import require
from tacit.record.run import Run
from tacit.session.attaching import make_parts
from tacit.session.backend import LiveRound, SessionBackend
from tacit.session.checkpoints import Attempts
from tacit.session.ending import SessionEnd
from tacit.session.joining import give_start, join_run
from tacit.session.model.reported_model import ModelSwap
from tacit.session.model.wrappers import refuse_wrappers
from tacit.session.options import SessionOptions
from tacit.session.probing import ScriptEnded
from tacit.session.recording.metrics import gather_over_workers, mean_over_workers, wait_for_all
from tacit.session.server_model import KeptModel
from tacit.session.steps.closures import Arguments
from tacit.session.steps.last_rounds import join_last_rounds
from tacit.session.steps.optimizers import Optimizers
from tacit.session.steps.regrouping import RegroupCallback, Regrouping


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
        options: SessionOptions,
    ) -> None:
        self._backend, self._module, self.strategy = backend, model, strategy
        self.rank, self.size, self.steps, self.seed = backend.rank, backend.size, steps, seed
        self.kept_models: list[KeptModel] = []
        self.run = Run("", str(strategy), backend.size, steps or 0, seed)
        self._has_stepped, self._probe = False, options.probe
        self._attempts = Attempts(warns=backend.rank == 0)
        self._end = SessionEnd(backend, self.run, options)
        with self._end.on_error():
            self._refuse_wrappers([*model.parameters()])
            parts = make_parts(backend, model, optimizers, strategy, steps, seed, options)
            self._flat, self._worker, self._hooks, self._server = parts.flat, parts.worker, parts.hooks, parts.server
            self._recorder, self._duplicates = parts.recorder, parts.duplicates
            self._reported, self._shard = parts.reported, parts.shard
            before = [optimizer.register_step_pre_hook(self._before) for optimizer in optimizers]
            after = [optimizer.register_step_post_hook(self._after) for optimizer in optimizers]
            self._end.attached(self, parts, [*before, *after])
            self._regrouping = Regrouping(backend, strategy, self._hooks, self._worker, self._shard)
            backend.start_clock()
            listen = partial(backend.listen, self, self._hooks.handle)
            self._has_joined = backend.start_exchange is not None and backend.start_exchange.is_due
            if backend.start_exchange is not None and self._has_joined:
                join_run(backend, backend.start_exchange, parts, listen)
            else:
                listen()
            self._has_joined |= self._regrouping.join()

    def _refuse_wrappers(self, parameters: Sequence[nn.Parameter]) -> None:
        """Refuse wrappers that communicate: at attach and, for later ones, in the first step.

        A simulated script has no process groups, hence no wrappers.
        """
        if self._backend.world == "processes":
            refuse_wrappers(self._module, parameters)

    # Progress.

    @property
    def step(self) -> int:
        """Completed steps."""
        return self._worker.step

    @property
    def updates(self) -> int:
        """Updates of the model that this worker holds: its steps, or in server strategies the server's updates.

        Schedules use this.
        """
        return self._worker.step if self._server is None else self._worker.updates

    @property
    def is_done(self) -> bool:
        """Whether all announced steps, or in server strategies updates, are done: ``while not session.is_done:``."""
        return self._end.is_over or (self.steps is not None and self.updates >= self.steps)

    def now_s(self) -> float:
        """Return the seconds since the run began, without evaluations and checkpoints."""
        return self._backend.now_s()

    @property
    def live_round(self) -> LiveRound | None:
        """The times of all ranks between the latest round and the one before, with ``attach(…, live=True)``.

        None before the first round, without ``live``, in the simulator, and for strategies without rounds of all ranks.
        """
        return self._backend.live_round

    @property
    def members(self) -> Sequence[int]:
        """The ranks that take part; all, unless ``tacit launch`` continues without some."""
        return self._worker.network.members

    def on_regroup(self, callback: RegroupCallback) -> None:
        """Call ``callback(members)`` at the beginning of the next step, in ``optimizer.step()``, when members change.

        Learning rate and data are the script's: set there what depends on the number of workers. A worker that joins
        late continues at the members' step, see ``session.step``; it reads ``session.members`` after ``attach``.
        """
        self._regrouping.on_regroup(callback)

    # Losses and metrics.

    def observe(self, loss: float | Tensor, samples: float | None = None) -> None:
        """Report the loss of this step's mini-batch, before ``optimizer.step()``.

        Call it once per micro-batch where gradients are accumulated. ``LossPeriod`` and ``AdaCommPeriod`` use the loss
        of the first step after each averaging: call it in every step. samples: number of samples behind the loss. Give
        it on all ranks or on none: rounds are then weighted by it.
        """
        value = loss if not isinstance(loss, Tensor) else loss.item() if loss.is_cpu else loss.detach()
        self._duplicates.observe(self.step, value)
        if self._probe is not None and not self._probe.keeps_losses:
            value = 0.0  # the loss does not matter, and one that is not finite would end the probe
        self._worker.meter.observe(value, samples)
        self._recorder.observe(value, samples)

    def log(self, **measured: float | Tensor | None) -> None:
        """Add an evaluation to the run's history, on rank 0, which keeps the history.

        The report has columns for ``loss``, ``metric`` and ``gradient_norm_squared``, and shows other numbers too.
        """
        self._recorder.add_evaluation(self.step, measured)

    def mean(self, value: float | Tensor) -> float | Tensor:
        """Return the mean of ``value`` over all workers, e.g. of an accuracy.

        Every rank must call it; those that are lost are left out. The exchange is not counted as traffic.
        """
        self._end.check_open("mean()")
        with self._end.on_error():
            return mean_over_workers(self._backend, value)

    def gather(self, value: Any) -> list[Any]:
        """Return every worker's ``value`` in rank order: numbers, texts, tensors, or lists, tuples and dicts of these.

        Every rank must call it; there are no values of workers that are lost.
        """
        self._end.check_open("gather()")
        with self._end.on_error():
            return gather_over_workers(self._backend, value)

    def barrier(self) -> None:
        """Wait until every worker has called it that is not lost."""
        self._end.check_open("barrier()")
        with self._end.on_error():
            wait_for_all(self._backend)

    def reported_model(self) -> ModelSwap:
        """Return a context that puts the model in place that the strategy reports now; use it with ``with``.

        Collective. The run's clock is stopped meanwhile. The reported model is the mean of the workers' models, or the
        last round's model with a compressor or an outer optimizer (``Strategy.reported``). In server strategies, whose
        workers are not in step, the call is not collective and the model is the server's.
        """

        @contextmanager
        def reported_model() -> Iterator[nn.Module]:  # wait notices show this name
            self._end.check_open("reported_model()")
            with self._reported.swapped_in(self._end.on_error()):
                yield self._module

        return ModelSwap(reported_model())

    # The server.

    @property
    def server_is_process(self) -> bool:
        """Whether the strategy's server is a process of its own."""
        return self._server is not None and self._backend.server_is_process

    @property
    def server_is_apart(self) -> bool:
        """Deprecated name of ``server_is_process``."""
        warn_renamed("session.server_is_apart", "session.server_is_process")
        return self.server_is_process

    def keep_models(self, every: int) -> None:
        """Let the server keep a copy of its model after every ``every`` updates, for ``kept_models`` on rank 0."""
        if self._server is not None:
            self._server.keep_models(every)

    # Checkpoints.

    def model_state_dict(self) -> dict[str, Any]:
        """Return a copy of ``model.state_dict()`` in which no two tensors share memory; also after ``close``.

        Inside ``reported_model()`` it is the model that the strategy reports, otherwise this worker's own.
        """
        state: Mapping[str, Any] = self._module.state_dict()
        return {
            name: value.detach().clone() if isinstance(value, Tensor) else deepcopy(value)
            for name, value in state.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the strategy's state on this rank. Local: it may be called under ``if rank == 0``."""
        return self._shard.state_dict()

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Continue from what ``state_dict`` returned on this rank. The caller loads model and optimizer."""
        if self._probe is None:
            self._shard.load_state_dict(stored)

    def checkpoint(self, folder: str | Path) -> Path | None:
        """Write model, optimizer and session of all ranks into ``folder``. Collective.

        The previous checkpoint is kept. If this one cannot be written, a warning says why and None is returned; the
        third failure in a row is an error. In server strategies the call is not collective: rank 0 writes the server's
        state, other ranks return at once. A probed script writes no checkpoint.
        """
        self._end.check_open("checkpoint()")
        if self._probe is not None:
            return Path(folder)
        if self._server is not None:
            server = self._server
            with self._end.on_error():
                return self._attempts.try_to(lambda: server.checkpoint(Path(folder), self._hooks))
        with self._backend.pause(), self._end.on_error():
            return self._attempts.try_to(lambda: self._shard.write(Path(folder)))

    def resume(self, folder: str | Path) -> int:
        """Continue from the checkpoint in ``folder`` and return its completed steps, whose data the loop skips.

        Collective. Exact with the number of workers that wrote it. With another number, all start from the mean of its
        models. In server strategies the server continues, all workers take its model, and the call returns its updates.
        A worker that has joined a run keeps the state of the others. A probed script starts from step 0.
        """
        self._end.check_open("resume()")
        if self._has_joined:
            return self.updates
        require(self.step == 0, f"resume() must follow attach; {self.step} steps have been taken already.")
        if self._probe is not None:
            return 0
        with self._end.on_error():
            if self._server is not None:
                return self._server.resume(Path(folder), self._hooks)
            self._shard.resume(Path(folder))
        return self.step

    # The end.

    def close(self) -> Run:
        """Run the last round and return the run. The reported model stays in place; no hook, thread or group does."""
        if self._end.is_over:
            return self.run
        with self._end.on_error():
            if self._probe is not None:
                raise ScriptEnded(f"the script closed its session after {self.step} steps")
            if self._server is not None:
                self._server.start()
            self._finish_strategy()
            self._reported.distribute()
            if self._server is not None:
                self.kept_models = self._server.kept_models()
            self._reported.update_buffers()
            self._recorder.add_row(self.step, self._backend.now_s())
            records = self._backend.all_gather(self._recorder.packed())
            is_first = not any(records[: self.rank])
            own = [one for one in records if one] if is_first else [records[self.rank]]
            self._end.complete_run(own, "finished")
        self._end.close()
        return self.run

    def _finish_strategy(self) -> None:
        """Join the others' rounds until all data has ended, then call the strategy's ``finish``."""
        self._hooks.check_complete()
        is_collective = not (self.strategy.has_server or self.strategy.handles)
        if is_collective and self.size > 1:
            join_last_rounds(self._hooks, self._worker, self._backend.step, self._regrouping.begin_step)
        self._hooks.finish()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._end.fail(error)

    # Hooks of the optimizers.

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        try:
            if not self._has_stepped:
                self._refuse_wrappers(self._flat.parameters)
                self._has_stepped = True
            if self._server is not None:
                self._server.start()
            exchange = self._backend.start_exchange
            if exchange is not None and exchange.requests:
                give_start(exchange, self._module, self._flat, self.step)
            return self._regrouping.before(optimizer, args, kwargs)
        except BaseException as error:
            self._end.fail(error)
            raise

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        weight = self._worker.weight
        try:
            time_s = self._regrouping.after(optimizer)
            if time_s is not None:
                self._recorder.end_step(self._worker.step, weight, time_s)
                self._duplicates.end_step(self._worker.step)
                if self._probe is not None:
                    self._probe.end_step(self._worker.step)
        except BaseException as error:
            self._end.fail(error)
            raise
