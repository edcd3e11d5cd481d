"""The stage on which a session of a simulated script plays: the port of its worker, and exchanges among sessions that take no time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from tacit.errors import Disagreement, PeerLost
from tacit.messages import Message
from tacit.session import Session
from tacit.session.agreement import first_difference
from tacit.session.server_model import KeptModel, ServerLife, ServerModel
from tacit.simulation.agenda import Agenda
from tacit.simulation.fibers import Fiber
from tacit.simulation.meetings import mean_of
from tacit.simulation.script_state import Standing
from tacit.trace import Column, PlainEvent, Trace

if TYPE_CHECKING:
    from tacit.simulation.script_workers import ScriptWorker

Loaded = TypeVar("Loaded")


class ScriptStage:
    """One simulated worker's world, as its session sees it."""

    world = "simulated"
    server_is_apart = False
    server_kept: ClassVar[list[KeptModel]] = []

    def __init__(self, worker: ScriptWorker) -> None:
        self._worker, self.rank, self.size, self.network = worker, worker.rank, worker.size, worker.network
        self.trace: Trace = OwnEvents(worker.world.trace, worker.rank)
        self.total_weight = 0.0
        self.sessions: list[Session] = []  # in the order they were attached
        self.failure: BaseException | None = None  # what ended a session before its time
        self._open = 0
        self.monitor: AbstractContextManager[Any] = nullcontext()  # hooks and handlers take turns already
        self._calls_of_shared: dict[object, int] = {}

    @property
    def is_handling(self) -> bool:
        return self._worker.is_handling

    @property
    def is_closed(self) -> bool:
        return not self._open

    # Time.

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

    def compute(self, step: int) -> None:
        self._worker.compute(step)
        self._worker.world.tell(self.rank, step, self.sessions[-1].steps, self.now_s())

    def landed(self, step: int, is_dropped: bool) -> None:
        """``compute`` has put it into the trace."""

    def hooked(self) -> None:
        """Virtual time passes in ``compute`` alone."""

    def take_trace(self, rows: list[PlainEvent]) -> None:
        """A simulated run's trace begins with the run."""

    def stepped(self) -> None:
        self._worker.watch.set(0.0)

    def abandon(self) -> bool:
        return self._worker.abandon()

    # Among sessions.

    def agree(self, own: dict[str, Any]) -> None:
        tables = self._gather("tacit.attach", own)
        for rank, table in enumerate(tables):
            if table is not tables[0] and (found := first_difference(table, tables[0])) is not None:
                what, theirs, expected = found
                raise Disagreement(what, theirs, expected, rank, at_attach=True)

    def exchange(self, data: bytes) -> list[bytes]:
        return self._gather("an exchange of states", data)

    def spread(self, tensor: Tensor, source: int = 0) -> None:
        own = tensor.detach().clone() if self.rank == source else None
        tensor.copy_(self._gather("a start from common values", own)[source])

    def mean(self, tensor: Tensor) -> Tensor:
        wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
        tensors: list[Tensor] = self._gather("a mean of the models", wide)
        return mean_of(tensors, [1.0] * len(tensors))[0].to(tensor, copy=True)

    def _gather(self, what: str, own: Any) -> list[Any]:
        return self._worker.world.assemblies.gather(self._worker, what, own)

    # Messages.

    def listen(self, session: Session, handler: Callable[[int, Message], None]) -> None:
        self.sessions.append(session)
        self._open += 1
        self._worker.listen(session.strategy.handles, handler)
        self._worker.watch.set(0.0)

    def start_server(self, life: ServerLife | None, model: ServerModel | None, steps: int | None, seed: int) -> None:
        for shard in range(self.size):  # one after the other: a world counts its servers by shard
            if shard == self.rank and life is not None and model is not None:
                self._worker.world.open_server(self._worker, life, model, steps, seed)
            if not any(self._gather("the start of the server", life is not None and shard < self.rank)):
                break

    @property
    def server_monitor(self) -> AbstractContextManager[Any]:
        return nullcontext()  # fibers take turns

    def send_start(self, model: Tensor) -> None:
        """Servers are always beside a worker here, and have its model."""

    def join_server(self) -> Tensor | None:
        return self._worker.world.join_server(self._worker)

    def close(self, failure: BaseException | None) -> None:
        self._open = max(0, self._open - 1)  # one that failed before it could listen was never open
        self.failure = self.failure or failure

    # Data that is loaded once.

    def share(self, load: Callable[[], Loaded]) -> Loaded:
        """Return what the first worker's ``load()`` returned in the same call of the script.

        The same call is the same code, called as often before. Where the first worker drew random numbers in it, the others' generators go on from
        where its were afterwards, as if they had drawn them too.
        """
        code = getattr(load, "__code__", None) or getattr(getattr(load, "__func__", None), "__code__", None)
        where = (code, code.co_filename) if code is not None else repr(load)
        number = self._calls_of_shared[where] = self._calls_of_shared.get(where, 0) + 1
        shelf = self._worker.world.shelf
        if (where, number) not in shelf:
            before, value = Standing.now(), load()
            shelf[where, number] = (value, before, Standing.now())
            return value
        loaded, before, after = shelf[where, number]
        if before != after and Standing.now() == before:
            after.take_up()
        result: Loaded = loaded
        return result


class OwnEvents(Trace):
    """One worker's events out of the trace that all write, on rank 0 the servers' too: nothing is kept twice."""

    def __init__(self, whole: Trace, rank: int) -> None:
        super().__init__()
        self._whole, self._rank = whole, rank
        self.record = whole.record  # type: ignore[method-assign]

    def __len__(self) -> int:
        return len(self.in_order()["rank"])

    @property
    def vocabulary(self) -> list[str]:
        return self._whole.vocabulary

    def in_order(self) -> dict[str, Column]:
        columns = self._whole.in_order()
        are_mine = self._are_mine(columns["rank"])
        return {name: column[are_mine] for name, column in columns.items()}

    def unordered(self, names: Sequence[str], kind: str | None = None, label: str | None = None) -> list[Column]:
        ranks, *found = self._whole.unordered(["rank", *names], kind, label)
        are_mine = self._are_mine(ranks)
        return [column[are_mine] for column in found]

    def _are_mine(self, ranks: Column) -> Column:
        is_mine: Column = ranks == self._rank
        return is_mine | (ranks < 0) if self._rank == 0 else is_mine


class Assembly:
    """One exchange among all sessions."""

    def __init__(self, what: str, size: int) -> None:
        self.what, self.size = what, size
        self.brought: dict[int, Any] = {}
        self.waiters: dict[int, Fiber] = {}
        self.failure: BaseException | None = None

    def __str__(self) -> str:
        missing = [rank for rank in range(self.size) if rank not in self.brought]
        shown = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        return f"worker{'s' * (len(missing) > 1)} {shown} to come to {self.what}"


class Place(NamedTuple):
    """Where in its script a worker waits, and for which assembly."""

    assembly: Assembly
    line: str

    def __str__(self) -> str:
        return f"{self.assembly} ({self.line})"


class Assemblies:
    """Exchanges among sessions, in the order each rank calls them. They take no virtual time and are not counted."""

    def __init__(self, workers: int, agenda: Agenda) -> None:
        self._agenda, self._size = agenda, workers
        self._counts = [0] * workers
        self._open: dict[int, Assembly] = {}
        self._lost: dict[int, float] = {}

    def gather(self, worker: ScriptWorker, what: str, own: Any) -> list[Any]:
        """Wait until all have come to their call, and return what they brought, in rank order."""
        number = self._counts[worker.rank] = self._counts[worker.rank] + 1
        assembly = self._open.setdefault(number, Assembly(what, self._size))
        if assembly.what != what:
            others = sorted(assembly.brought)
            raise Disagreement("call that all ranks make together", what, assembly.what, worker.rank, others=others)
        for rank, at_s in self._lost.items():
            raise PeerLost(rank, at_s, what)
        assembly.brought[worker.rank] = own
        if len(assembly.brought) == self._size:
            del self._open[number]
            self._agenda.at(self._agenda.now_s, lambda: self._wake(assembly))
        assembly.waiters[worker.rank] = worker.fiber
        worker.stand_by(Place(assembly, worker.world.script.line()))
        return [assembly.brought[rank] for rank in range(self._size)]

    def lose(self, rank: int, at_s: float) -> None:
        """Tell everybody who waits for a worker that is gone."""
        self._lost[rank] = at_s
        for assembly in self._open.values():
            for waiter in sorted(assembly.waiters):
                assembly.waiters.pop(waiter).throw(PeerLost(rank, at_s, assembly.what))
        self._open.clear()

    def _wake(self, assembly: Assembly) -> None:
        for rank in sorted(assembly.waiters):
            assembly.waiters.pop(rank).resume()
