"""Network on real processes: collectives on the session's process groups, messages on the message endpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from tacit.core.collective_bytes import handed_out_bytes, tree_broadcast_bytes
from tacit.core.host_memory import ReusedBuffers
from tacit.core.message_reading import unpack
from tacit.core.messages import Message
from tacit.core.network import DeferredMessage, DeferredParts, Parts, check_one_for_each
from tacit.errors import MembersChanged, MisplacedCall, PeerLost, TimedOut
from tacit.record.trace import EXCHANGE, PlainEvent
from tacit.runtime.collectives import Collectives
from tacit.runtime.live_times import LiveTimes
from tacit.runtime.membership.calls import AllToAll, Broadcast, Gather
from tacit.runtime.membership.means import Mean

if TYPE_CHECKING:
    from tacit.runtime.backend import ProcessBackend

MessageType = TypeVar("MessageType", bound=Message)
Result = TypeVar("Result")


class ProcessNetwork:
    """The ``Network`` of one process."""

    def __init__(self, backend: ProcessBackend) -> None:
        self._backend, self.rank, self.size = backend, backend.rank, backend.size
        self.hosts: Sequence[int] = (0,) * self.size  # until the rendezvous
        self._pool = ReusedBuffers()
        self._to_itself: list[Message] = []  # messages that a single process has sent to itself
        self._rounds: dict[tuple[int, ...], int] = {}
        self.live: LiveTimes | None = None  # sends the ranks' times with rounds of all ranks

    @property
    def members(self) -> Sequence[int]:
        return self._backend.live_ranks

    # Collectives.

    def all_reduce_mean(
        self,
        parts: Parts,
        weight: float = 1.0,
        *,
        group: Sequence[int] | None = None,
        into: Tensor | None = None,
        extra_state: bool = True,
    ) -> Tensor:
        return Mean(self, parts, weight, group, overlaps=False).wait(into)

    def start_all_reduce_mean(
        self, parts: Parts, weight: float = 1.0, *, group: Sequence[int] | None = None, extra_state: bool = True
    ) -> Mean:
        return Mean(self, parts, weight, group, overlaps=True)

    def all_gather(
        self,
        message: MessageType | DeferredMessage[MessageType],
        *,
        group: Sequence[int] | None = None,
        continues: bool = False,
    ) -> list[MessageType]:
        if isinstance(message, DeferredMessage):
            work, message = message.work, message.make()
            self._spend_on(work)
        ranks = self.enter("all-gather", group)
        if ranks is None:
            return [message.snapshot()]
        label, number = self.next_round("all-gather", ranks, continues)
        live = None if continues else self.live_among(len(ranks))
        packed = message.pack() + (live.tail() if live is not None else b"")
        gather = Gather(label, self._with_flags(packed, group, has_live_times=live is not None), continues=continues)
        started_s = self._backend.now_s()
        self.collectives.run(gather, ranks, of_all=group is None)
        received, live = self._without_flags(gather.received, group, live)
        place = gather.seats.index(self.rank)
        sent = handed_out_bytes([len(packed)] * len(received), place)
        self._backend.record_exchange(started_s, label, number, sent)
        received = received if live is None else live.read_tails(received)
        messages: list[Any] = [unpack(part).received_as([type(message)]) for part in received]
        messages[place] = message.snapshot()
        return messages

    def _with_flags(self, packed: bytes, group: Sequence[int] | None, *, has_live_times: bool) -> bytes:
        """Return a message and, where members may change, whether a joiner waits and whether times are behind it."""
        if group is not None or not self.is_elastic:
            return packed
        return packed + bytes([self.collectives.joiner_waits + 2 * has_live_times])

    def _without_flags(
        self, received: list[bytes], group: Sequence[int] | None, live: LiveTimes | None
    ) -> tuple[list[bytes], LiveTimes | None]:
        """Return messages without the flags behind them, and the times to read, which all or none of them carry."""
        if group is not None or not self.is_elastic:
            return received, live
        flags = [part[-1] for part in received]
        if any(flag & 1 for flag in flags):
            self.collectives.admit()
        have_times = [bool(flag & 2) for flag in flags]
        if all(have_times) and len(received) == self.size:
            return [part[:-1] for part in received], live or self.live
        tails = [1 + LiveTimes.tail_bytes * has_times for has_times in have_times]
        return [part[:-tail] for part, tail in zip(received, tails, strict=True)], None

    def _spend_on(self, work: tuple[str, int] | None) -> None:
        if work is not None:
            self._backend.step.spend(*work)

    def all_to_all(self, messages: Sequence[MessageType], *, group: Sequence[int] | None = None) -> list[MessageType]:
        if isinstance(messages, DeferredParts):
            work, messages = messages.work, messages.make()
            self._spend_on(work)
        ranks = self.enter("all-to-all", group)
        check_one_for_each(messages, 1 if ranks is None else len(ranks))
        if ranks is None:
            return [messages[0].snapshot()]
        live = self.live_among(len(ranks))
        tail = b"" if live is None else live.tail()
        packed = [message.pack() + tail for message in messages]
        label, number = self.next_round("all-to-all", ranks)
        started_s = self._backend.now_s()
        exchange = AllToAll(label, packed)
        self.collectives.run(exchange, ranks, of_all=group is None)
        sent = handed_out_bytes([len(part) for part in packed], exchange.seats.index(self.rank))
        self._backend.record_exchange(started_s, label, number, sent)
        received = exchange.received if live is None else live.read_tails(exchange.received)
        kinds = [type(message) for message in messages]
        answers: list[Any] = [unpack(part).received_as(kinds) for part in received]
        return answers

    def broadcast(self, tensor: Tensor, source: int = 0, *, group: Sequence[int] | None = None) -> Tensor:
        ranks = self.enter("broadcast", group)
        if ranks is None:
            return tensor.clone()
        label, number = self.next_round("broadcast", ranks)
        started_s = self._backend.now_s()
        wire = tensor.detach().to(self.collectives.wire_device(tensor), copy=True)
        call = Broadcast(label, wire, source)
        self.collectives.run(call, ranks, of_all=group is None)
        place, size_bytes = call.seats.index(source), wire.numel() * wire.element_size()
        sent = tree_broadcast_bytes(size_bytes, place, len(call.seats))[call.seats.index(self.rank)]
        self._backend.record_exchange(started_s, label, number, sent)
        return wire.to(tensor.device)

    # Messages.

    def send(self, to: int, message: Message) -> None:
        if self.size == 1 and to == self.rank and not message.is_of(*self._backend.handles):
            self._to_itself.append(message.snapshot())  # as in the simulator; nothing is sent
            return
        what = f"send({type(message).__name__})"
        endpoint = self._endpoint(what)
        self._wait_for_message(lambda: endpoint.send(to, message), what, is_with_server=to < 0)

    def receive(
        self, kind: type[MessageType], source: int | None = None, *, timeout_s: float | None = None
    ) -> tuple[int, MessageType]:
        for index, message in enumerate(self._to_itself):
            if message.is_of(kind) and source in (None, self.rank):
                del self._to_itself[index]
                return self.rank, message.received_as((kind,))  # type: ignore[return-value]
        started_s = self._backend.now_s()
        what = f"receive({kind.__name__})"
        endpoint, notices = self._endpoint(what), self.collectives.notices
        sources = endpoint.peers if source is None else (source,)
        notices.begin_message(what, sources, may_be_handled=bool(self._backend.handles))
        try:
            received: tuple[int, MessageType] = self._wait_for_message(
                lambda: endpoint.receive(kind, source, timeout_s=timeout_s),
                what,
                is_with_server=source is not None and source < 0,
            )
        except TimedOut as error:
            if timeout_s is not None:  # of this call: the run continues
                raise
            raise notices.time_out_of(error) from None
        finally:
            notices.end()
        self._backend.record_wait(started_s, kind.kind or "message")
        return received

    def _wait_for_message(self, call: Callable[[], Result], what: str, *, is_with_server: bool) -> Result:
        """Return the result of a call of the endpoint.

        Raise ``MembersChanged`` where the server has returned with its next life, and once other members are agreed on.
        """
        membership = self.collectives.membership
        try:
            return call()
        except PeerLost as error:  # possibly a consequence of the run's end
            if is_with_server and self._backend.server_has_returned():
                raise MembersChanged(what) from None
            failure = self.collectives.error_with_cause(self._backend.explained(error), what)
            if membership is None or not membership.watches or failure is not error:
                raise failure from error
            membership.change(error)
        except MembersChanged:
            assert membership is not None
            membership.change()
        raise MembersChanged(what)

    def _endpoint(self, what: str) -> Any:
        if self._backend.endpoint is None:
            why = (
                "there is no other worker; call it only if worker.size > 1, or start several processes with torchrun"
                if self.size == 1
                else "its strategy uses collectives only"
            )
            raise MisplacedCall(f"{what} in a run of {self.size}: {why}.")
        return self._backend.endpoint

    # For collectives.

    def live_among(self, members: int) -> LiveTimes | None:
        """Return the times to send with a collective of so many members; None: it carries none."""
        return self.live if members == self.size else None

    @property
    def is_elastic(self) -> bool:
        """Whether collectives of all workers go on without lost ones, and with joiners."""
        return self._backend.collectives is not None and self.collectives.membership is not None

    def enter(self, what: str, group: Sequence[int] | None) -> tuple[int, ...] | None:
        """Return who takes part in the collective; None if this worker is its only member."""
        if self._backend.is_handling:
            raise MisplacedCall(f"a handler may not block (it called {what}); let a hook do it.")
        if self._backend.collectives is None:
            return None
        ranks = self._backend.collectives.participants(group, what)
        if len(ranks) == 1 and group is None and self.collectives.joiner_waits:
            self.collectives.admit()  # no round with others will say it
        return ranks if len(ranks) > 1 else None

    @property
    def collectives(self) -> Collectives:
        assert self._backend.collectives is not None
        return self._backend.collectives

    def next_round(self, label: str, ranks: tuple[int, ...], continues: bool = False) -> tuple[str, int]:
        """Return the label of the next collective, and its number among those of its group."""
        is_of_all = len(ranks) == self.size or (self.is_elastic and ranks == self.collectives.living)
        ranks = tuple(range(self.size)) if is_of_all else ranks
        self._rounds[ranks] = self._rounds.get(ranks, 0) + (not continues)
        return label if is_of_all else f"{label} of {ranks}", self._rounds[ranks]

    def count_rounds(self, rows: list[PlainEvent]) -> None:
        """Continue the numbering after the collectives in ``rows``, the trace of a checkpoint."""
        for _, _, kind, _, _, number, _, _, _, _ in rows:
            if kind == EXCHANGE:
                everyone = tuple(range(self.size))
                self._rounds[everyone] = max(self._rounds.get(everyone, 0), number)
