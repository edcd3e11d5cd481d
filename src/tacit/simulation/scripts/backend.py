"""The backend of sessions in a simulated script, and the context of a worker before it attaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from tacit.core.messages import Message
from tacit.core.parameter_layout import Layout
from tacit.core.strategy import Strategy
from tacit.errors import Disagreement
from tacit.record.trace import PlainEvent, Trace
from tacit.session import Session
from tacit.session.agreement import first_difference
from tacit.session.backend import StepEnded
from tacit.session.server_model import KeptModel, ServerLoop, ServerModel
from tacit.simulation.collectives import Collective
from tacit.simulation.computing.backward_overlap import BackwardOverlap
from tacit.simulation.engine.means import mean_of_rows
from tacit.simulation.network import MessageType, SimulatedNetwork
from tacit.simulation.scripts.following import StepOfScript
from tacit.simulation.scripts.process_state import RngState
from tacit.simulation.scripts.session_trace import SessionTrace
from tacit.simulation.scripts.step_context import ScriptStep
from tacit.strategies.ddp import DDP

if TYPE_CHECKING:
    from tacit.simulation.channels import Channel
    from tacit.simulation.scripts.workers import ScriptWorker

Loaded = TypeVar("Loaded")


class ScriptBackend:
    """The simulated world for one session of one worker."""

    world = "simulated"
    membership = None  # of real processes
    server_is_process = False
    server_models: ClassVar[list[KeptModel]] = []
    live_round = totals = None
    step_ended: StepEnded | None = None
    start_exchange = None

    def __init__(self, worker: ScriptWorker, channel: Channel) -> None:
        self._worker, self.channel, self.rank, self.size = worker, channel, worker.rank, worker.size
        self.network = ClockedNetwork(worker, channel, self)
        self.trace: Trace = SessionTrace(channel.trace, worker.rank)
        self.step = ScriptStep(worker, self)
        self.session: Session | None = None  # once it is attached
        self.failure: BaseException | None = None  # what ended the session before its time
        self.is_open = False
        self.hook_lock: AbstractContextManager[Any] = nullcontext()  # hooks and handlers take turns already

    @property
    def is_handling(self) -> bool:
        return self._worker.is_handling

    # Time.

    def start_clock(self) -> None:
        """Nothing to do: what precedes the first step takes no virtual time."""

    def now_s(self) -> float:
        worker = self._worker  # a handler runs while its worker's clock stands at the last landing
        return worker.world.agenda.now_s if worker.is_handling else worker.clock_s

    def set_clock(self, time_s: float) -> None:
        """Nothing to do: virtual time is everybody's, and begins at 0 again where a run is resumed."""

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Evaluations cost no virtual time anyway; nor do they count as compute time where that is measured."""
        ran_s = self._worker.watch.read_s()
        try:
            yield
        finally:
            self._worker.watch.set(ran_s)

    def drain(self) -> None:
        """Nothing to do: virtual time does not pass in an evaluation."""

    def restore_trace(self, rows: list[PlainEvent]) -> None:
        """A simulated run's trace begins with the run."""

    def facts(self) -> dict[str, Any]:
        return {}  # simulated workers share one process

    def _follow(self, step: int, time_s: float, loss: float | Tensor | None, weight: float) -> None:
        """Pass a step of the first session to the world's follower, which may end the simulation."""
        world, session = self._worker.world, self.session
        assert world.follower is not None and session is not None
        known = None if loss is None else float(loss)
        ended = StepOfScript(self.rank, step, time_s, known, weight, session.updates)
        if world.follower(ended):
            world.agenda.stop()

    # Among sessions.

    def agree(self, own: dict[str, Any]) -> None:
        tables = self._gather("tacit.attach", own)
        for rank, table in enumerate(tables):
            if table is not tables[0] and (found := first_difference(table, tables[0])) is not None:
                what, theirs, expected = found
                raise Disagreement(what, theirs, expected, rank, at_attach=True)

    def publish(self, name: str, value: Any) -> None:
        self.channel.published.setdefault(name, {})[self.rank] = value

    def published(self, name: str) -> list[Any]:
        found = self.channel.published.get(name, {})
        return [found[rank] for rank in sorted(found)]

    def all_gather(self, data: bytes) -> list[bytes]:
        return self._gather("an exchange of states", data)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        own = tensor.detach().clone() if self.rank == source else None
        tensor.copy_(self._gather("a start from common values", own)[source])

    def mean(self, tensor: Tensor) -> Tensor:
        wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
        tensors: list[Tensor] = self._gather("a mean of the models", wide)
        return mean_of_rows(torch.stack(tensors), [1.0] * len(tensors)).to(tensor)

    def _gather(self, what: str, own: Any) -> list[Any]:
        return self._worker.world.session_collectives(self.channel.session).gather(self._worker, what, own)

    # Messages.

    def listen(self, session: Session, handler: Callable[[int, Message], None]) -> None:
        self.session, self.is_open = session, True
        if self._worker.world.follower is not None and self.channel.session == 0:
            self.step_ended = self._follow
        self._worker.listen(self.channel, session.strategy.handles, handler)
        self._worker.watch.set(0.0)

    def start_server(self, loop: ServerLoop | None, model: ServerModel | None, steps: int | None, seed: int) -> None:
        for shard in range(self.size):  # one after the other: a world counts its servers by shard
            if shard == self.rank and loop is not None and model is not None:
                self._worker.world.open_server(self._worker, self.channel, loop, model, steps, seed)
            if not any(self._gather("the start of the server", loop is not None and shard < self.rank)):
                break

    @property
    def server_hook_lock(self) -> AbstractContextManager[Any]:
        return nullcontext()  # fibers take turns

    def send_initial_model(self, model: Tensor) -> None:
        """Servers are always beside a worker here, and have its model."""

    def join_server(self) -> Tensor | None:
        return self._worker.world.join_server(self._worker, self.channel)

    @property
    def live_ranks(self) -> Sequence[int]:
        return range(self.size)

    def abort(self, failure: BaseException) -> None:
        """The world tells the others."""

    @property
    def failure_name(self) -> str | None:
        return None

    def is_gone(self, rank: int) -> bool:
        return False  # simulated workers write no rescue checkpoint

    def close(self, failure: BaseException | None) -> None:
        self.is_open, self.failure = False, self.failure or failure


class ClockedNetwork(SimulatedNetwork):
    """The network of a session whose worker has its own clock."""

    _end: ScriptWorker

    def __init__(self, worker: ScriptWorker, channel: Channel, backend: ScriptBackend) -> None:
        super().__init__(worker, channel)
        self._backend = backend

    def leave(self, collective: Collective, since_s: float) -> Any:
        worker = self._end
        result = super().leave(collective, worker.clock_s)
        worker.clock_s = max(worker.clock_s, collective.done_s[self.rank])
        if collective.kind == "all-reduce":
            self._backend.step.total_weight = sum(collective.joined[rank][1] for rank in collective.group)
        return result

    def receive(
        self, kind: type[MessageType], source: int | None = None, *, timeout_s: float | None = None
    ) -> tuple[int, MessageType]:
        received = super().receive(kind, source, timeout_s=timeout_s)
        self._end.clock_s = max(self._end.clock_s, self._end.world.agenda.now_s)
        return received


class SimulatedContext:
    """The context of a worker's script: its rank, the number of workers, its sessions, and data that is loaded once."""

    def __init__(self, worker: ScriptWorker) -> None:
        self._worker, self.rank, self.size = worker, worker.rank, worker.size
        self.strategy = worker.world.strategy
        self.own_strategies: list[str] = []
        self.backends: list[ScriptBackend] = []  # one per call of ``attach``
        self._calls_of_shared: dict[object, int] = {}

    @property
    def attached(self) -> list[tuple[Session, Channel]]:
        """The sessions and their channels, in the order of ``attach``."""
        return [(backend.session, backend.channel) for backend in self.backends if backend.session is not None]

    def open_backend(self, model: nn.Module, strategy: Strategy[Any]) -> ScriptBackend:
        """Return the backend of a new session, which trains ``model`` with ``strategy``."""
        channel = self._worker.world.channel(len(self.backends))
        if isinstance(strategy, DDP) and channel.collectives.overlap is None:
            channel.collectives.overlap = BackwardOverlap(strategy, Layout.of(model), self._worker.world.step_s)
        self.backends.append(ScriptBackend(self._worker, channel))
        return self.backends[-1]

    def share(self, load: Callable[[], Loaded]) -> Loaded:
        """Return the result of ``load()`` on the first worker that made the same call.

        Calls are the same if they have the same code and the same count. If ``load()`` drew random numbers, the
        generators of the other workers get the state after it, as if they had drawn the numbers themselves.
        """
        code = getattr(load, "__code__", None) or getattr(getattr(load, "__func__", None), "__code__", None)
        where = (code, code.co_filename) if code is not None else repr(load)
        number = self._calls_of_shared[where] = self._calls_of_shared.get(where, 0) + 1
        shared_cache = self._worker.world.shared_cache
        if (where, number) not in shared_cache:
            before, value = RngState.now(), load()
            shared_cache[where, number] = (value, before, RngState.now())
            return value
        loaded, before, after = shared_cache[where, number]
        if before != after and RngState.now() == before:
            after.restore()
        result: Loaded = loaded
        return result
