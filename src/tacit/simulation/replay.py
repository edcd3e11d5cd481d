"""Replay: the simulator repeats the order of steps and messages of a run on real processes.

The result of an asynchronous strategy depends on its seeds and on the order of events. The trace of a real run contains
this order for each endpoint: ends of steps, messages handled or received, ends of collectives. In a replay endpoints do
the same in the same order, at the recorded time or later. The trace does not contain the messages themselves: the
simulated workers compute them again, and both runs end with the same model.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from tacit.cluster.cluster import Cluster
from tacit.core.message_kinds import latest_kinds
from tacit.core.messages import Message
from tacit.core.network import Envelope
from tacit.errors import Deadlock, ReplayDiverged, require
from tacit.record.run import Run
from tacit.record.trace import CANCELLED, COMPUTE, EXCHANGE, NOTE, RECEIVE, Event, Trace
from tacit.session.server_model import ServerModel
from tacit.simulation.channels import Channel
from tacit.simulation.collectives import Collective
from tacit.simulation.computing.compute_times import ComputeTimes, StepInProgress
from tacit.simulation.endpoints import Endpoint, SimulatedServer
from tacit.simulation.network import SimulatedNetwork
from tacit.simulation.workers import SimulatedWorker
from tacit.simulation.world import World
from tacit.strategies import Strategy, may_send

MessageType = TypeVar("MessageType", bound=Message)
_STEPS: Final = (COMPUTE, CANCELLED)
_REPLAYED: Final = (*_STEPS, RECEIVE, EXCHANGE)

Record = Mapping[int, Sequence[Event]]
"""The events of each endpoint, in order."""


def check_replay(strategy: Strategy[Any], run: Run) -> None:
    """Raise unless ``run`` can be replayed with ``strategy``."""
    require(
        may_send(strategy),
        f"strategy={strategy} sends no messages, so there is no order to replay; "
        f"a simulation with the same seed ends with the same model, unless the period depends on measured times.",
    )
    require(
        run.record.get("world") == "processes",
        f"this run of {run.strategy} was not made on real processes, and only their order can be replayed; "
        f"pass a run of tacit train.",
    )
    require(
        run.status == "finished",
        f"this run of {run.strategy} has the status {run.status!r}; only a finished run can be replayed.",
    )
    lost = sorted({event.peer for event in run.trace.of(NOTE) if event.label == "lost"})
    require(
        not lost,
        f"this run of {run.strategy} lost worker {', '.join(map(str, lost))}, and that worker's part of the trace; "
        f"only a run that all workers finished can be replayed.",
    )
    known = {name.decode() for name in latest_kinds()}
    unknown = sorted({event.label for event in run.trace.of(RECEIVE)} - known)
    require(
        not unknown,
        f"the trace of this run of {run.strategy} contains messages labelled {', '.join(unknown)}, which are no wire "
        f"names of this version: tacit used to write class names there; record the run again with tacit train.",
    )


def record_of(trace: Trace) -> Record:
    """Return the events of a trace that a replay repeats."""
    record: dict[int, list[Event]] = defaultdict(list)
    for event in trace.of(*_REPLAYED):
        record[event.rank].append(event)
    return record


def cluster_of(run: Run) -> Cluster:
    """Return a cluster on which communication takes no time."""
    return Cluster(workers=run.workers, latency_s=0.0, bandwidth_bytes_per_s=float("inf"), cancel="step_end")


def described(run: Run) -> str:
    """Return the description of the cluster of a replay."""
    return f"replay of {run.cluster or 'real processes'}"


class ReplayCursor:
    """The position of one endpoint in its record, and the messages that arrived before their turn."""

    def __init__(
        self,
        endpoint: Endpoint,
        events: Sequence[Event],
        handles: tuple[type[Message], ...],
        handle: Callable[[Envelope], None],
    ) -> None:
        self._end, self._agenda = endpoint, endpoint.world.agenda
        self._left, self._handles, self._handle = deque(events), handles, handle
        self._arrived: dict[tuple[int, str], deque[Envelope]] = defaultdict(deque)  # by source and kind
        self._awaited: tuple[str, ...] = ()  # the kinds of event that the fiber is parked for
        self.received_s = 0.0  # time of the last received message in the recorded run
        self._passed = 0  # number of the last step without hooks
        self.may_handle = False

    @property
    def next(self) -> Event | None:
        return self._left[0] if self._left else None

    def arrived(self, envelope: Envelope) -> None:
        """Keep a message until its event is the next one."""
        self._arrived[envelope.source, envelope.message.kind].append(envelope)
        self.advance()

    def pass_steps(self, step: int) -> None:
        """Skip the events of steps up to ``step``: no hook follows them."""
        self._passed = step
        self._agenda.at(self._agenda.now_s, self.advance)

    def wait_for(self, *kinds: str, call: str) -> Event:
        """Park in ``call`` until the next event is of one of ``kinds``; return the event."""
        self._agenda.at(self._agenda.now_s, self.advance)
        self._awaited = kinds
        self._end.block(call)
        self._awaited = ()
        self._agenda.at(self._agenda.now_s, self.advance)  # the following event, once this fiber is parked again
        return self._left.popleft()

    def receive(self, kind: type[MessageType], source: int | None) -> tuple[int, MessageType]:
        """Return the message that the recorded run received in this call."""
        event = self.wait_for(RECEIVE, call=f"receive({kind.__name__})")
        self.received_s = event.time_s
        envelope = self._arrived[event.peer, event.label].popleft()
        if not envelope.message.is_of(kind) or source not in (None, event.peer):
            raise ReplayDiverged(self._end.rank, f"receives {kind.__name__}", _describe(event))
        return envelope.source, envelope.message.received_as((kind,))  # type: ignore[return-value]

    def advance(self) -> None:
        """Run the handlers, or resume the fiber, whose events are due. Called while no fiber runs."""
        while self._left:
            event = self._left[0]
            if event.kind in _STEPS and event.step <= self._passed:
                self._left.popleft()
                continue
            is_handled, is_due = self._readiness(event)
            if not is_due:
                return
            if event.time_s > self._agenda.now_s:
                self._agenda.at(event.time_s, self.advance)
                return
            if is_handled:
                self._left.popleft()
                self._handle(self._arrived[event.peer, event.label].popleft())
            else:
                self._end.fiber.resume()
                return

    def _readiness(self, event: Event) -> tuple[bool, bool]:
        """Return whether a handler takes the event, and whether the event can take place."""
        if event.kind != RECEIVE:
            return False, event.kind in self._awaited
        arrived = self._arrived[event.peer, event.label]
        if not arrived:
            return False, False
        is_handled = arrived[0].message.is_of(*self._handles)
        return is_handled, self.may_handle if is_handled else RECEIVE in self._awaited


class ReplayedNetwork(SimulatedNetwork):
    """The network of an endpoint that leaves collectives in the recorded order."""

    _end: ReplayedWorker

    def leave(self, collective: Collective, since_s: float) -> Any:
        self._end.cursor.pass_steps(self._end.step)
        result = super().leave(collective, since_s)
        self._end.cursor.wait_for(EXCHANGE, call=str(collective))
        return result


class ReplayedWorker(SimulatedWorker):
    """A worker that ends steps and takes messages in the order of a recorded worker."""

    def __init__(self, world: World, rank: int, events: Sequence[Event]) -> None:
        super().__init__(world, rank)
        self.cursor = ReplayCursor(self, events, world.strategy.handles, self._handle)
        self.network = ReplayedNetwork(self, world.channels[0])
        self.compute_times: ComputeTimes = RecordedComputeTimes(
            self.compute_times, [event.time_s for event in events if event.kind in _STEPS]
        )

    def accept(self, envelope: Envelope) -> None:
        self.cursor.arrived(envelope)

    def take(
        self, channel: Channel, kind: type[MessageType], source: int | None, timeout_s: float | None = None
    ) -> tuple[int, MessageType]:
        return self.cursor.receive(kind, source)

    def _wait_for_end(self, step: StepInProgress, end_s: float, *, has_hooks: bool) -> float:
        self.cursor.may_handle = True
        self.cursor.pass_steps(step.number - 1)
        if not has_hooks:
            return super()._wait_for_end(step, end_s, has_hooks=False)
        event = self.cursor.wait_for(*_STEPS, call=f"step {step.number}")
        if event.step != step.number or (event.kind == CANCELLED) != step.is_abandoned:
            done = "abandons" if step.is_abandoned else "ends"
            raise ReplayDiverged(self.rank, f"{done} step {step.number}", _describe(event))
        step.close()
        return self.world.agenda.now_s


class ReplayedServer(SimulatedServer):
    """A server that receives messages in the order of a recorded server."""

    def __init__(self, world: World, shard: int, model: ServerModel, record: Record) -> None:
        super().__init__(world, shard, model)
        self.cursor = ReplayCursor(self, record.get(self.rank, ()), (), self._inbox.append)

    def now_s(self) -> float:
        return self.cursor.received_s  # a decision that depends on time is that of the recorded run

    def accept(self, envelope: Envelope) -> None:
        self.cursor.arrived(envelope)

    def take(
        self, channel: Channel, kind: type[MessageType], source: int | None, timeout_s: float | None = None
    ) -> tuple[int, MessageType]:
        return self.cursor.receive(kind, source)


class RecordedComputeTimes(ComputeTimes):
    """Compute times of recorded steps."""

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
    """The simulated world of a replay."""

    workers: list[ReplayedWorker]  # type: ignore[assignment]
    servers: list[ReplayedServer]  # type: ignore[assignment]

    def __init__(self, record: Record, *given: Any, **named: Any) -> None:
        self._record = record
        super().__init__(*given, **named)
        self.queues_periods = False  # a step with hooks ends when the recorded one ended

    def make_worker(self, rank: int) -> SimulatedWorker:
        return ReplayedWorker(self, rank, self._record.get(rank, ()))

    def make_server(self, shard: int, model: ServerModel) -> SimulatedServer:
        return ReplayedServer(self, shard, model, self._record)

    def _raise_deadlock(self) -> None:
        try:
            super()._raise_deadlock()
        except Deadlock as stuck:
            rank, call, _ = min(stuck.waiting, key=lambda one: one[2])
            ends: list[ReplayedWorker | ReplayedServer] = [*self.workers, *self.servers]
            event = next(end.cursor.next for end in ends if end.rank == rank)
            raise ReplayDiverged(rank, f"waits in {call}", "its end" if event is None else _describe(event)) from stuck


def _describe(event: Event) -> str:
    match event.kind:
        case "receive":
            sender = f"worker {event.peer}" if event.peer >= 0 else "the server"
            return f"a message {event.label!r} from {sender}"
        case "exchange":
            return event.label
        case _:
            return f"step {event.step}" + (", abandoned" if event.kind == CANCELLED else "")
