"""A strategy attached to a user's own training loop; what the user holds in hand."""

from __future__ import annotations

import atexit
import logging
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tacit.errors import Interrupted, MisplacedCall, PeerLost, RunError, TacitError, TimedOut, require
from tacit.run import Row, Run, Tally
from tacit.session import buffers, checkpoints
from tacit.session.agreement import table_of
from tacit.session.flat import FlatModel, check_optimizer
from tacit.session.history import Curve, merged, packed, row_at, unpacked
from tacit.session.logs import Log, open_log
from tacit.session.meter import Meter
from tacit.session.replica import Replica
from tacit.session.riders import Riders, RidingNetwork
from tacit.session.server_model import KeptModel
from tacit.session.serving import Serving
from tacit.session.stage import Stage
from tacit.session.states import restore, restore_generator, store, store_generator
from tacit.session.stepper import Stepper
from tacit.strategies.strategy import Strategy

_logger: Final = logging.getLogger("tacit")
_MARK: Final = "_tacit_session"  # the attribute of an optimizer that has a session


@dataclass(frozen=True, kw_only=True)
class Policies:
    """What happens to everything that is not a parameter, and where a run leaves its traces."""

    buffers: str = "average"
    optimizer_state: str = "keep"
    calibration: Callable[[], Iterable[Any]] | Iterable[Any] | None = None
    rescue: Path | None = None  # where survivors leave a checkpoint when a worker is lost
    log: str | Log | None = None


class Session:
    """A run in progress, made by ``tacit.attach``. Use it as a context manager, or call ``close`` at the end."""

    def __init__(
        self,
        stage: Stage,
        model: nn.Module,
        optimizer: Optimizer,
        strategy: Strategy[Any],
        *,
        steps: int | None,
        seed: int,
        policies: Policies,
    ) -> None:
        self._stage, self._module, self._optimizer, self.strategy = stage, model, optimizer, strategy
        self.rank, self.size, self.steps, self.seed, self._policies = stage.rank, stage.size, steps, seed, policies
        self.kept_models: list[KeptModel] = []
        self._is_over, self.run = False, Run("", str(strategy), stage.size, steps or 0, seed)
        self._rows: list[Row] = []  # what the user told with ``log``
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        with self._failing():
            self._agree()
            self._flat = FlatModel(model)
            check_optimizer(optimizer, self._flat)
            riders = Riders(model, optimizer, self._flat.parameters, policies.buffers, policies.optimizer_state)
            self._spread_start()
            self._log = open_log(policies.log, stage.rank)
            self._network = RidingNetwork(stage.network, riders, stage.exchange)
            self._replica = Replica(stage, self._network, self._flat, optimizer, steps, seed)
            self._curve, self._curve_meter = Curve(steps), Meter(stage.rank)
            self._serving = (
                Serving(stage, self._flat, optimizer, strategy, steps, seed) if strategy.has_server else None
            )
            self._stepper = Stepper(stage, self._flat, optimizer, strategy, self._replica)
            setattr(optimizer, _MARK, self)
            self._hooks = [
                optimizer.register_step_pre_hook(self._before),
                optimizer.register_step_post_hook(self._after),
            ]
            stage.listen(self, self._stepper.handle)
        if stage.world == "processes":
            atexit.register(self._end_with_process)

    def _agree(self) -> None:
        self._stage.agree(
            common_table(self._module, self._optimizer, self.strategy, self.steps, self.seed, self._policies)
        )

    def _spread_start(self) -> None:
        """Everybody starts from rank 0's parameters and buffers, frozen ones too."""
        self._stage.spread(self._flat.vector())
        self._flat.settle()
        known = {id(p) for p in self._flat.parameters}
        frozen = (p.data for p in self._module.parameters() if id(p) not in known)
        for tensor in (*frozen, *self._module.buffers()):
            if tensor.numel():
                self._stage.spread(tensor)

    # What the user calls.

    @property
    def step(self) -> int:
        """Completed steps."""
        return self._replica.step

    @property
    def updates(self) -> int:
        """Updates behind the model this worker holds: its steps, or in server strategies the server's. Schedules go by this."""
        return self._replica.step if self._serving is None else self._replica.updates

    @property
    def is_done(self) -> bool:
        """Whether all announced steps are taken, or in server strategies the server's updates made: ``while not session.is_done:``."""
        return self._is_over or (self.steps is not None and self.updates >= self.steps)

    def observe(self, loss: float | Tensor, samples: float | None = None) -> None:
        """Tell the loss of this step's mini-batch, before ``optimizer.step()``; once per micro-batch where gradients are accumulated.

        samples: how many samples are behind it. Tell it on all ranks or on none: rounds are then weighted by it.
        """
        value = loss if not isinstance(loss, Tensor) else loss.item() if loss.is_cpu else loss.detach()
        self._replica.meter.observe(value, samples)
        self._curve_meter.observe(value, samples)

    def now_s(self) -> float:
        """Seconds since the run began, without evaluations and checkpoints."""
        return self._stage.now_s()

    def log(self, **measured: float | None) -> None:
        """Put an evaluation (``loss``, ``metric``, ``gradient_norm_squared``) into the run's history; on rank 0, where the history is kept."""
        self._rows.append({"step": self.step, "time_s": self._stage.now_s(), **measured})
        self._log.write(self.step, {f"evaluation/{name}": value for name, value in measured.items()})

    @contextmanager
    def reported_model(self) -> Iterator[nn.Module]:
        """Swap in, for a while, the model the strategy would report now. Collective; the run's clock stands still meanwhile.

        In server strategies, whose workers are not in step, it is neither: whoever calls it gets the server's model.
        """
        self._refuse_if_over("reported_model()")
        if self._serving is not None:
            self._serving.start()
            with self._server_model():
                yield self._module
            return
        with self._stage.pause():
            with self._failing(), self._stepper.in_hook():
                self._level_clocks()
                own = self._flat.vector().clone()
                share = self.strategy.reported(self._replica, self._stepper.state)
                self._flat.vector().copy_(self._stage.mean(share))
                kept = [b.clone() for b in self._module.buffers()]
            self._report_buffers()
            try:
                yield self._module
            finally:
                self._stage.exchange(b"evaluated")  # the clocks of all stand still as long as anybody's does
                with torch.no_grad():
                    self._flat.vector().copy_(own)
                    self._flat.settle()
                    for buffer, before in zip(self._module.buffers(), kept, strict=True):
                        buffer.copy_(before)

    @contextmanager
    def _server_model(self) -> Iterator[None]:
        with self._failing(), self._stepper.in_hook():
            own = self._flat.vector().clone()
            self._flat.vector().copy_(self.strategy.reported(self._replica, self._stepper.state))
        try:
            yield
        finally:
            with torch.no_grad():
                self._flat.vector().copy_(own)
                self._flat.settle()

    @property
    def server_is_apart(self) -> bool:
        """Whether the strategy's server is a process of its own."""
        return self._serving is not None and self._stage.server_is_apart

    def keep_models(self, every: int) -> None:
        """Let the server keep a copy of its model every so many updates: after the run, rank 0 finds them in ``kept_models``."""
        if self._serving is not None:
            self._serving.keep_models(every)

    def _level_clocks(self) -> None:
        """Clocks that stand still while ranks wait for each other would drift apart: all take the time of the last to come."""
        times_s = self._stage.exchange(repr(self._stage.now_s()).encode())
        self._stage.set_clock(max(float(time_s) for time_s in times_s))

    def close(self) -> Run:
        """Play the last round and return the run. The reported model is left in place, and no hook, thread or group."""
        if self._is_over:
            return self.run
        with self._failing():
            if self._serving is not None:
                self._serving.start()
            self._stepper.finish()
            with torch.no_grad():
                self._level_out()
            self._report_buffers()
            self._add_to_curve()
            records = self._stage.exchange(packed(self._stage.trace, self._curve))
            self._make_run(records if self.rank == 0 else [records[self.rank]], "finished")
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

    def state_dict(self) -> dict[str, Any]:
        """Return everything the strategy remembers on this rank: local, never communicates, safe under ``if rank == 0``."""
        replica = self._replica
        with self._stage.monitor:
            return {
                "format": checkpoints.FORMAT, "strategy": str(self.strategy), "size": self.size,
                "meter": replica.meter.state_dict(), "quiet": self._stepper.quiet, "time_s": self._stage.now_s(),
                "random": store_generator(replica.random), "shared_random": store_generator(replica.shared_random),
                "state": store(self._stepper.state), "curve": [list(row) for row in self._curve.rows], "rows": list(self._rows),
            }  # fmt: skip

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` returned on this rank. Model and optimizer are the caller's to load."""
        self._check_state(stored)
        with self._stepper.in_hook():
            self._stepper.state = restore(self._stepper.state, stored["state"], self._network.finished)
        restore_generator(self._replica.random, stored["random"])
        self._take_counters(stored)

    def checkpoint(self, folder: str | Path) -> Path:
        """Write model, optimizer and session of all ranks into ``folder``; collective. The previous one lives until this one is whole.

        In server strategies it is the server's alone and not collective: rank 0 writes it, other ranks return at once.
        """
        self._refuse_if_over("checkpoint()")
        if self._serving is not None:
            with self._failing():
                return self._serving.checkpoint(Path(folder))
        with self._stage.pause(), self._failing():
            self._level_clocks()
            return checkpoints.write(Path(folder), self._stage, self._shard(), self.step)

    def resume(self, folder: str | Path) -> int:
        """Go on from the checkpoint in ``folder``; collective. Return the steps it had completed, so that the loop can skip their data.

        Exact with the number of workers that wrote it. With another, all start from the mean of the models it holds. In server strategies the
        server goes on and all workers take its model, however many they are; what is returned are its updates.
        """
        self._refuse_if_over("resume()")
        require(self.step == 0, f"resume() comes right after attach; {self.step} steps have been taken already.")
        with self._failing():
            if self._serving is not None:
                return self._serving.resume(Path(folder), self._stepper)
            shards = checkpoints.read(Path(folder), self.rank, self.size)
            if checkpoints.is_whole(Path(folder), self.size):
                self._resume_exactly(shards[0])
            else:
                self._resume_from_mean(shards)
        return self.step

    def _shard(self) -> dict[str, Any]:
        return {
            "model": self._module.state_dict(), "optimizer": self._optimizer.state_dict(), "session": self.state_dict(),
            "random": checkpoints.random_state(), "trace": packed(self._stage.trace, self._curve),
        }  # fmt: skip

    def _resume_exactly(self, shard: dict[str, Any]) -> None:
        self._module.load_state_dict(shard["model"])
        self._optimizer.load_state_dict(shard["optimizer"])
        self.load_state_dict(shard["session"])
        self._stage.take_trace(unpacked(shard["trace"])[0])
        checkpoints.restore_random(shard["random"])

    def _resume_from_mean(self, shards: list[dict[str, Any]]) -> None:
        stored = [shard["session"] for shard in shards]
        mine = self.rank % len(shards)
        self._check_state(stored[mine])
        self._module.load_state_dict(checkpoints.mean_model([shard["model"] for shard in shards]))
        self._optimizer.load_state_dict(shards[mine]["optimizer"])
        with self._stepper.in_hook():
            states = [restore(self._stepper.state, one["state"], None) for one in stored]
            self._stepper.state = self.strategy.merged(states, self.rank, self.size)
        self._take_counters(stored[mine])

    def _check_state(self, stored: Mapping[str, Any]) -> None:
        if stored["format"] != checkpoints.FORMAT or stored["strategy"] != str(self.strategy):
            raise TacitError(
                f"this state is of {stored['strategy']} (format {stored['format']}), the session runs {self.strategy} "
                f"(format {checkpoints.FORMAT}); attach the strategy it was written with."
            )

    def _take_counters(self, stored: Mapping[str, Any]) -> None:
        replica = self._replica
        replica.meter.load_state_dict(stored["meter"])
        restore_generator(replica.shared_random, stored["shared_random"])
        self._stepper.quiet = stored["quiet"]
        self._curve_meter.step = replica.step
        self._curve.rows, self._rows = [tuple(row) for row in stored["curve"]], list(stored["rows"])
        self._stage.set_clock(stored["time_s"])

    # The optimizer's hooks.

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            if self._serving is not None:
                self._serving.start()
            self._stepper.before(args[1:], kwargs)
        except BaseException as error:
            self._give_up(error)
            raise

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        weight = self._replica.weight
        try:
            self._stepper.after()
            self._curve_meter.end_step(weight)
            if self.step % self._curve.every == 0:
                self._add_to_curve()
        except BaseException as error:
            self._give_up(error)
            raise

    def _add_to_curve(self) -> None:
        if self._curve_meter.steps:
            seen = self._curve_meter.take()
            self._curve.add(self.step, self._stage.now_s(), seen.loss, seen.weight)
            self._log.write(self.step, {"training/loss": seen.loss, "time_s": self._stage.now_s()})

    # The end.

    def _report_buffers(self) -> None:
        policy = self._policies.buffers
        if policy == "average" and self.size > 1:
            buffers.average(self._module, self._stage.mean)
        elif policy == "recalibrate":
            batches = self._policies.calibration
            require(
                batches is not None, 'buffers="recalibrate" needs batches to measure on: calibration=… at tacit.attach.'
            )
            buffers.recalibrate(self._module, batches() if callable(batches) else batches)  # type: ignore[arg-type]

    def _level_out(self) -> None:
        """Everybody gets the model to report: the server's, or, where data ended early, that of a rank that took the last updates."""
        if self._serving is not None:
            self._serving.level_out()
            self.kept_models = self._serving.kept_models()
            return
        steps = [int(own) for own in self._stage.exchange(str(self._stepper.own_steps).encode())]
        if min(steps) < max(steps) and self._stepper.calls_before:
            self._stage.spread(self._flat.vector(), steps.index(max(steps)))
            self._flat.settle()

    def _make_run(self, records: list[bytes], status: str) -> None:
        trace, history = merged(records)
        tally = Tally(trace)
        told = [row_at(tally, **row) for row in self._rows]
        run = self.run
        run.trace, run.history, run.status = trace, told or history, status
        run.steps = self.steps or self.step
        run.parameters = self._flat.copy()
        run.workload = run.workload or f"<{type(self._module).__name__}>"
        run.config = run.config or {
            "workload": run.workload,
            "strategy": str(self.strategy),
            "seed": self.seed,
            "steps": self.steps,
        }
        run.record = {
            "tacit": _version(), "torch": torch.__version__, "python": platform.python_version(),
            "device": str(self._flat.device), "threads": torch.get_num_threads(), "world": self._stage.world,
        }  # fmt: skip

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
        try:
            if hasattr(self, "_stepper"):
                self._rescue(error)
                status = "interrupted" if isinstance(error, KeyboardInterrupt) else f"failed: {error}"
                self._make_run([packed(self._stage.trace, self._curve)], status)
                if isinstance(error, RunError | Interrupted):
                    error.run = self.run
        except Exception as second:  # noqa: BLE001 - the first error is the one to hear of
            error.add_note(f"What there was of the run could not be kept: {second}")
        finally:
            self._let_go(error)

    def _rescue(self, error: BaseException) -> None:
        """A lost worker must not cost the survivors' work."""
        folder = self._policies.rescue
        is_real = self._stage.world == "processes"  # simulated ones could not wait for each other's files
        is_begun = self.step > 0  # before that there is nothing to lose, and perhaps an older checkpoint to keep
        has_diverged = isinstance(error, PeerLost) and (error.reason or "").startswith("NotFinite")
        if folder is not None and is_real and is_begun and not has_diverged and isinstance(error, PeerLost | TimedOut):
            if self._serving is not None:
                if self._serving.is_here:
                    error.add_note(
                        f"The server's model is in {self._serving.checkpoint(folder)}; the same command resumes from it."
                    )
                return
            missing = {error.rank} if isinstance(error, PeerLost) else set(error.missing)
            alive = [rank for rank in range(self.size) if rank not in missing]
            kept = checkpoints.write_surviving(folder, self.rank, alive, self.size, self._shard(), self.step)
            error.add_note(f"What the others had is in {kept}; the same command resumes from it.")

    def _end_with_process(self) -> None:
        """The script is over and nobody called ``close``: say so, and do not leave the others waiting."""
        if not self._is_over:
            _logger.warning(
                "session.close() was never called: the last round was not played; call it after the loop, or use `with`."
            )
            self._give_up(TacitError("the script ended without session.close()"))

    def _let_go(self, error: BaseException | None) -> None:
        self._is_over = True
        atexit.unregister(self._end_with_process)
        for hook in self._hooks:
            hook.remove()
        self._optimizer.__dict__.pop(_MARK, None)
        if hasattr(self, "_stepper"):
            self._stepper.let_go()
            self._flat.release()
            self._log.close()
        self._stage.close(error)

    def _refuse_if_over(self, what: str) -> None:
        if self._is_over:
            raise MisplacedCall(f"{what} after the session was closed; attach again to go on.")


def _version() -> str:
    try:
        return version("tacit")
    except PackageNotFoundError:
        return "not installed"


def common_table(
    model: nn.Module, optimizer: Optimizer, strategy: Strategy[Any], steps: int | None, seed: int, policies: Policies
) -> dict[str, Any]:
    """Return what everybody who takes part in a run must come with alike."""
    return table_of(
        model, optimizer, tacit=_version(), strategy=str(strategy), seed=seed, steps=steps,
        buffers=policies.buffers, optimizer_state=policies.optimizer_state,
    )  # fmt: skip


def refuse_second(optimizer: Optimizer) -> None:
    """Raise where ``optimizer`` has a session already."""
    if _MARK in optimizer.__dict__:
        raise MisplacedCall("this optimizer is attached already; close its session first, or attach another optimizer.")
