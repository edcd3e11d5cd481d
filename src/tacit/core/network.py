"""The port: everything a strategy may ask of the world around a worker.

Behind it stands either the simulator or ``torch.distributed`` with a message plane; a strategy never knows which.
Blocking calls simply block: in the simulator the worker's fiber is parked while virtual time moves on, in the runtime
the call waits for the wire. A strategy's state may have changed (``on_message`` ran) when a blocking call returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from torch import Tensor

from tacit.core.messages import Message
from tacit.errors import MisplacedCall, require

SERVER: Final = -1
"""The address of the server endpoint, where a strategy has one; with several shards, of the first."""

MessageType = TypeVar("MessageType", bound=Message)
MessageType_co = TypeVar("MessageType_co", bound=Message, covariant=True)


Parts = Tensor | Sequence[Tensor]
"""A tensor, or several flat ones that travel end to end as one: nobody has to join them first."""


def check_one_for_each(messages: Sequence[Message], size: int) -> None:
    """Raise unless an all-to-all brings a message for every rank."""
    require(
        len(messages) == size,
        f"all_to_all got {len(messages)} messages for {size} ranks; give one for each, itself included.",
    )


def count_reply(left: int, to: int, message: Message) -> int:
    """Return how many replies a handler may still send after ``message``, or raise."""
    if not left:
        raise MisplacedCall(
            f"a handler sends at most one reply per message received, and {type(message).__name__} to {to} is its second; "
            f"keep it in the state and let a hook send it."
        )
    return left - 1


def server_address(shard: int) -> int:
    """Return where the shard of a server is: -1, then -3, -4, … (-2 is nobody's, so that traces can say "nobody")."""
    return SERVER if shard == 0 else -2 - shard


def shard_at(address: int) -> int:
    """Return which shard of a server lives at ``address``."""
    return 0 if address == SERVER else -2 - address


class Envelope(NamedTuple):
    """A message that arrived, the rank it came from, and the number of the session it belongs to."""

    source: int
    message: Message
    session: int = 0


class Pending(Protocol):
    """A collective under way."""

    @property
    def is_ready(self) -> bool:
        """Whether ``wait`` would return at once.

        Changes only at step boundaries, so that both worlds see it change at the same step.
        """

    def wait(self) -> Tensor:
        """Block until the result is there and return it, a tensor the caller owns. Once."""


class Network(Protocol):
    """One worker's way to the others."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce_mean(
        self,
        parts: Parts,
        weight: float = 1.0,
        *,
        group: Sequence[int] | None = None,
        into: Tensor | None = None,
        extra_state: bool = True,
    ) -> Tensor:
        """Return Σ wᵢ xᵢ / Σ wᵢ over the ranks of ``group`` (None: all), summed in rank order, as a tensor the caller
        owns.

        A rank with nothing to say joins with weight 0. Where all do, everybody keeps its own: a copy of what it gave
        comes back. ``into``: a flat tensor that takes as many of the mean's first numbers as it holds, once all is
        well; what is left is returned. It may be one of the parts, and saves a copy. ``extra_state``: whether buffers and
        moments of an attached model are averaged in the same call; never with a ``group``.
        """

    def start_all_reduce_mean(
        self, parts: Parts, weight: float = 1.0, *, group: Sequence[int] | None = None
    ) -> Pending:
        """Begin an ``all_reduce_mean`` of a snapshot of ``parts`` and return at once."""

    def all_gather(
        self, message: MessageType, *, group: Sequence[int] | None = None, continues: bool = False
    ) -> list[MessageType]:
        """Return every rank's message, in rank order; sizes may differ.

        One that ``continues`` belongs to the round of the exchange before it.
        """

    def all_to_all(self, messages: Sequence[MessageType], *, group: Sequence[int] | None = None) -> list[MessageType]:
        """Give ``messages[j]`` to the j-th rank of the group and return what every rank gave to this one, in rank
        order; sizes may differ.
        """

    def broadcast(self, tensor: Tensor, source: int = 0, *, group: Sequence[int] | None = None) -> Tensor:
        """Return rank ``source``'s tensor on every rank."""

    def send(self, to: int, message: Message) -> None:
        """Send a snapshot of ``message`` to a rank or to ``SERVER``.

        From a hook it blocks while the window of unanswered requests is full; from a handler it never blocks, and a
        handler sends at most one reply per message received, so queues are bounded and two handlers cannot wait for
        each other.
        """

    def receive(self, kind: type[MessageType], source: int | None = None) -> tuple[int, MessageType]:
        """Block until a message of ``kind`` (from ``source``, None: anybody) is there; return its source and it, oldest
        first.
        """
