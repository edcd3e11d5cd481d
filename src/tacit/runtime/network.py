"""Network on real processes: collectives on the session's process groups, messages on the message endpoint."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from tacit.core.collective_bytes import handed_out_bytes, ring_all_reduce_bytes, tree_broadcast_bytes
from tacit.core.host_memory import ReusedBuffers
from tacit.core.message_reading import unpack
from tacit.core.messages import Message
from tacit.core.network import DeferredMessage, Parts, check_one_for_each, joined, tensors_of
from tacit.errors import MisplacedCall, PeerLost, TimedOut
from tacit.record.trace import EXCHANGE, PlainEvent
from tacit.runtime.collectives import Collectives
from tacit.runtime.live_times import LiveTimes
from tacit.runtime.process_groups import Group

if TYPE_CHECKING:
    from tacit.runtime.backend import ProcessBackend

MessageType = TypeVar("MessageType", bound=Message)
_HALVES = (torch.float16, torch.bfloat16)


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
            if work is not None:
                self._backend.step.spend(*work)
        members = self.enter("all-gather", group)
        if members is None:
            return [message.snapshot()]
        live = None if continues else self._live_in(members)
        packed = [message.pack() + (live.tail() if live is not None else b"")] * members.size
        return self._exchange("all-gather", members, packed, [type(message)], live, continues, own=message)

    def all_to_all(self, messages: Sequence[MessageType], *, group: Sequence[int] | None = None) -> list[MessageType]:
        check_one_for_each(messages, self.size if group is None else len(group))
        members = self.enter("all-to-all", group)
        if members is None:
            return [messages[0].snapshot()]
        live = self._live_in(members)
        tail = b"" if live is None else live.tail()
        packed = [message.pack() + tail for message in messages]
        return self._exchange("all-to-all", members, packed, [type(message) for message in messages], live)

    def _exchange(
        self,
        name: str,
        members: Group,
        packed: list[bytes],
        kinds: list[type[Message]],
        live: LiveTimes | None,
        continues: bool = False,
        own: Message | None = None,
    ) -> list[Any]:
        """Send each member its message (``own`` is this one's); record the bytes that leave this process."""
        label, index = self.next_round(name, members, continues)
        started_s = self._backend.now_s()
        received = members.exchange_bytes(packed, lambda call: self.collectives.wait_for(call, label))
        sent = handed_out_bytes([len(part) for part in packed], members.place)
        self._backend.record_exchange(started_s, label, index, sent)
        received = received if live is None else live.read_tails(received)
        return [
            unpack(part).received_as(kinds) if own is None or place != members.place else own.snapshot()
            for place, part in enumerate(received)
        ]

    def broadcast(self, tensor: Tensor, source: int = 0, *, group: Sequence[int] | None = None) -> Tensor:
        members = self.enter("broadcast", group)
        if members is None:
            return tensor.clone()
        label, index = self.next_round("broadcast", members)
        started_s = self._backend.now_s()
        wire = tensor.detach().to(members.wire_device(tensor), copy=True)
        place = members.ranks.index(source)
        self.collectives.wait_for(members.broadcast(wire, place), label)
        sent = tree_broadcast_bytes(wire.numel() * wire.element_size(), place, members.size)[members.place]
        self._backend.record_exchange(started_s, label, index, sent)
        return wire.to(tensor.device)

    # Messages.

    def send(self, to: int, message: Message) -> None:
        if self.size == 1 and to == self.rank and not message.is_of(*self._backend.handles):
            self._to_itself.append(message.snapshot())  # as in the simulator; nothing is sent
            return
        what = f"send({type(message).__name__})"
        try:
            self._endpoint(what).send(to, message)
        except PeerLost as error:  # possibly a consequence of the run's end
            raise self.collectives.error_with_cause(error, what) from error

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
            received: tuple[int, MessageType] = endpoint.receive(kind, source, timeout_s=timeout_s)
        except PeerLost as error:  # possibly a consequence of the run's end
            raise self.collectives.error_with_cause(error, what) from error
        except TimedOut as error:
            if timeout_s is not None:  # of this call: the run continues
                raise
            raise notices.time_out_of(error) from None
        finally:
            notices.end()
        self._backend.record_wait(started_s, kind.kind or "message")
        return received

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

    def _live_in(self, members: Group) -> LiveTimes | None:
        """Return the times to send with a collective of ``members``; None: it carries none."""
        return self.live if members.size == self.size else None

    def enter(self, what: str, group: Sequence[int] | None) -> Group | None:
        """Return the group of the collective; None if this worker is its only member."""
        if self._backend.is_handling:
            raise MisplacedCall(f"a handler may not block (it called {what}); let a hook do it.")
        if self._backend.collectives is None:
            return None
        ranks = self._backend.collectives.participants(group, what)
        return self._backend.collectives.group(ranks) if len(ranks) > 1 else None

    @property
    def collectives(self) -> Collectives:
        assert self._backend.collectives is not None
        return self._backend.collectives

    def next_round(self, label: str, members: Group, continues: bool = False) -> tuple[str, int]:
        """Return the label of the next collective, and its number among those of its group."""
        ranks = tuple(members.ranks)
        self._rounds[ranks] = self._rounds.get(ranks, 0) + (not continues)
        return label if members.size == self.size else f"{label} of {ranks}", self._rounds[ranks]

    def count_rounds(self, rows: list[PlainEvent]) -> None:
        """Continue the numbering after the collectives in ``rows``, the trace of a checkpoint."""
        for _, _, kind, _, _, number, _, _, _, _ in rows:
            if kind == EXCHANGE:
                everyone = tuple(range(self.size))
                self._rounds[everyone] = max(self._rounds.get(everyone, 0), number)


class Mean:
    """A weighted mean in progress: the elements times their weight, followed by the weight, are summed."""

    def __init__(
        self, network: ProcessNetwork, parts: Parts, weight: float, group: Sequence[int] | None, *, overlaps: bool
    ) -> None:
        self._network, self._backend, self._overlaps, self._weight = network, network._backend, overlaps, weight
        self._members = network.enter("all-reduce", group)
        if isinstance(parts, Tensor):
            given, self._shape = [parts], parts.shape
        else:
            given = tensors_of(parts)
            self._shape = torch.Size([sum(part.numel() for part in given)])
        self._device = given[0].device
        # A worker keeps its own tensor only if all weights are 0, so only a worker with weight 0 may need it again.
        self._own = joined(given) if weight == 0.0 or self._members is None else None
        self._done_s: float | None = None
        self._seen_at = -1
        self._is_ready = self._members is None
        if self._members is not None:
            self._begin(given, weight, self._members)

    def _begin(self, given: list[Tensor], weight: float, members: Group) -> None:
        self._label, self._round = self._network.next_round("all-reduce", members)
        first = given[0]
        wire, numbers = members.wire_device(first), sum(part.numel() for part in given)
        is_staged = first.is_cuda and wire.type == "cpu"
        self._live = live = self._network._live_in(members)
        places = 0 if live is None else live.places
        self._sent = self._network._pool.take(numbers + 1 + places, first.dtype, wire, pinned=is_staged)
        self._buffer = buffer = self._sent[: numbers + 1]
        at = 0
        for part in given:
            buffer[at : at + part.numel()].copy_(part.reshape(-1))
            at += part.numel()
        if weight != 1.0:
            buffer[:-1].mul_(weight)
        buffer[-1] = weight
        self._backend.step.spend("flatten", numbers)
        if live is not None:
            live.fill(self._sent[numbers + 1 :])
        self._started_s = self._backend.now_s()
        self._work = members.all_reduce(self._sent)
        # Eight bits of mantissa cannot hold a sum of weights, so those of half-precision tensors are sent separately.
        is_half = first.dtype in _HALVES
        self._weights = torch.tensor([weight], dtype=torch.float64, device=wire) if is_half else None
        self._weights_work = members.all_reduce(self._weights) if self._weights is not None else None
        if self._overlaps:
            self._backend.step.means_in_progress.append(self)

    @property
    def is_ready(self) -> bool:
        """Whether the exchange had ended at the last step boundary."""
        if not self._is_ready and self._seen_at != self._backend.step.boundaries:
            self._seen_at, self._is_ready = self._backend.step.boundaries, self.look()
        return self._is_ready

    def look(self) -> bool:
        """Note the time if the exchange has ended; return whether it has."""
        if self._done_s is None and self._work.is_completed():
            self._done_s = self._backend.now_s()
        return self._done_s is not None and self._done_s <= self._backend.now_s()

    def drain(self) -> None:
        """Wait for the exchange while the clock is stopped; note when it would have ended on a clock that runs."""
        if self._done_s is None and not self.look():
            self._wait_for_works()
            self._done_s = self._backend.clock.at_s(time.perf_counter())

    def _wait_for_works(self) -> None:
        for work in (self._work, self._weights_work):
            if work is not None:
                self._network.collectives.wait_for(work, self._label)

    def wait(self, into: Tensor | None = None) -> Tensor:
        if self._members is None:
            self._backend.step.total_weight = self._weight
            return self._kept(into)
        from_s = self._backend.now_s()
        self._wait_for_works()
        has_waited = self._done_s is None or self._done_s > from_s
        if self._done_s is not None and has_waited:  # it ended while the clock was stopped
            with self._backend.hook_lock.released():
                self._backend.clock.pass_until(self._done_s)
        now_s = self._backend.clock.stamp_s()
        if self._overlaps:
            self._backend.step.means_in_progress.remove(self)
            if has_waited:
                self._backend.step.waited(from_s, now_s, self._label, self._round)
        size, elements = self._members.size, self._sent.numel()
        sent = ring_all_reduce_bytes(elements, self._buffer.element_size(), size)[self._members.place]
        end_s = self._done_s or now_s
        self._backend.step.exchanged(
            self._started_s, end_s, self._label, self._round, sent, is_overlapped=self._overlaps
        )
        mean = self._result(into)
        if self._live is not None:
            self._live.read(self._sent[self._buffer.numel() :])
        self._backend.step.spend("divide", elements)
        return mean

    @property
    def rank(self) -> int:
        return self._backend.rank

    def _result(self, into: Tensor | None) -> Tensor:
        """Divide by the sum of weights; if it is 0, every worker keeps its own tensor."""
        total = float(self._buffer[-1] if self._weights is None else self._weights)
        self._backend.step.total_weight = total
        if total == 0.0:
            return self._kept(into)
        if into is not None and into.device == self._buffer.device:
            torch.div(
                self._buffer[: into.numel()], total, out=into
            )  # one pass over the memory less than division and copy
            return self._buffer[into.numel() : -1].div_(total)
        mean = self._buffer[:-1].div_(total)
        mean = mean if mean.device == self._device else mean.to(self._device)
        return mean.view(self._shape) if into is None else _write_into(mean, into)

    def _kept(self, into: Tensor | None) -> Tensor:
        """Return the tensor that this rank contributed."""
        assert self._own is not None
        return self._own.view(self._shape) if into is None else _write_into(self._own, into)


def _write_into(mean: Tensor, into: Tensor) -> Tensor:
    """Write the first elements of ``mean`` into ``into``; return the others."""
    into.copy_(mean[: into.numel()])
    return mean[into.numel() :]
