"""Somebody with an address in the simulated world: a fiber that may be parked, an inbox, and a way to the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tacit.core.message_kinds import Kinds
from tacit.core.messages import Message
from tacit.core.network import Envelope, server_address
from tacit.core.state_io import restore, store
from tacit.core.strategy import ServerStrategy
from tacit.errors import WITHOUT_THE_WORKER, MisplacedCall, PeerLost
from tacit.session.server_model import ServerModel
from tacit.simulation.fibers import Fiber, make_fiber
from tacit.simulation.network import SimulatedNetwork
from tacit.simulation.rendezvous import Call
from tacit.simulation.server_models import load_optimizer_state, optimizer_state

if TYPE_CHECKING:
    from tacit.simulation.base_world import BaseWorld
    from tacit.simulation.channels import Channel
    from tacit.simulation.world import World

MessageType = TypeVar("MessageType", bound=Message)
WINDOW = 64
"""Messages of one sender that may be under way before ``send`` from a hook blocks."""


class Endpoint(ABC):
    """Somebody with an address: a fiber that may be parked, and an inbox."""

    def __init__(self, world: BaseWorld, rank: int, channel: Channel | None = None) -> None:
        self.world, self.rank, self.size = world, rank, world.cluster.workers
        self.network = SimulatedNetwork(self, channel or world.channels[0])
        self.fiber: Fiber = make_fiber(world.host, self._run)
        self.waiting: tuple[object, float] | None = None  # for what, since when
        self.is_lost = False
        self.is_handling = False  # a handler runs: blocking and parameters are off limits
        self.replies_left = 0  # of the handler that runs
        self.kinds: Kinds | None = None  # message classes of its own; None: all share theirs
        self._inbox: deque[Envelope] = deque()
        self._wanted: tuple[int, type[Message], int | None] | None = None  # session, kind, source
        self.in_flight = 0
        self._window_is_full = False
        self.life = 1  # counts on where one that was lost comes back: nothing sent to an earlier life arrives

    def live_again(self) -> None:
        """Begin another life, as a fresh process would: nothing of the earlier one is left."""
        self.life += 1
        self.is_lost = self.is_handling = self._window_is_full = False
        self.waiting = self._wanted = None
        self.in_flight = 0
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
        """Everything it does, from its first moment to its last."""

    @property
    def steps(self) -> int | None:
        return self.world.steps

    @property
    def random(self) -> np.random.Generator:
        return self.world.stream("strategy", self.rank)

    def note(self, name: str, value: float) -> None:
        self.world.trace.note(self.rank, self.world.agenda.now_s, name, value)

    def block(self, what: object) -> None:
        """Park until somebody resumes this endpoint."""
        if self.is_handling:
            raise MisplacedCall(
                f"a handler may not block (it waited for {what}); keep it in the state and let a hook wait."
            )
        self.waiting = (what, self.world.agenda.now_s)
        self.fiber.park()
        self.waiting = None

    def describe_wait(self) -> str:
        """Return the call in which the parked endpoint waits, for the text of a deadlock."""
        what = None if self.waiting is None else self.waiting[0]
        return what.describe_wait() if isinstance(what, Call) else str(what)

    def accept(self, envelope: Envelope) -> None:
        """A message has arrived."""
        self._inbox.append(envelope)
        if self._wanted is not None and _matches(envelope, *self._wanted):
            self._wanted = None
            self.fiber.resume()

    def take(self, channel: Channel, kind: type[MessageType], source: int | None) -> tuple[int, MessageType]:
        """Return the oldest matching message of a session, waiting for one if there is none."""
        session = channel.session
        while True:
            for place, envelope in enumerate(self._inbox):
                if _matches(envelope, session, kind, source):
                    del self._inbox[place]
                    return envelope.source, envelope.message.received_as((kind,), self.kinds)  # type: ignore[return-value]
            self._raise_if_lost(kind, source)
            self._wanted = (session, kind, source)
            since_s = self.world.agenda.now_s
            self.block(f"receive({kind.__name__}" + (")" if source is None else f", source={source})"))
            channel.trace.wait(self.rank, since_s, self.world.agenda.now_s, kind.kind or "message")

    def _raise_if_lost(self, kind: type[Message], source: int | None) -> None:
        """Raise where what is waited for can never come."""
        if source is not None and (lost_s := self.world.lost_at(source)) is not None:
            what, need = f"receive({kind.__name__}, source={source})", "needs a message from it"
            raise PeerLost(source, lost_s, what, WITHOUT_THE_WORKER, need=need)

    def peer_lost(self, rank: int) -> None:
        """Somebody crashed: whoever waits for a message from there must know."""
        if self._wanted is not None and self._wanted[2] == rank:
            self._wanted = None
            self.fiber.resume()

    def sent_arrived(self) -> None:
        self.in_flight -= 1
        if self._window_is_full:
            self._window_is_full = False
            self.fiber.resume()

    def await_window(self) -> None:
        while self.in_flight >= WINDOW and not self.is_handling:
            self._window_is_full = True
            self.block(f"send for the delivery of one of {WINDOW} messages")


class SimulatedServer(Endpoint):
    """The server of a server strategy, or one of its shards: its own model, optimizer and inbox."""

    world: World
    knows_split = True

    def __init__(self, world: World, shard: int, model: ServerModel) -> None:
        super().__init__(world, server_address(shard))
        self.shard, self.model = shard, model
        self.updates = 0
        self.state: Any = None
        self._kept: dict[str, Any] | None = None  # of an earlier life
        self._unheard: deque[int] = deque()  # workers lost since ``receive`` last said so

    @property
    def parameters(self) -> Tensor:
        return self.model.parameters

    def now_s(self) -> float:
        return self.world.agenda.now_s

    def update(self, gradient: Tensor, learning_rate: float | None = None) -> None:
        self.updates += 1
        if not self.world.is_timing:
            self.model.update(gradient, learning_rate, self.now_s())
        if self.shard == 0:
            self.note("update", self.updates)
            self.world.updated(self)

    def note(self, name: str, value: float, about: int | None = None) -> None:
        self.world.trace.note(self.rank, self.world.agenda.now_s, name, value, about)

    def live(self) -> None:
        strategy = self.world.strategy
        assert isinstance(strategy, ServerStrategy)
        self.state = strategy.init_server(self)
        if self._kept is not None:
            self.state = restore(self.state, self._kept["state"], None)
        strategy.serve(self, self.state)

    def keep(self) -> dict[str, Any]:
        """Return what another life could begin with: all but the model."""
        return {"updates": self.updates, "state": store(self.state), "optimizer": optimizer_state(self.model)}

    def begin_with(self, kept: dict[str, Any]) -> None:
        """Go on from what an earlier life kept."""
        self._kept, self.updates = kept, kept["updates"]
        self.model.updates = self.updates
        load_optimizer_state(self.model, kept["optimizer"])

    def accept(self, envelope: Envelope) -> None:
        if self.world.lost_at(envelope.source) is not None:  # sent before its end: the loss is reported again after it
            self._unheard.append(envelope.source)
        super().accept(envelope)

    def peer_lost(self, rank: int) -> None:
        self._unheard.append(rank)
        if self._wanted is not None:
            self._wanted = None
            self.fiber.resume()

    def _raise_if_lost(self, kind: type[Message], source: int | None) -> None:
        if self._unheard:
            rank = self._unheard.popleft()
            lost_s, what = self.world.lost_at(rank) or self.world.agenda.now_s, f"receive({kind.__name__})"
            raise PeerLost(rank, lost_s, what, WITHOUT_THE_WORKER, need="may need a message from it")


def _matches(envelope: Envelope, session: int, kind: type[Message], source: int | None) -> bool:
    is_from = source is None or envelope.source == source
    return is_from and envelope.session == session and envelope.message.is_of(kind)
