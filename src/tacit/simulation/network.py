"""The network of the simulator: collectives by rendezvous, messages over the simulated links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from tacit.core.messages import Message
from tacit.core.network import (
    SERVER,
    DeferredMessage,
    DeferredParts,
    Parts,
    check_one_for_each,
    count_reply,
    joined,
    made,
)
from tacit.errors import MisplacedCall
from tacit.simulation.collectives import Collective
from tacit.simulation.engine.means import Given, Means

if TYPE_CHECKING:
    from tacit.simulation.channels import Channel
    from tacit.simulation.endpoints import Endpoint

MessageType = TypeVar("MessageType", bound=Message)


class SimulatedNetwork:
    """The network of one simulated endpoint."""

    def __init__(self, endpoint: Endpoint, channel: Channel) -> None:
        self._end, self.rank, self.size, self.channel = endpoint, endpoint.rank, endpoint.size, channel
        self._has_costs = bool(endpoint.world.cluster.costs) and self.size > 1  # one worker copies nothing

    @property
    def hosts(self) -> Sequence[int]:
        cluster = self._end.world.cluster
        return [cluster.host(rank) for rank in range(cluster.workers)]

    @property
    def members(self) -> Sequence[int]:
        return self.channel.collectives.members

    def all_reduce_mean(
        self,
        parts: Parts,
        weight: float = 1.0,
        *,
        group: Sequence[int] | None = None,
        into: Tensor | None = None,
        extra_state: bool = True,
    ) -> Tensor:
        numbers = self._flatten(parts) if self._has_costs else 0
        means: Means = self._call("all-reduce", Given(parts, into), weight, group)
        taken = means.take(self.rank, into)
        if numbers:
            self._end.spend("divide", numbers)
        return taken

    def start_all_reduce_mean(
        self, parts: Parts, weight: float = 1.0, *, group: Sequence[int] | None = None, extra_state: bool = True
    ) -> SimulatedPending:
        numbers = self._flatten(parts) if self._has_costs else 0
        if self._end.world.is_timing:  # no step changes the parts
            given = Given(parts)
        else:
            given = Given(parts.clone() if isinstance(parts, Tensor) else joined(parts))
        collective = self.channel.collectives.join(self.rank, "all-reduce", given, weight, group)
        return SimulatedPending(self, collective, numbers)

    def _flatten(self, parts: Parts) -> int:
        """Let the time of copying ``parts`` into one buffer pass; return their number of elements."""
        given = [parts] if isinstance(parts, Tensor) else parts
        numbers = sum(part.numel() if isinstance(part, Tensor) else len(part) for part in given)
        self._end.spend("flatten", numbers)
        return numbers

    def all_gather(
        self,
        message: MessageType | DeferredMessage[MessageType],
        *,
        group: Sequence[int] | None = None,
        continues: bool = False,
    ) -> list[MessageType]:
        if isinstance(message, DeferredMessage):
            self._spend_on(message)
            if self._end.kinds is None:  # else it needs this endpoint's classes
                gathered: list[MessageType] = self._call("all-gather", message, float(continues), group)
                return gathered
        message = made(message)
        return self._as_own(self._call("all-gather", _sent(message), float(continues), group), [message])

    def all_to_all(self, messages: Sequence[MessageType], *, group: Sequence[int] | None = None) -> list[MessageType]:
        check_one_for_each(messages, len(self.members if group is None else group))
        if isinstance(messages, DeferredParts):
            self._spend_on(messages)
            # With kinds it needs this endpoint's classes; where members change, others may divide the vector anew.
            if self._end.kinds is None and self._end.world.members is None:
                given: list[MessageType] = self._call("all-to-all", messages, 1.0, group)
                return given
        return self._as_own(self._call("all-to-all", [*map(_sent, messages)], 1.0, group), messages)

    def _spend_on(self, deferred: DeferredMessage[MessageType] | DeferredParts[MessageType]) -> None:
        """Let the time of making messages pass."""
        if self._end.world.cluster.costs and (work := deferred.work) is not None:
            self._end.spend(*work)

    def broadcast(self, tensor: Tensor, source: int = 0, *, group: Sequence[int] | None = None) -> Tensor:
        return self._own(self._call("broadcast", tensor, source, group))

    def send(self, to: int, message: Message) -> None:
        world = self._end.world
        if not (0 <= to < self.size or self.channel.has_shard_at(to)):
            raise ValueError(f"to={to} is not an address; the ranks are 0 to {self.size - 1}" + _server_hint(to))
        if self._end.is_handling:
            self._end.replies_left = count_reply(self._end.replies_left, to, message)
        self._end.await_window(to, message)
        world.send(self._end, self.channel, to, message if message.is_owned or world.is_timing else message.snapshot())

    def receive(
        self, kind: type[MessageType], source: int | None = None, *, timeout_s: float | None = None
    ) -> tuple[int, MessageType]:
        return self._end.take(self.channel, kind, source, timeout_s)

    def _call(self, kind: str, payload: Any, weight: float, group: Sequence[int] | None) -> Any:
        if self._end.is_handling:
            raise MisplacedCall(f"a handler may not block (it called {kind}); let a hook do it.")
        collective = self.channel.collectives.join(self.rank, kind, payload, weight, group)
        return self.leave(collective, self._end.world.agenda.now_s)

    def leave(self, collective: Collective, since_s: float) -> Any:
        """Wait until the collective has ended for this rank, and return its result."""
        end, rank = self._end, self.rank
        collective.since_s[rank] = since_s
        while rank not in collective.done_s:
            if collective.failure is not None:
                raise collective.failure
            if self.channel.collectives.needs_regrouping(rank, collective):
                if end.is_regrouping:  # the strategy begins anew with adapting
                    self.channel.collectives.withdraw(collective)
                else:
                    end.regroup(collective)
                    self.channel.collectives.rejoin(rank, collective)
                continue
            collective.waiters[rank] = end.fiber
            end.block(collective)
        if collective.lets_in and collective.lets_in == end.world.generation:  # else they are in already
            end.is_door_due = True
        return collective.results[rank]

    def _as_own(self, gathered: list[Message], given: Sequence[MessageType]) -> list[MessageType]:
        """Return ``gathered`` as instances of this endpoint's classes."""
        asked, kinds = set(map(type, given)), self._end.kinds
        if kinds is None and set(map(type, gathered)) <= asked:
            return gathered  # type: ignore[return-value]
        own = [message.received_as(asked, kinds) for message in gathered]
        is_unchanged = all(one is before for one, before in zip(own, gathered, strict=True))
        return gathered if is_unchanged else own  # type: ignore[return-value]

    def _own(self, result: Tensor) -> Tensor:
        return result if self._end.world.is_timing else result.clone()


class SimulatedPending:
    """A collective in progress in the simulator."""

    def __init__(self, network: SimulatedNetwork, collective: Collective, numbers: int) -> None:
        self._network, self._collective, self._numbers = network, collective, numbers

    def copied(self, network: SimulatedNetwork) -> SimulatedPending:
        """Return the same collective for a worker that got everything from this one."""
        self._network.channel.collectives.follow(network.rank, self._collective)
        return SimulatedPending(network, self._collective, self._numbers)

    @property
    def is_ready(self) -> bool:
        end = self._network._end
        done_s = self._collective.done_s.get(self._network.rank)
        return done_s is not None and done_s <= getattr(end, "boundary_s", done_s)

    def wait(self) -> Tensor:
        means: Means = self._network.leave(self._collective, self._network._end.world.agenda.now_s)
        taken = means.take(self._network.rank, None)
        if self._numbers:
            self._network._end.spend("divide", self._numbers)
        return taken


def _server_hint(to: int) -> str:
    return "; this strategy has no server (derive it from tacit.ServerStrategy)." if to == SERVER else "."


def _sent(message: MessageType) -> MessageType:
    """Return the message, or a copy of it, which does not change with the sender's tensors."""
    return message if message.is_owned else message.snapshot()
