"""A weighted mean over workers, blocking or in progress."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from tacit.core.collective_bytes import ring_all_reduce_bytes
from tacit.core.network import Parts, joined, tensors_of
from tacit.runtime.membership.calls import MemberCall, Wait
from tacit.runtime.process_groups import Call, Group

if TYPE_CHECKING:
    from tacit.runtime.network import ProcessNetwork

_HALVES: Final = (torch.float16, torch.bfloat16)


class Mean(MemberCall):
    """A weighted mean in progress: the elements times their weight, followed by the weight, are summed.

    Where members may change, one more number says whether this worker knows of somebody who waits to join.
    """

    def __init__(
        self, network: ProcessNetwork, parts: Parts, weight: float, group: Sequence[int] | None, *, overlaps: bool
    ) -> None:
        super().__init__("all-reduce")
        self._network, self._backend, self._overlaps, self._weight = network, network._backend, overlaps, weight
        self._participants = network.enter("all-reduce", group)
        if isinstance(parts, Tensor):
            given, self._shape = [parts], parts.shape
        else:
            given = tensors_of(parts)
            self._shape = torch.Size([sum(part.numel() for part in given)])
        self._device, self._numbers = given[0].device, sum(part.numel() for part in given)
        # A worker keeps its own tensor only if all weights are 0, so only a worker with weight 0 may need it again.
        self._own = joined(given) if weight == 0.0 or self._participants is None else None
        self._done_s: float | None = None
        self._seen_at = -1
        self._is_ready = self._participants is None
        if self._participants is None:
            return
        self._can_repeat = network.is_elastic and group is None
        # What an overlapped mean averages may change before it begins anew.
        self._given = [joined(given)] if self._can_repeat and overlaps else given
        self.label, self._round = network.next_round("all-reduce", self._participants)
        self._live_times: Tensor | None = None
        self._begins_first = True
        network.collectives.begin_call(self, self._participants, of_all=group is None)
        if overlaps:
            self._backend.step.means_in_progress.append(self)
        if not self._can_repeat:
            self._given = []

    def begin(self, group: Group | None) -> None:
        given, weight, numbers = self._given, self._weight, self._numbers
        first = given[0]
        wire = torch.device("cpu") if group is None else group.wire_device(first)
        is_staged = first.is_cuda and wire.type == "cpu"
        places = self._live_places(len(self.seats))
        extra = places + self._can_repeat
        self._sent = self._network._pool.take(numbers + 1 + extra, first.dtype, wire, pinned=is_staged)
        buffer = self._sent[: numbers + 1]
        at = 0
        for part in given:
            buffer[at : at + part.numel()].copy_(part.reshape(-1))
            at += part.numel()
        if weight != 1.0:
            buffer[:-1].mul_(weight)
        buffer[-1] = weight
        if self._begins_first:
            self._backend.step.spend("flatten", numbers)
        self._fill_extra(self._sent[numbers + 1 :], places)
        if self._begins_first:
            self._started_s = self._backend.now_s()
        self._begins_first = False
        # Eight bits of mantissa cannot hold a sum of weights, so those of half-precision tensors are sent separately.
        is_half = first.dtype in _HALVES
        self._weights = torch.tensor([weight], dtype=torch.float64, device=wire) if is_half else None
        self._work = self._weights_work = None
        if group is not None:
            self._work = group.all_reduce(self._sent)
            self._weights_work = group.all_reduce(self._weights) if self._weights is not None else None

    def _live_places(self, members: int) -> int:
        """Return how many numbers ranks' times take behind the weight."""
        live = self._network.live_among(members)
        return 0 if live is None else live.places

    def _fill_extra(self, extra: Tensor, places: int) -> None:
        """Write what travels behind the weight."""
        if places:
            if self._live_times is None:
                assert self._network.live is not None
                self._live_times = torch.zeros_like(extra[:places])
                self._network.live.fill(self._live_times)
            extra[:places].copy_(self._live_times)
        if self._can_repeat:
            extra[-1] = float(self._network.collectives.joiner_waits)

    _work: Call | None
    _weights_work: Call | None

    def end(self, wait: Wait) -> None:
        for work in (self._work, self._weights_work):
            if work is not None:
                wait(work)

    def result(self) -> list[Tensor]:
        return [self._sent] if self._weights is None else [self._sent, self._weights]

    def take(self, result: Sequence[Tensor]) -> None:
        self._sent, *weights = result
        self._weights = weights[0] if weights else None

    @property
    def is_ready(self) -> bool:
        """Whether the exchange had ended at the last step boundary."""
        if not self._is_ready and self._seen_at != self._backend.step.boundaries:
            self._seen_at, self._is_ready = self._backend.step.boundaries, self.look_now()
        return self._is_ready

    def look(self) -> bool:
        works = [work for work in (self._work, self._weights_work) if work is not None]
        return all(work.is_completed() and work.has_succeeded for work in works)

    def look_now(self) -> bool:
        """Note the time if the exchange has ended; return whether it has."""
        if self._done_s is None and (self._work is None or self._work.is_completed()):
            self._done_s = self._backend.now_s()
        return self._done_s is not None and self._done_s <= self._backend.now_s()

    def drain(self) -> None:
        """Wait for the exchange while the clock is stopped; note when it would have ended on a clock that runs."""
        if self._done_s is None and not self.look_now():
            self._network.collectives.end_call(self)
            self._done_s = self._backend.clock.at_s(time.perf_counter())

    def wait(self, into: Tensor | None = None) -> Tensor:
        if self._participants is None:
            self._backend.step.total_weight = self._weight
            return self._kept(into)
        from_s = self._backend.now_s()
        self._network.collectives.end_call(self)
        has_waited = self._done_s is None or self._done_s > from_s
        if self._done_s is not None and has_waited:  # it ended while the clock was stopped
            with self._backend.hook_lock.released():
                self._backend.clock.pass_until(self._done_s)
        now_s = self._backend.clock.stamp_s()
        if self._overlaps:
            self._backend.step.means_in_progress.remove(self)
            if has_waited:
                self._backend.step.waited(from_s, now_s, self.label, self._round)
        elements = self._sent.numel()
        sent = ring_all_reduce_bytes(elements, self._sent.element_size(), len(self.seats))[self._place]
        end_s = self._done_s or now_s
        self._backend.step.exchanged(
            self._started_s, end_s, self.label, self._round, sent, is_overlapped=self._overlaps
        )
        mean = self._result(into)
        self._read_extra(self._sent[self._numbers + 1 :])
        self._backend.step.spend("divide", elements)
        self._given = []
        return mean

    @property
    def _place(self) -> int:
        return self.seats.index(self._backend.rank)

    @property
    def rank(self) -> int:
        return self._backend.rank

    def _read_extra(self, extra: Tensor) -> None:
        if places := self._live_places(len(self.seats)):
            assert self._network.live is not None
            self._network.live.read(extra[:places])
        if self._can_repeat and not self.is_old and float(extra[-1]) > 0:
            self._network.collectives.admit()

    def _result(self, into: Tensor | None) -> Tensor:
        """Divide by the sum of weights; if it is 0, every worker keeps its own tensor."""
        buffer = self._sent[: self._numbers + 1]
        total = float(buffer[-1] if self._weights is None else self._weights)
        self._backend.step.total_weight = total
        if total == 0.0:
            return self._kept(into)
        divide = torch.div if self._can_repeat else Tensor.div_  # another member may still need the sum
        if into is not None and into.device == buffer.device:
            torch.div(buffer[: into.numel()], total, out=into)  # one pass over the memory less than division and copy
            return divide(buffer[into.numel() : -1], total)
        mean = divide(buffer[:-1], total)
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
