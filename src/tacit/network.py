"""The port: everything a strategy may ask of the world around a worker.

Behind it stands either the simulator or ``torch.distributed`` with a message plane; a strategy never knows which. Blocking calls simply block:
in the simulator the worker's fiber is parked while virtual time moves on, in the runtime the call waits for the wire. A strategy's state may have
changed (``on_message`` ran) when a blocking call returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from torch import Tensor

from tacit.messages import Message

SERVER: Final = -1
"""The address of the server endpoint, where a strategy has one."""

MessageType = TypeVar("MessageType", bound=Message)
MessageType_co = TypeVar("MessageType_co", bound=Message, covariant=True)


Parts = Tensor | Sequence[Tensor]
"""A tensor, or several flat ones that travel end to end as one: nobody has to join them first."""


class Envelope(NamedTuple):
    """A message that arrived, and the rank it came from."""

    source: int
    message: Message


class Pending(Protocol):
    """A collective under way."""

    @property
    def is_ready(self) -> bool:
        """Whether ``wait`` would return at once. Changes only at step boundaries, so that both worlds see it change at the same step."""

    def wait(self) -> Tensor:
        """Block until the result is there and return it, a tensor the caller owns. Once."""


class Network(Protocol):
    """One worker's way to the others."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce_mean(self, parts: Parts, weight: float = 1.0, *, group: Sequence[int] | None = None) -> Tensor:
        """Return Σ wᵢ xᵢ / Σ wᵢ over the ranks of ``group`` (None: all), summed in rank order, as a tensor the caller owns.

        A rank with nothing to say joins with weight 0. Where all do, everybody keeps its own: a copy of what it gave comes back.
        """

    def start_all_reduce_mean(
        self, parts: Parts, weight: float = 1.0, *, group: Sequence[int] | None = None
    ) -> Pending:
        """Begin an ``all_reduce_mean`` of a snapshot of ``parts`` and return at once."""

    def all_gather(self, message: MessageType, *, group: Sequence[int] | None = None) -> list[MessageType]:
        """Return every rank's message, in rank order; sizes may differ."""

    def broadcast(self, tensor: Tensor, source: int = 0, *, group: Sequence[int] | None = None) -> Tensor:
        """Return rank ``source``'s tensor on every rank."""

    def send(self, to: int, message: Message) -> None:
        """Send a snapshot of ``message`` to a rank or to ``SERVER``.

        From a hook it blocks while the window of unanswered requests is full; from a handler it never blocks, and a handler sends at most one reply
        per message received, so queues are bounded and two handlers cannot wait for each other.
        """

    def receive(self, kind: type[MessageType], source: int | None = None) -> tuple[int, MessageType]:
        """Block until a message of ``kind`` (from ``source``, None: anybody) is there; return its source and it, oldest first."""
