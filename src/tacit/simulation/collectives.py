"""Collectives in the simulator: ranks meet, the last to come starts the exchange, everybody leaves with the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tacit.core.messages import Message
from tacit.errors import Disagreement, PeerLost, TimedOut
from tacit.record.trace import Trace
from tacit.simulation.agenda import Agenda
from tacit.simulation.fibers import Fiber
from tacit.simulation.links import Fabric, Price

Group = tuple[int, ...]


class Collective:
    """One collective of one group."""

    __slots__ = ("begun_s", "done_s", "failure", "group", "index", "joined", "kind", "results", "waiters")

    def __init__(self, kind: str, group: Group, index: int) -> None:
        self.kind, self.group, self.index = kind, group, index
        self.joined: dict[int, tuple[Any, float, float]] = {}  # by rank: payload, weight or source or continues, when
        self.waiters: dict[int, Fiber] = {}  # by rank: who is parked here
        self.results: dict[int, Any] = {}
        self.done_s: dict[int, float] = {}
        self.begun_s = 0.0
        self.failure: BaseException | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.index}"

    @property
    def continues(self) -> bool:
        """Whether it is the second half of an exchange and so no round of its own."""
        return self.kind == "all-gather" and all(flag for _, flag, _ in self.joined.values())


class Collectives:
    """All collectives of a simulation, in the order each rank calls them."""

    def __init__(
        self,
        workers: int,
        agenda: Agenda,
        fabric: Fabric,
        trace: Trace,
        timeout_s: float,
        awake_from: Callable[[Sequence[int]], float],
        is_timing: bool,
    ) -> None:
        self.everyone: Group = tuple(range(workers))
        self._agenda, self._fabric, self._trace, self._timeout_s = agenda, fabric, trace, timeout_s
        self._awake_from, self._is_timing = awake_from, is_timing
        self._numbers: dict[Group, int] = {self.everyone: 0}  # a group's number: hashing a long tuple costs
        self._groups: list[Group] = [self.everyone]
        self._counts: list[list[int]] = [[0] * workers]  # by group, then rank: collectives joined
        self._open: dict[tuple[int, int], Collective] = {}
        self._lost: dict[int, float] = {}
        self.goes_on = False  # without workers that are lost, instead of failing
        self.rounds = 0

    def join(self, rank: int, kind: str, payload: Any, weight: float, group: Sequence[int] | None) -> Collective:
        """Enter the group's next collective; the last to come starts it."""
        number = 0 if group is None else self._number(tuple(group))
        members, counts = self._groups[number], self._counts[number]
        counts[rank] += 1
        key = (number, counts[rank])
        collective = self._open.get(key)
        if collective is None:
            collective = self._open[key] = Collective(kind, members, counts[rank])
        if collective.kind != kind:
            raise Disagreement("collective", kind, collective.kind, rank, others=sorted(collective.joined))
        for lost, at_s in self._lost.items() if not self.goes_on else ():
            if lost in members:
                raise PeerLost(lost, at_s, str(collective), need=self._need(collective))
        collective.joined[rank] = (payload, weight, self._agenda.now_s)
        self._start_if_all_came(key, collective)
        return collective

    def _start_if_all_came(self, key: tuple[int, int], collective: Collective) -> None:
        awaited = len(collective.group) if not self._lost else sum(rank not in self._lost for rank in collective.group)
        if len(collective.joined) == awaited > 0:
            del self._open[key]
            collective.group = (
                collective.group if not self._lost else tuple(r for r in collective.group if r in collective.joined)
            )
            self._start(collective)

    def _number(self, group: Group) -> int:
        if group not in self._numbers:
            self._numbers[group] = len(self._groups)
            self._groups.append(group)
            self._counts.append([0] * len(self.everyone))
        return self._numbers[group]

    def lose(self, rank: int, at_s: float) -> None:
        """Wake everybody who waits for a worker that is gone."""
        self._lost[rank] = at_s
        for key, collective in list(self._open.items()):
            if rank in collective.group and self.goes_on:
                collective.joined.pop(rank, None)
                collective.waiters.pop(rank, None)
                self._start_if_all_came(key, collective)
            elif rank in collective.group:
                del self._open[key]
                self._fail(collective, PeerLost(rank, at_s, str(collective), need=self._need(collective)))

    def _need(self, collective: Collective) -> str:
        of_some = "" if collective.group == self.everyone else f" of ranks {', '.join(map(str, collective.group))}"
        return f"needs every worker{of_some}"

    def readmit(self, rank: int) -> None:
        """Let a fresh worker take part where one was lost: it comes to the next collective that nobody has left yet."""
        self._lost.pop(rank, None)
        for group, counts in zip(self._groups, self._counts, strict=True):
            counts[rank] = min(
                (counts[other] for other in group if other != rank and other not in self._lost), default=0
            )

    def _start(self, collective: Collective) -> None:
        self._trace.pack_if_long()
        price, results = self._price(collective)
        self.rounds += not collective.continues
        collective.index, now_s = self.rounds, self._agenda.now_s
        collective.begun_s = max(self._fabric.open_from(collective.group), self._awake_from(collective.group))
        if collective.begun_s > now_s + self._timeout_s:
            failure = TimedOut(str(collective), self._fabric.cut_off(collective.group), self._timeout_s)
            self._agenda.at(now_s + self._timeout_s, lambda: self._fail(collective, failure))
            return
        collective.results = dict(zip(collective.group, results, strict=True))
        ends_s = [collective.begun_s + seconds for seconds in price.seconds]
        self._trace.exchanges(
            collective.group, collective.begun_s, ends_s, collective.kind, self.rounds, price.sent_bytes
        )
        leaving: dict[float, list[int]] = {}
        for rank, end_s in zip(collective.group, ends_s, strict=True):
            leaving.setdefault(end_s, []).append(rank)
        for end_s, ranks in leaving.items():
            self._agenda.at(end_s, lambda ranks=ranks: self._leave(collective, ranks))  # type: ignore[misc]

    def _leave(self, collective: Collective, ranks: list[int]) -> None:
        now_s, waiters = self._agenda.now_s, collective.waiters
        for rank in ranks:
            collective.done_s[rank] = now_s
        for rank in ranks:
            fiber = waiters.pop(rank, None)
            if fiber is not None:
                fiber.resume()

    def _fail(self, collective: Collective, failure: BaseException) -> None:
        collective.failure = failure
        for rank in sorted(collective.waiters):
            collective.waiters.pop(rank).throw(failure)

    def _price(self, collective: Collective) -> tuple[Price, list[Any]]:
        """Return what the collective costs and what each rank, by place in the group, takes away."""
        group = collective.group
        joined = [collective.joined[rank] for rank in group]
        match collective.kind:
            case "all-reduce":
                tensors: list[Tensor] = [payload for payload, _, _ in joined]
                first = tensors[0]
                for rank, tensor in zip(group, tensors, strict=True):
                    if tensor.shape != first.shape or tensor.dtype != first.dtype:
                        rule = "all ranks must give tensors of one shape and type."
                        raise Disagreement(
                            "size of a round", _described(tensor), _described(first), rank, others=group[:1], rule=rule
                        )
                elements = first.numel() + 1  # the weight travels too
                price = self._fabric.price_all_reduce(group, elements, first.element_size())
                return price, tensors if self._is_timing else mean_of(tensors, [weight for _, weight, _ in joined])
            case "all-gather":
                messages: list[Message] = [payload for payload, _, _ in joined]
                price = self._fabric.price_all_gather(group, [message.size_bytes for message in messages])
                return price, [list(messages) for _ in group]
            case "all-to-all":
                parts: list[dict[int, Message]] = [payload for payload, _, _ in joined]
                sizes = [[given[rank].size_bytes for rank in group] for given in parts]
                return self._fabric.price_all_to_all(group, sizes), [[given[rank] for given in parts] for rank in group]
            case _:
                source = int(joined[0][1])
                value: Tensor = collective.joined[source][0]
                price = self._fabric.price_broadcast(group, source, value.numel() * value.element_size())
                return price, [value] * len(group)


def mean_of(tensors: list[Tensor], weights: list[float]) -> list[Tensor]:
    """Return Σ wᵢ xᵢ / Σ wᵢ, one shared tensor for all; where all weights are 0 everybody keeps its own."""
    total = sum(weights)
    if total == 0:
        return tensors
    if len(tensors) == 1:
        return tensors
    stacked = torch.stack(tensors)
    if any(weight != 1.0 for weight in weights):
        stacked *= stacked.new_tensor(weights).view(-1, *[1] * (stacked.dim() - 1))
    return [stacked.sum(0).div_(total)] * len(tensors)


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"
