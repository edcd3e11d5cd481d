"""Replay: the simulator follows the order in which real processes took their steps and their messages.

What an asynchronous strategy computes follows from its seeds and from who came first. The latter a real run's trace
tells, endpoint by endpoint: when a step was over, a message handled or received, a collective left. Here everybody does
the same in the same order and, where that holds nobody up, at the same time. Messages themselves are not in the record:
the simulated workers make them again, and both runs reach the same model.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from tacit.cluster.cluster import Cluster
from tacit.core.messages import Message
from tacit.core.network import Envelope
from tacit.errors import Deadlock, Diverged, require
from tacit.record.run import Run
from tacit.record.trace import CANCELLED, COMPUTE, EXCHANGE, NOTE, RECEIVE, Event, Trace
from tacit.session.server_model import ServerModel
from tacit.simulation.channels import Channel
from tacit.simulation.collectives import Collective
from tacit.simulation.compute_times import ComputeTimes
from tacit.simulation.endpoints import Endpoint, SimulatedServer
from tacit.simulation.network import SimulatedNetwork
from tacit.simulation.workers import SimulatedWorker, StepInProgress
from tacit.simulation.world import World
from tacit.strategies import Strategy, may_send

MessageType = TypeVar("MessageType", bound=Message)
_STEPS: Final = (COMPUTE, CANCELLED)
_TURNS: Final = (*_STEPS, RECEIVE, EXCHANGE)

Record = Mapping[int, Sequence[Event]]
"""By endpoint: what it did, in its own order."""


def check_replay(strategy: Strategy[Any], run: Run) -> None:
    """Raise unless ``run`` is one whose order can be followed and matters."""
    require(
        may_send(strategy),
        f"{strategy} sends no messages whose order a replay could follow; simulated from the same seed it reaches the same model anyway.",
    )
    require(
        run.record.get("world") == "processes",
        f"this run of {run.strategy} was not on real processes, whose order alone is worth following; give one that tacit train wrote.",
    )
    require(
        run.status == "finished",
        f"this run of {run.strategy} {run.status}; only a finished one can be followed to its end.",
    )
    lost = sorted({event.peer for event in run.trace.of(NOTE) if event.label == "lost"})
    require(
        not lost,
        f"this run of {run.strategy} has lost worker {', '.join(map(str, lost))}, and with it that worker's part of the trace; "
        f"only a run that all workers finished can be followed.",
    )


def turns_of(trace: Trace) -> Record:
    """Return the events of a trace that somebody's turn comes with."""
    record: dict[int, list[Event]] = defaultdict(list)
    for event in trace.of(*_TURNS):
        record[event.rank].append(event)
    return record


def cluster_of(run: Run) -> Cluster:
    """Return a cluster on which nothing takes time of its own."""
    return Cluster(workers=run.workers, latency_s=0.0, bandwidth_bytes_per_s=float("inf"), cancel="step_end")


def described(run: Run) -> str:
    """Return what a replay of ``run`` has in a cluster's place."""
    return f"replay of {run.cluster or 'real processes'}"


class ReplayCursor:
    """One endpoint's turns, and the messages that have come before theirs."""

    def __init__(
        self,
        endpoint: Endpoint,
        events: Sequence[Event],
        handles: tuple[type[Message], ...],
        handle: Callable[[Envelope], None],
    ) -> None:
        self._end, self._agenda = endpoint, endpoint.world.agenda
        self._left, self._handles, self._handle = deque(events), handles, handle
        self._here: dict[tuple[int, str], deque[Envelope]] = defaultdict(deque)  # by source and kind
        self._awaited: tuple[str, ...] = ()  # the kinds of turn that the fiber is parked for
        self.received_s = 0.0  # when the recorded run received what was received last
        self._passed = 0  # steps whose turn nobody waits for
        self.may_handle = False

    @property
    def next(self) -> Event | None:
        return self._left[0] if self._left else None

    def arrived(self, envelope: Envelope) -> None:
        """Keep a message until its turn comes."""
        self._here[envelope.source, envelope.message.kind].append(envelope)
        self.take_place()

    def pass_steps(self, step: int) -> None:
        """No hook follows the steps up to ``step`` that are left: their turns hold nobody up."""
        self._passed = step
        self._agenda.at(self._agenda.now_s, self.take_place)

    def wait_for(self, *kinds: str, what: str) -> Event:
        """Park until a turn of one of ``kinds`` has come."""
        self._agenda.at(self._agenda.now_s, self.take_place)
        self._awaited = kinds
        self._end.block(f"its turn for {what}")
        self._awaited = ()
        self._agenda.at(self._agenda.now_s, self.take_place)  # whatever comes next, once this fiber is parked again
        return self._left.popleft()

    def receive(self, kind: type[MessageType], source: int | None) -> tuple[int, MessageType]:
        """Return the message that the recorded run received here."""
        turn = self.wait_for(RECEIVE, what=kind.__name__)
        self.received_s = turn.time_s
        envelope = self._here[turn.peer, turn.label].popleft()
        if not envelope.message.is_of(kind) or source not in (None, turn.peer):
            raise Diverged(self._end.rank, f"receives {kind.__name__}", _described(turn))
        return envelope.source, envelope.message.received_as((kind,))  # type: ignore[return-value]

    def take_place(self) -> None:
        """Let happen what it is time for; no fiber runs meanwhile."""
        while self._left:
            turn = self._left[0]
            if turn.kind in _STEPS and turn.step <= self._passed:
                self._left.popleft()
                continue
            is_handled, is_due = self._readiness(turn)
            if not is_due:
                return
            if turn.time_s > self._agenda.now_s:
                self._agenda.at(turn.time_s, self.take_place)
                return
            if is_handled:
                self._left.popleft()
                self._handle(self._here[turn.peer, turn.label].popleft())
            else:
                self._end.fiber.resume()
                return

    def _readiness(self, turn: Event) -> tuple[bool, bool]:
        """Return whether the turn is a handler's, and whether it has come."""
        if turn.kind != RECEIVE:
            return False, turn.kind in self._awaited
        here = self._here[turn.peer, turn.label]
        if not here:
            return False, False
        is_handled = here[0].message.is_of(*self._handles)
        return is_handled, self.may_handle if is_handled else RECEIVE in self._awaited


class ReplayedNetwork(SimulatedNetwork):
    """The port of an endpoint that leaves collectives in its turn."""

    _end: ReplayedWorker

    def leave(self, collective: Collective, since_s: float) -> Any:
        self._end.turns.pass_steps(self._end.step)
        result = super().leave(collective, since_s)
        self._end.turns.wait_for(EXCHANGE, what=str(collective))
        return result


class ReplayedWorker(SimulatedWorker):
    """A worker that ends its steps, and takes its messages, when a recorded one did."""

    def __init__(self, world: World, rank: int, events: Sequence[Event]) -> None:
        super().__init__(world, rank)
        self.turns = ReplayCursor(self, events, world.strategy.handles, self._handle)
        self.network = ReplayedNetwork(self, world.channels[0])
        self.pace: ComputeTimes = RecordedComputeTimes(
            self.pace, [event.time_s for event in events if event.kind in _STEPS]
        )

    def accept(self, envelope: Envelope) -> None:
        self.turns.arrived(envelope)

    def take(self, channel: Channel, kind: type[MessageType], source: int | None) -> tuple[int, MessageType]:
        return self.turns.receive(kind, source)

    def _fly(self, step_in_progress: StepInProgress, end_s: float, *, is_loud: bool) -> float:
        self.turns.may_handle = True
        self.turns.pass_steps(step_in_progress.step - 1)
        if not is_loud:
            return super()._fly(step_in_progress, end_s, is_loud=False)
        turn = self.turns.wait_for(*_STEPS, what=f"the end of step {step_in_progress.step}")
        if turn.step != step_in_progress.step or (turn.kind == CANCELLED) != step_in_progress.is_abandoned:
            done = "abandons" if step_in_progress.is_abandoned else "ends"
            raise Diverged(self.rank, f"{done} step {step_in_progress.step}", _described(turn))
        step_in_progress.close()
        return self.world.agenda.now_s


class ReplayedServer(SimulatedServer):
    """A server that receives in the order of a recorded one."""

    def __init__(self, world: World, shard: int, model: ServerModel, record: Record) -> None:
        super().__init__(world, shard, model)
        self.turns = ReplayCursor(self, record.get(self.rank, ()), (), self._inbox.append)

    def now_s(self) -> float:
        return self.turns.received_s  # decisions by time are those of the recorded run

    def accept(self, envelope: Envelope) -> None:
        self.turns.arrived(envelope)

    def take(self, channel: Channel, kind: type[MessageType], source: int | None) -> tuple[int, MessageType]:
        return self.turns.receive(kind, source)


class RecordedComputeTimes(ComputeTimes):
    """Steps that end when they ended."""

    def __init__(self, drawn: ComputeTimes, ends_s: Sequence[float]) -> None:
        self._ends_s, self._next = ends_s, 0
        self.crash_s = drawn.crash_s

    def times_of_steps(self, start_s: float, count: int) -> list[float]:
        times_s = [start_s]
        for _ in range(count):
            times_s.append(self.end_of_step(times_s[-1]))
        return times_s

    def end_of_step(self, start_s: float) -> float:
        self._next += 1
        recorded = self._ends_s[self._next - 1 : self._next]
        return max([start_s, *recorded])

    def awake_from(self, time_s: float) -> float:
        return time_s


class ReplayWorld(World):
    """The world of a run that follows another."""

    workers: list[ReplayedWorker]  # type: ignore[assignment]
    servers: list[ReplayedServer]  # type: ignore[assignment]

    def __init__(self, record: Record, *given: Any, **named: Any) -> None:
        self._record = record
        super().__init__(*given, **named)

    def make_worker(self, rank: int) -> SimulatedWorker:
        return ReplayedWorker(self, rank, self._record.get(rank, ()))

    def make_server(self, shard: int, model: ServerModel) -> SimulatedServer:
        return ReplayedServer(self, shard, model, self._record)

    def _raise_deadlock(self) -> None:
        try:
            super()._raise_deadlock()
        except Deadlock as stuck:
            rank, what, _ = min(stuck.waiting, key=lambda one: one[2])
            ends: list[ReplayedWorker | ReplayedServer] = [*self.workers, *self.servers]
            turn = next(end.turns.next for end in ends if end.rank == rank)
            raise Diverged(rank, f"waits for {what}", "its end" if turn is None else _described(turn)) from stuck


def _described(turn: Event) -> str:
    match turn.kind:
        case "receive":
            return f"{turn.label} of worker {turn.peer}" if turn.peer >= 0 else f"the server's {turn.label}"
        case "exchange":
            return turn.label
        case _:
            return f"step {turn.step}" + (", abandoned" if turn.kind == CANCELLED else "")
