"""Endpoints of the simulated world: a fiber that may be parked, an inbox, and a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tacit.cluster.costs import cost_s
from tacit.core.message_kinds import Kinds
from tacit.core.messages import Message
from tacit.core.network import Envelope, server_address
from tacit.core.state_io import restore, store
from tacit.core.strategy import ServerStrategy
from tacit.errors import WITHOUT_THE_WORKER, MembersChanged, MisplacedCall, PeerLost, TimedOut
from tacit.session.server_model import ServerModel
from tacit.simulation.computing.processor import Processor
from tacit.simulation.fibers import Fiber, make_fiber
from tacit.simulation.network import SimulatedNetwork
from tacit.simulation.rendezvous import Call
from tacit.simulation.servers.server_models import load_optimizer_state, optimizer_state

if TYPE_CHECKING:
    from tacit.simulation.base_world import BaseWorld
    from tacit.simulation.channels import Channel
    from tacit.simulation.world import World

MessageType = TypeVar("MessageType", bound=Message)
WINDOW = 64
"""Messages of one sender that may be in flight before ``send`` from a hook blocks."""


class Endpoint(ABC):
    """A worker or server: a fiber that may be parked, and an inbox."""

    # Slots, because Python keeps the attributes of an object in a hash table if there are more than 30.
    __slots__ = (
        "_inbox",
        "_wanted",
        "_window_is_full",
        "alone_under_way",
        "busy_until_s",
        "fiber",
        "in_flight",
        "is_door_due",
        "is_handling",
        "is_lost",
        "is_regrouping",
        "is_timing_only",
        "kinds",
        "life",
        "network",
        "processor",
        "rank",
        "replies_left",
        "size",
        "waiting",
        "world",
    )

    def __init__(self, world: BaseWorld, rank: int, channel: Channel | None = None) -> None:
        self.world, self.rank, self.size = world, rank, world.cluster.workers
        self.is_timing_only = world.is_timing
        self.processor = world.processor(rank) if rank >= 0 else None
        self.network = SimulatedNetwork(self, channel or world.channels[0])
        self.fiber: Fiber = make_fiber(world.host, self._run)
        self.waiting: tuple[object, float] | None = None  # the call it is parked in, since when
        self.is_lost = False
        self.is_door_due = False  # whether it goes to the door of the members at the end of this step
        self.is_regrouping = False  # the strategy adapts to other members
        self.is_handling = False  # a handler runs: it may neither block nor access parameters
        self.replies_left = 0  # that the running handler may still send
        self.kinds: Kinds | None = None  # its own message classes; None: those of the process
        self._inbox: deque[Envelope] = deque()
        self._wanted: tuple[int, type[Message], int | None] | None = None  # session, kind, source
        self.in_flight = 0
        self.alone_under_way: set[int] = set()  # to whom a message is in flight that others wait for
        self._window_is_full = False
        self.busy_until_s = 0.0  # end of the work in a hook that takes time
        self.life = 1  # incremented when a lost one returns: messages to an earlier life do not arrive

    def live_again(self) -> None:
        """Reset the endpoint as a new process would: no state of the earlier life remains."""
        self.life += 1
        self.is_lost = self.is_handling = self._window_is_full = False
        self.busy_until_s = 0.0
        self.waiting = self._wanted = None
        self.in_flight = 0
        self.alone_under_way.clear()
        self._inbox.clear()
        self.fiber = make_fiber(self.world.host, self._run)

    def _run(self) -> None:
        torch.set_grad_enabled(False)
        try:
            self.live()
        finally:
            self.world.ended(self)

    @abstractmethod
    def live(self) -> None:
        """Run the endpoint from its start to its end."""

    @property
    def steps(self) -> int | None:
        return self.world.steps

    @property
    def random(self) -> np.random.Generator:
        return self.world.stream("strategy", self.rank)

    def note(self, name: str, value: float) -> None:
        self.world.trace.note(self.rank, self.world.agenda.now_s, name, value)

    def block(self, what: object) -> None:
        """Park in the call ``what`` until this endpoint is resumed."""
        if self.is_handling:
            raise MisplacedCall(
                f"a handler may not block (it called {what}); keep the data in the state and let a hook wait."
            )
        self.waiting = (what, self.world.agenda.now_s)
        self.fiber.park()
        self.waiting = None

    def regroup(self, waiting_for: object) -> None:  # noqa: B027 - a server has no members
        """Agree with the other members on who takes part, where they change."""

    def spend(self, what: str, numbers: int) -> None:
        """Let the time of work in a hook pass, as ``Cluster.costs`` prices it. Handlers take no time."""
        costs = self.world.cluster.costs
        if costs and not self.is_handling and (seconds := cost_s(costs, what, numbers)) > 0:
            self._work(seconds, what, numbers)

    def _work(self, seconds: float, what: str, numbers: int) -> None:
        start_s, life = self._own_time_s(), self.life
        self.busy_until_s = end_s = start_s + seconds
        if self.processor is not None:
            end_s = self.pass_work(
                self.processor, start_s, seconds, partial(self._resume_in, life), lambda: self.life == life, what
            )
        elif end_s > self.world.agenda.now_s:
            self.world.agenda.at(end_s, partial(self._resume_in, life))
            self.block(what)
        self.network.channel.trace.hook(self.rank, start_s, end_s, what, numbers)

    def pass_work(
        self,
        processor: Processor,
        start_s: float,
        work_s: float,
        done: Callable[[], None],
        is_current: Callable[[], bool],
        what: str = "a step",
    ) -> float:
        """Park until work is done that transfers may lengthen until then; return when it ended.

        start_s: may lie before the agenda's time; what is done before that passes undisturbed. done: resumes this
        endpoint. is_current: whether the work was not given up.
        """
        now_s = self.world.agenda.now_s
        if start_s + work_s <= now_s:
            return start_s + work_s
        processor.begin(now_s, work_s - (now_s - start_s))
        self._plan_end(processor, done, is_current)
        self.block(what)
        return self.world.agenda.now_s

    def _plan_end(self, processor: Processor, done: Callable[[], None], is_current: Callable[[], bool]) -> None:
        """Let the work in progress end when the transfers known by now allow it, or ask again then."""
        agenda, end_s = self.world.agenda, processor.end_s()

        def end() -> None:
            if not is_current():
                return
            if processor.end_s() > agenda.now_s:
                self._plan_end(processor, done, is_current)
            else:
                done()

        if self.busy_until_s > agenda.now_s:  # work in a hook
            self.busy_until_s = max(self.busy_until_s, end_s)
        agenda.at(end_s, end)

    def _own_time_s(self) -> float:
        return self.world.agenda.now_s

    def _resume_in(self, life: int) -> None:
        """Resume the fiber after its work, unless the endpoint was lost meanwhile."""
        if not self.is_lost and self.life == life:
            self.fiber.resume()

    def describe_wait(self) -> str:
        """Return the call in which the parked endpoint waits, for the text of a deadlock."""
        what = None if self.waiting is None else self.waiting[0]
        return what.describe_wait() if isinstance(what, Call) else str(what)

    def accept(self, envelope: Envelope) -> None:
        """Put a message that has arrived into the inbox."""
        self._inbox.append(envelope)
        if self._wanted is not None and _matches(envelope, *self._wanted):
            self._wanted = None
            self.fiber.resume()

    def take(
        self, channel: Channel, kind: type[MessageType], source: int | None, timeout_s: float | None = None
    ) -> tuple[int, MessageType]:
        """Return the oldest matching message of a session; wait if there is none, up to ``timeout_s``."""
        session, until_s = channel.session, None
        while True:
            for place, envelope in enumerate(self._inbox):
                if _matches(envelope, session, kind, source):
                    del self._inbox[place]
                    message: Any = envelope.message.received_as((kind,), self.kinds)
                    return envelope.source, message
            what = f"receive({kind.__name__}" + (")" if source is None else f", source={source})")
            if self.world.members_change:
                self.regroup(what)
                raise MembersChanged(what)
            self._raise_if_lost(kind, source)
            since_s = self.world.agenda.now_s
            self._wanted = wanted = (session, kind, source)
            if timeout_s is not None:
                if until_s is not None and since_s >= until_s:
                    self._wanted = None
                    raise TimedOut(what, () if source is None else (source,), timeout_s)
                until_s = since_s + timeout_s if until_s is None else until_s
                self.world.agenda.at(until_s, partial(self._stop_waiting, wanted))
            self.block(what)
            channel.trace.wait(self.rank, since_s, self.world.agenda.now_s, kind.kind or "message")

    def _stop_waiting(self, wanted: tuple[int, type[Message], int | None]) -> None:
        """Resume a ``take`` whose time is over, if it still waits."""
        if self._wanted is wanted:
            self._wanted = None
            self.fiber.resume()

    def _raise_if_lost(self, kind: type[Message], source: int | None) -> None:
        """Raise if the awaited message can no longer arrive."""
        if source is not None and (lost_s := self.world.lost_at(source)) is not None:
            what, need = f"receive({kind.__name__}, source={source})", "needs a message from it"
            raise PeerLost(source, lost_s, what, WITHOUT_THE_WORKER, need=need)

    def peer_lost(self, rank: int) -> None:
        """Wake this endpoint if it waits for a message from the lost worker ``rank``."""
        if self._wanted is not None and self._wanted[2] == rank:
            self._wanted = None
            self.fiber.resume()

    def interrupt(self) -> None:
        """Wake this endpoint if it waits for a message, because the members change."""
        if self._wanted is not None:
            self._wanted = None
            self.fiber.resume()

    def sent_arrived(self) -> None:
        self.in_flight -= 1
        if self._window_is_full:
            self._window_is_full = False
            self.fiber.resume()

    def await_window(self, to: int, message: Message) -> None:
        """Wait until ``message`` may be sent to ``to``. A handler never waits."""
        if self.is_handling:
            return
        while self.in_flight >= WINDOW:
            self._window_is_full = True
            self.block(f"send for the delivery of one of {WINDOW} messages")
        while message.one_under_way and to in self.alone_under_way:
            self._window_is_full = True
            self.block(f"send for the delivery of the {type(message).__name__} before")


class SimulatedServer(Endpoint):
    """The server of a server strategy, or one of its shards: its own model, optimizer and inbox."""

    world: World
    knows_split = True

    def __init__(self, world: World, shard: int, model: ServerModel) -> None:
        super().__init__(world, server_address(shard))
        self.shard, self.model = shard, model
        self.updates = 0
        self.state: Any = None
        self._stored: dict[str, Any] | None = None  # state of an earlier run
        self._lost: deque[int] = deque()  # lost workers that ``receive`` has not reported yet

    @property
    def parameters(self) -> Tensor:
        return self.model.parameters

    def now_s(self) -> float:
        return self.world.agenda.now_s

    def update(self, gradient: Tensor, learning_rate: float | None = None, *, uses_optimizer: bool = True) -> None:
        self.spend("divide", gradient.numel())  # the mean of the gradients that it was given
        self.spend("update", gradient.numel())
        self.updates += 1
        if not self.world.is_timing:
            self.model.update(gradient, learning_rate, self.now_s(), uses_optimizer=uses_optimizer)
        if self.shard == 0:
            self.note("update", self.updates)
            self.world.updated(self)

    def note(self, name: str, value: float, about: int | None = None) -> None:
        self.world.trace.note(self.rank, self.world.agenda.now_s, name, value, about)

    def write_part(self, folder: str, version: int) -> str:
        raise MisplacedCall("a simulated workload writes no checkpoints.")

    def live(self) -> None:
        strategy = self.world.strategy
        assert isinstance(strategy, ServerStrategy)
        self.state = strategy.init_server(self)
        if self._stored is not None:
            self.state = restore(self.state, self._stored["state"], None)
        strategy.serve(self, self.state)

    def store(self) -> dict[str, Any]:
        """Return the state without the model, from which another run can continue."""
        return {"updates": self.updates, "state": store(self.state), "optimizer": optimizer_state(self.model)}

    def restore(self, stored: dict[str, Any]) -> None:
        """Continue from the state that ``store`` returned."""
        self._stored, self.updates = stored, stored["updates"]
        self.model.updates = self.updates
        load_optimizer_state(self.model, stored["optimizer"])

    def accept(self, envelope: Envelope) -> None:
        if self.world.lost_at(envelope.source) is not None:  # sent before the loss, which is reported again
            self._lost.append(envelope.source)
        super().accept(envelope)

    def peer_lost(self, rank: int) -> None:
        self._lost.append(rank)
        if self._wanted is not None:
            self._wanted = None
            self.fiber.resume()

    def _raise_if_lost(self, kind: type[Message], source: int | None) -> None:
        if self._lost:
            rank = self._lost.popleft()
            lost_s, what = self.world.lost_at(rank) or self.world.agenda.now_s, f"receive({kind.__name__})"
            raise PeerLost(rank, lost_s, what, WITHOUT_THE_WORKER, need="may need a message from it")


def _matches(envelope: Envelope, session: int, kind: type[Message], source: int | None) -> bool:
    is_from = source is None or envelope.source == source
    return is_from and envelope.session == session and envelope.message.is_of(kind)
