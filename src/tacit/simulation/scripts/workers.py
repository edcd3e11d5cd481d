"""Workers that run a user's script, and the server of their strategy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tacit.core.messages import Message
from tacit.core.network import Envelope, server_address
from tacit.core.randomness import Streams
from tacit.errors import RunError, ScriptFailed
from tacit.record.trace import Trace
from tacit.session.server_model import ServerLoop, ServerModel
from tacit.simulation.computing.compute_times import StepInProgress
from tacit.simulation.computing.processor import Processor
from tacit.simulation.endpoints import Endpoint
from tacit.simulation.fibers import Fiber, Stopped
from tacit.simulation.scripts.backend import SimulatedContext
from tacit.simulation.scripts.process_state import (
    ComputeClock,
    Generators,
    ProcessState,
    environment_of,
    without_autocast,
)

if TYPE_CHECKING:
    from tacit.simulation.channels import Channel
    from tacit.simulation.scripts.world import ScriptWorld

Handler = Callable[[int, Message], None]


class ScriptWorker(Endpoint):
    """A worker whose steps are those of a script.

    Its clock does not advance in exchanges among sessions. After an evaluation it may therefore be behind the agenda by
    the time that it waited for the slowest worker; a step that ends before the agenda's time then ends at once.
    """

    world: ScriptWorld

    def __init__(self, world: ScriptWorld, rank: int) -> None:
        super().__init__(world, rank)
        self.compute_times, self.watch = world.compute_times(rank), ComputeClock()
        self.last_step_s = 0.0
        self.clock_s = 0.0
        self.boundary_s = 0.0  # end of the last step
        self.is_stopped = False
        self._step_in_progress: StepInProgress | None = None
        self._handlers: dict[int, tuple[tuple[type[Message], ...], Handler]] = {}  # by session: kinds and handler
        self.context = SimulatedContext(self)
        script = world.script
        arguments, environment = [str(script.path), *script.arguments], environment_of(rank, self.size)
        self.process_state = ProcessState(script.main(), arguments, environment, Generators(world.streams, rank))
        self.process_state.context = self.context
        self.kinds = self.process_state.kinds
        self.fiber = ScriptFiber(self, self.fiber)

    # Running the script.

    def _run(self) -> None:
        torch.set_grad_enabled(True)
        try:
            self.live()
        finally:
            self.world.ended(self)

    def live(self) -> None:
        try:
            self._play()
            self._check_end()
        except BaseException as error:
            for session, _ in self.context.attached:  # no effect on closed sessions
                session.__exit__(type(error), error, error.__traceback__)
            raise

    def _play(self) -> None:
        script = self.world.script
        try:
            exec(script.code, vars(self.process_state.main))
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                raise ScriptFailed(self.rank, f"called sys.exit({leaving.code!r}).") from leaving
        except RunError as error:
            error.add_note("\n".join([f"Raised in the script of worker {self.rank}:", *script.own_lines(error)]))
            raise
        except Exception as error:
            what = f"raised {type(error).__name__}: {error}"
            raise ScriptFailed(self.rank, what, script.own_lines(error)) from error

    def _check_end(self) -> None:
        backends = self.context.backends
        if any(isinstance(backend.failure, SystemExit) for backend in backends):
            raise ScriptFailed(self.rank, "called sys.exit() inside its session; call session.close() first.")
        if any(backend.is_open for backend in backends):
            raise ScriptFailed(
                self.rank,
                f"ended after step {self.context.attached[-1][0].step} without session.close(), which runs the last "
                f"round; add session.close() after the loop, or write: with tacit.attach(…) as session.",
            )

    # Time.

    def compute(self, step: int, trace: Trace) -> None:
        """Let the time of a step pass after the script has computed its gradient, and add the step to ``trace``."""
        world, times, start_s = self.world, self.compute_times, self.clock_s
        work_s = self.watch.read_s() if world.is_measured else None
        if self.processor is not None:
            self._compute_beside_transfers(self.processor, work_s, step, trace)
            return
        end_s = times.times_of_steps(start_s, 1)[-1] if work_s is None else times.end_of_work(start_s, work_s)
        self.last_step_s = end_s - start_s
        in_progress = self._step_in_progress = StepInProgress(self, start_s, step, trace)
        if end_s >= world.agenda.now_s:
            world.agenda.at(end_s, in_progress.end)
            self.block("a step")
        self._step_in_progress = None
        if in_progress.is_abandoned:
            self.clock_s = self.boundary_s = world.agenda.now_s
        else:
            self.clock_s = self.boundary_s = end_s
            trace.compute(self.rank, step, start_s, end_s)

    def _compute_beside_transfers(self, processor: Processor, work_s: float | None, step: int, trace: Trace) -> None:
        """Do as ``compute``, on a core that transfers take time of."""
        times, start_s = self.compute_times, self.clock_s
        own_s = times.work_of_step() if work_s is None else times.own_seconds(work_s)
        in_progress = self._step_in_progress = StepInProgress(self, start_s, step, trace)
        end_s = self.pass_work(
            processor, start_s, own_s, in_progress.end, lambda: self._step_in_progress is in_progress
        )
        self._step_in_progress = None
        self.clock_s = self.boundary_s = end_s
        self.last_step_s = end_s - start_s
        if not in_progress.is_abandoned:
            trace.compute(self.rank, step, start_s, end_s)

    def _own_time_s(self) -> float:
        return self.clock_s

    def _work(self, seconds: float, what: str, numbers: int) -> None:
        super()._work(seconds, what, numbers)
        self.clock_s = max(self.clock_s, self.busy_until_s)

    def abandon(self) -> bool:
        """Drop the gradient in progress; return whether there is one."""
        if self._step_in_progress is None:
            return False
        self._step_in_progress.abandon()
        return True

    def block(self, what: object) -> None:
        if self.is_stopped:  # the script caught the error that ends it
            raise Stopped
        with without_autocast():
            super().block(what)
        self.clock_s = max(self.clock_s, self.world.agenda.now_s)

    def describe_wait(self) -> str:
        return f"{super().describe_wait()} ({self.world.script.call_in(self.fiber.frame)})"

    def stand_by(self, what: object) -> None:
        """Block without advancing the worker's clock."""
        clock_s = self.clock_s
        self.block(what)
        self.clock_s = clock_s

    # Messages.

    def listen(self, channel: Channel, handles: tuple[type[Message], ...], handler: Handler) -> None:
        """Pass messages of a session and of the kinds ``handles`` to ``handler``, first those that arrived early."""
        self._handlers[channel.session] = handles, handler
        early, self._inbox = self._inbox, deque()
        for envelope in early:
            self.accept(envelope)

    def accept(self, envelope: Envelope) -> None:
        """Pass handled kinds to the handler; a paused worker accepts them when it wakes."""
        agenda = self.world.agenda
        awake_s = max(self.compute_times.awake_from(agenda.now_s), self.busy_until_s)
        if awake_s > agenda.now_s:
            agenda.at(awake_s, lambda: self.accept(envelope))
        elif not self.is_lost:
            handles, handler = self._handlers.get(envelope.session, ((), None))
            if handler is not None and envelope.message.is_of(*handles):
                self._handle(handles, handler, envelope)
            else:
                super().accept(envelope)

    def _handle(self, handles: tuple[type[Message], ...], handler: Handler, envelope: Envelope) -> None:
        self.world.interpreter.switch_to(self.process_state)
        self.is_handling, self.replies_left = True, 1
        try:
            with torch.no_grad():
                handler(envelope.source, envelope.message.received_as(handles, self.kinds))
        finally:
            self.is_handling = False


class ScriptServer(Endpoint):
    """The server of a session's strategy, or a shard of it, with its own model and optimizer."""

    knows_split = False  # the script loads the data

    def __init__(
        self,
        world: ScriptWorld,
        channel: Channel,
        shard: int,
        loop: ServerLoop,
        model: ServerModel,
        steps: int | None,
        seed: int,
    ) -> None:
        super().__init__(world, server_address(shard), channel)
        self.shard, self._model, self._loop, self._steps = shard, model, loop, steps
        self._own_random = Streams(seed).numpy("strategy", self.rank)
        self.waiter: Fiber | None = None

    @property
    def parameters(self) -> Tensor:
        return self._model.parameters

    @property
    def steps(self) -> int | None:
        return self._steps

    @property
    def random(self) -> np.random.Generator:
        return self._own_random

    def now_s(self) -> float:
        return self.world.agenda.now_s

    def update(self, gradient: Tensor, learning_rate: float | None = None, *, uses_optimizer: bool = True) -> None:
        self.spend("divide", gradient.numel())  # the mean of the gradients that it was given
        self.spend("update", gradient.numel())
        self._model.update(gradient, learning_rate, self.world.agenda.now_s, uses_optimizer=uses_optimizer)
        if self.shard == 0:
            self.note("update", self._model.updates)

    def note(self, name: str, value: float, about: int | None = None) -> None:
        self.network.channel.trace.note(self.rank, self.world.agenda.now_s, name, value, about)

    def write_part(self, folder: str, version: int) -> str:
        return self._loop.write_part(folder, self.shard, version)

    def live(self) -> None:
        self._loop.run(self)
        if self.waiter is not None:
            self.world.agenda.at(self.world.agenda.now_s, self.waiter.resume)


class ScriptFiber:
    """The fiber of a worker; the interpreter has the worker's state while it runs."""

    def __init__(self, worker: ScriptWorker, fiber: Fiber) -> None:
        self._worker, self._fiber, self.is_over = worker, fiber, False

    def resume(self) -> None:
        self._switch_and_run(self._fiber.resume)

    def throw(self, error: BaseException) -> None:
        self._worker.is_stopped |= isinstance(error, Stopped)
        self._switch_and_run(lambda: self._fiber.throw(error))

    def park(self) -> None:
        self._fiber.park()

    @property
    def frame(self) -> FrameType | None:
        return self._fiber.frame

    def _switch_and_run(self, action: Callable[[], None]) -> None:
        worker, interpreter = self._worker, self._worker.world.interpreter
        interpreter.switch_to(worker.process_state)
        interpreter.shows_output = worker.rank == 0
        worker.watch.start()
        try:
            action()
        finally:
            worker.watch.stop()
            interpreter.shows_output = True
            self.is_over = self._fiber.is_over
