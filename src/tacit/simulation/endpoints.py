"""Somebody with an address in the simulated world: a fiber that may be parked, an inbox, and a way to the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from tacit.errors import MisplacedCall, PeerLost
from tacit.messages import Message
from tacit.network import SERVER, Envelope
from tacit.simulation.fibers import Fiber, make_fiber
from tacit.simulation.ports import SimulatedNetwork
from tacit.trace import NOTE, WAIT

if TYPE_CHECKING:
    from tacit.simulation.surroundings import Surroundings
    from tacit.simulation.world import World

MessageType = TypeVar("MessageType", bound=Message)
_WINDOW = 64
"""Messages of one sender that may be under way before ``send`` from a hook blocks."""


class Endpoint(ABC):
    """Somebody with an address: a fiber that may be parked, and an inbox."""

    def __init__(self, world: Surroundings, rank: int) -> None:
        self.world, self.rank, self.size = world, rank, world.cluster.workers
        self.network = SimulatedNetwork(self)
        self.fiber: Fiber = make_fiber(world.host, self._run)
        self.waiting: tuple[object, float] | None = None  # for what, since when
        self.is_lost = False
        self.is_handling = False  # a handler runs: blocking and parameters are off limits
        self._inbox: deque[Envelope] = deque()
        self._wanted: tuple[type[Message], int | None] | None = None
        self.in_flight = 0
        self._window_is_full = False

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
        now_s = self.world.agenda.now_s
        self.world.trace.record(NOTE, self.rank, now_s, now_s, value=float(value), label=name)

    def block(self, what: object) -> None:
        """Park until somebody resumes this endpoint."""
        if self.is_handling:
            raise MisplacedCall(
                f"a handler may not block (it waited for {what}); keep it in the state and let a hook wait."
            )
        self.waiting = (what, self.world.agenda.now_s)
        self.fiber.park()
        self.waiting = None

    def deliver(self, source: int, message: Message) -> None:
        """A message has arrived."""
        if not self.is_lost:
            self.world.record_receive(self.rank, source, message)
            self._accept(Envelope(source, message))

    def _accept(self, envelope: Envelope) -> None:
        self._inbox.append(envelope)
        if self._wanted is not None and _matches(envelope, *self._wanted):
            self._wanted = None
            self.fiber.resume()

    def take(self, kind: type[MessageType], source: int | None) -> tuple[int, MessageType]:
        """Return the oldest matching message, waiting for one if there is none."""
        while True:
            for place, envelope in enumerate(self._inbox):
                if _matches(envelope, kind, source):
                    del self._inbox[place]
                    return envelope.source, envelope.message  # type: ignore[return-value]
            if source is not None and (lost_s := self.world.lost_at(source)) is not None:
                raise PeerLost(source, lost_s, f"receive({kind.__name__}, source={source})")
            self._wanted = (kind, source)
            since_s = self.world.agenda.now_s
            self.block(kind.__name__ + ("" if source is None else f" from {source}"))
            self.world.trace.record(WAIT, self.rank, since_s, self.world.agenda.now_s, label=kind.__name__)

    def peer_lost(self, rank: int) -> None:
        """Somebody crashed: whoever waits for a message from there must know."""
        if self._wanted is not None and self._wanted[1] == rank:
            self._wanted = None
            self.fiber.resume()

    def sent_arrived(self) -> None:
        self.in_flight -= 1
        if self._window_is_full:
            self._window_is_full = False
            self.fiber.resume()

    def await_window(self) -> None:
        while self.in_flight >= _WINDOW and not self.is_handling:
            self._window_is_full = True
            self.block("room in its send window")


class SimulatedServer(Endpoint):
    """The server of a server strategy: its own model, optimizer and inbox."""

    world: World

    def __init__(self, world: World) -> None:
        super().__init__(world, SERVER)
        self.updates = 0

    @property
    def parameters(self) -> Tensor:
        return self.world.server_model()

    def update(self, gradient: Tensor, learning_rate: float | None = None) -> None:
        self.updates += 1
        self.world.update_server(gradient, learning_rate, self.updates)

    def live(self) -> None:
        self.world.strategy.serve(self, self.world.strategy.init_server(self))


def _matches(envelope: Envelope, kind: type[Message], source: int | None) -> bool:
    return isinstance(envelope.message, kind) and (source is None or envelope.source == source)
