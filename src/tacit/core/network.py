"""The network interface of a worker: all communication of a strategy.

The simulator and the runtime (``torch.distributed`` and the message plane) implement it; a strategy is independent of
the implementation. In a blocking call the simulator parks the worker's fiber while virtual time advances; the runtime
waits for the network. The state of a strategy may have changed (``on_message`` ran) when a blocking call returns.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from tacit.core.messages import Message
from tacit.errors import MisplacedCall, require

SERVER: Final = -1
"""The address of the server of a strategy; with several shards, of the first."""

MessageType = TypeVar("MessageType", bound=Message)
MessageType_co = TypeVar("MessageType_co", bound=Message, covariant=True)


Parts = Tensor | Sequence[Tensor | Sequence[float]]
"""A tensor, or several parts that are sent as one: flat tensors, and lists of numbers behind the first tensor.

The caller need not concatenate them. Numbers are sent in the type of the first tensor.
"""


def tensors_of(parts: Parts) -> list[Tensor]:
    """Return the parts of an all-reduce as tensors."""
    if isinstance(parts, Tensor):
        return [parts]
    first = parts[0]
    if not isinstance(first, Tensor):
        raise TypeError("the first part must be a tensor, whose type the numbers get; put numbers last.")
    return [part if isinstance(part, Tensor) else first.new_tensor(part) for part in parts]


def joined(parts: Parts) -> Tensor:
    """Return the parts of an all-reduce as one new flat tensor."""
    return torch.cat([part.reshape(-1) for part in tensors_of(parts)])


def check_one_for_each(messages: Sequence[Message], size: int) -> None:
    """Raise unless an all-to-all has one message per rank."""
    require(
        len(messages) == size,
        f"all_to_all got {len(messages)} messages for {size} ranks; pass one per rank, this rank included.",
    )


def count_reply(left: int, to: int, message: Message) -> int:
    """Return the number of replies that a handler may send after ``message``; raise if it may not send this one."""
    if not left:
        raise MisplacedCall(
            f"a handler sends at most one reply per message received, and {type(message).__name__} to {to} "
            f"is its second; keep it in the state and let a hook send it."
        )
    return left - 1


def server_address(shard: int) -> int:
    """Return the address of a shard of the server: -1, then -3, -4, … (-2 means "none" in traces)."""
    return SERVER if shard == 0 else -2 - shard


def shard_at(address: int) -> int:
    """Return the number of the shard at ``address``."""
    return 0 if address == SERVER else -2 - address


class Envelope(NamedTuple):
    """A received message, the rank of its sender, and the number of its session."""

    source: int
    message: Message
    session: int = 0


class DeferredMessage(Generic[MessageType]):
    """A message that is made when an all-gather needs it. The simulator makes those of all ranks in one call."""

    @property
    def work(self) -> tuple[str, int] | None:
        """The work of ``make`` and the numbers it is about, as ``Worker.spend`` takes them; None: it is no work."""
        return None

    def make(self) -> MessageType:
        """Return the message. It is called once, and the caller waits in the all-gather until then."""
        raise NotImplementedError(f"{type(self).__name__} must define make(), which returns the message.")

    @classmethod
    def make_all(cls, several: Sequence[Self]) -> list[MessageType]:
        """Return the messages of ``several`` ranks; override it where one call is faster than one for each."""
        return [one.make() for one in several]


class DeferredParts(Sequence[MessageType]):
    """The messages of an all-to-all, made when it needs them. The simulator makes those of all ranks in one call.

    A network that does not know this class uses it as the sequence of the messages.
    """

    @property
    def work(self) -> tuple[str, int] | None:
        """The work of ``make`` and the numbers it is about, as ``Worker.spend`` takes them; None: it is no work."""
        return None

    def make(self) -> Sequence[MessageType]:
        """Return the messages, one for each rank. It may be called more than once, and returns equal messages."""
        raise NotImplementedError(f"{type(self).__name__} must define make(), which returns the messages.")

    @classmethod
    def make_all(cls, several: Sequence[Self]) -> list[Sequence[MessageType]]:
        """Return the messages of ``several`` ranks; override it where one call is faster than one for each."""
        return [one.make() for one in several]

    def __getitem__(self, place: Any) -> Any:
        return self.make()[place]


class Gathered(list[MessageType]):
    """The messages that simulated ranks get, in rank order. They share a list of deferred messages: do not change it.

    derived: what has been computed from the messages, by key; the lists of all ranks share it.
    """

    __slots__ = ("derived",)

    def __init__(self, messages: Sequence[MessageType], derived: dict[Hashable, Any] | None = None) -> None:
        super().__init__(messages)
        self.derived = {} if derived is None else derived


def made(message: MessageType | DeferredMessage[MessageType]) -> MessageType:
    """Return the message, made now if it is deferred."""
    return message.make() if isinstance(message, DeferredMessage) else message


class Pending(Protocol):
    """A collective in progress."""

    @property
    def is_ready(self) -> bool:
        """Whether ``wait`` would return at once.

        Changes only at step boundaries, so that it changes at the same step in simulated and real runs.
        """

    def wait(self) -> Tensor:
        """Block until the collective has ended; return its result, which the caller owns. Call it once."""


class Network(Protocol):
    """The network of one worker."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def hosts(self) -> Sequence[int]:
        """The number of each rank's host."""

    @property
    def members(self) -> Sequence[int]:
        """The ranks that take part now, in order; changes only inside a collective or at a step boundary.

        ``size`` stays the number of all ranks, those that are lost or have yet to join included.
        """

    def all_reduce_mean(
        self,
        parts: Parts,
        weight: float = 1.0,
        *,
        group: Sequence[int] | None = None,
        into: Tensor | None = None,
        extra_state: bool = True,
    ) -> Tensor:
        """Return Σ wᵢ xᵢ / Σ wᵢ over the ranks of ``group`` (None: all), summed in rank order, as a new tensor.

        A rank without data joins with weight 0. If all weights are 0, each rank gets a copy of its own tensor.
        into: a flat tensor for the first numbers of the mean, written when the call succeeds; the remaining numbers are
            returned, possibly on the CPU. It may be one of the parts, and saves a copy.
        extra_state: whether to average buffers and moments of an attached model in the same call; never with ``group``.
        """

    def start_all_reduce_mean(
        self, parts: Parts, weight: float = 1.0, *, group: Sequence[int] | None = None, extra_state: bool = True
    ) -> Pending:
        """Start an ``all_reduce_mean`` of a copy of ``parts`` and return at once."""

    def all_gather(
        self,
        message: MessageType | DeferredMessage[MessageType],
        *,
        group: Sequence[int] | None = None,
        continues: bool = False,
    ) -> list[MessageType]:
        """Return the messages of all ranks, in rank order; sizes may differ.

        message: may be deferred; it is made before the call returns.
        continues: count the call as part of the round of the exchange before it.
        """

    def all_to_all(self, messages: Sequence[MessageType], *, group: Sequence[int] | None = None) -> list[MessageType]:
        """Send ``messages[j]`` to rank j of the group; return the messages to this rank, in rank order.

        Sizes may differ.
        """

    def broadcast(self, tensor: Tensor, source: int = 0, *, group: Sequence[int] | None = None) -> Tensor:
        """Return the tensor of rank ``source`` on all ranks."""

    def send(self, to: int, message: Message) -> None:
        """Send a copy of ``message`` to a rank or to ``SERVER``.

        In a hook the call blocks while the window of undelivered messages is full. In a handler it never blocks, and a
        handler sends at most one reply per received message: queues are bounded, and handlers cannot wait for each
        other.
        """

    def receive(
        self, kind: type[MessageType], source: int | None = None, *, timeout_s: float | None = None
    ) -> tuple[int, MessageType]:
        """Block until a message of ``kind`` from ``source`` (None: any) has arrived; return source and message.

        The oldest message is returned first. Raise ``TimedOut`` if none arrives within ``timeout_s``; the run continues
        if the caller catches it. None: wait as long as the run allows.
        """
