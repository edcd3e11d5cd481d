"""The network among some of the ranks, for the parts of ``Hierarchical``."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tacit.core.messages import Message
from tacit.core.network import DeferredMessage, MessageType, Network, Parts, Pending, joined, made
from tacit.errors import MisplacedCall


class GroupNetwork:
    """The network of one worker among ``ranks``. A group of one rank sends nothing."""

    def __init__(self, network: Network, ranks: tuple[int, ...]) -> None:
        self._network, self.ranks = network, ranks
        self.rank, self.size = ranks.index(network.rank), len(ranks)

    @property
    def hosts(self) -> tuple[int, ...]:
        return tuple(self._network.hosts[rank] for rank in self.ranks)

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(self.ranks.index(rank) for rank in self._network.members if rank in self.ranks)

    def all_reduce_mean(
        self,
        parts: Parts,
        weight: float = 1.0,
        *,
        group: Sequence[int] | None = None,
        into: Tensor | None = None,
        extra_state: bool = True,
    ) -> Tensor:
        _refuse(group)
        if self.size > 1:
            return self._network.all_reduce_mean(parts, weight, group=self.ranks, into=into)
        own = joined(parts)
        if into is None:
            return own.view(parts.shape) if isinstance(parts, Tensor) else own
        into.copy_(own[: into.numel()].view_as(into))
        return own[into.numel() :]

    def start_all_reduce_mean(
        self, parts: Parts, weight: float = 1.0, *, group: Sequence[int] | None = None, extra_state: bool = True
    ) -> Pending:
        raise MisplacedCall("the parts of Hierarchical wait for their rounds; let overlap_steps be 0.")

    def all_gather(
        self,
        message: MessageType | DeferredMessage[MessageType],
        *,
        group: Sequence[int] | None = None,
        continues: bool = False,
    ) -> list[MessageType]:
        _refuse(group)
        if self.size > 1:
            return self._network.all_gather(message, group=self.ranks, continues=continues)
        return [made(message).snapshot()]

    def all_to_all(self, messages: Sequence[MessageType], *, group: Sequence[int] | None = None) -> list[MessageType]:
        _refuse(group)
        if self.size > 1:
            return self._network.all_to_all(messages, group=self.ranks)
        return [messages[0].snapshot()]

    def broadcast(self, tensor: Tensor, source: int = 0, *, group: Sequence[int] | None = None) -> Tensor:
        _refuse(group)
        if self.size > 1:
            return self._network.broadcast(tensor, self.ranks[source], group=self.ranks)
        return tensor.clone()

    def send(self, to: int, message: Message) -> None:
        raise MisplacedCall("the parts of Hierarchical use collectives alone; they do not send messages.")

    def receive(
        self, kind: type[MessageType], source: int | None = None, *, timeout_s: float | None = None
    ) -> tuple[int, MessageType]:
        raise MisplacedCall("the parts of Hierarchical use collectives alone; they do not receive messages.")


class LeaderNetwork(GroupNetwork):
    """The network among leaders. One number behind each mean says whether any group has data left."""

    has_data = True

    def all_reduce_mean(
        self,
        parts: Parts,
        weight: float = 1.0,
        *,
        group: Sequence[int] | None = None,
        into: Tensor | None = None,
        extra_state: bool = True,
    ) -> Tensor:
        given = [parts] if isinstance(parts, Tensor) else list(parts)
        numbers = given.pop() if not isinstance(given[-1], Tensor) else ()
        mean = super().all_reduce_mean([*given, [*numbers, float(weight > 0)]], weight, group=group, into=into)
        self.has_data = float(mean[-1]) > 0  # without any weight each rank gets its own numbers: 0
        mean = mean[:-1]
        return mean.view(parts.shape) if isinstance(parts, Tensor) and into is None else mean


def _refuse(group: Sequence[int] | None) -> None:
    if group is not None:
        raise MisplacedCall(
            f"group={group}: the parts of Hierarchical use collectives of their whole group; leave it out."
        )
