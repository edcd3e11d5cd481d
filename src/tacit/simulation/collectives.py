"""Collectives in the simulator: the last rank that joins starts the exchange, and all ranks leave with the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tacit.core.messages import Message
from tacit.errors import Disagreement, TimedOut
from tacit.record.trace import Trace
from tacit.simulation.agenda import Agenda
from tacit.simulation.links import Fabric, Price
from tacit.simulation.rendezvous import Call, Group, Rendezvous


class Collective(Call):
    """One collective of one group; ``joined``: payload, then weight or source or continues, then time."""

    __slots__ = ("begun_s", "done_s", "results")

    joined: dict[int, tuple[Any, float, float]]

    def __init__(self, kind: str, group: Group, index: int) -> None:
        super().__init__(kind, group, index)
        self.results: dict[int, Any] = {}
        self.done_s: dict[int, float] = {}
        self.begun_s = 0.0

    def __str__(self) -> str:
        return f"{self.kind} {self.index}"

    @property
    def continues(self) -> bool:
        """Whether it is the second half of an exchange and not a round of its own."""
        return self.kind == "all-gather" and all(flag for _, flag, _ in self.joined.values())


class Collectives(Rendezvous[Collective]):
    """All collectives of a session. They take virtual time, are counted and written into the trace."""

    noun = "collective"

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
        super().__init__(workers, Collective)
        self._agenda, self._fabric, self._trace, self._timeout_s = agenda, fabric, trace, timeout_s
        self._awake_from, self._is_timing = awake_from, is_timing
        self.rounds = 0

    def join(self, rank: int, kind: str, payload: Any, weight: float, group: Sequence[int] | None) -> Collective:
        """Join the next collective of the group; the last rank starts it."""
        return self._enter(rank, kind, (payload, weight, self._agenda.now_s), group)

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

    def _price(self, collective: Collective) -> tuple[Price, list[Any]]:
        """Return time and bytes of the collective, and the result of each rank in the order of the group."""
        group = collective.group
        joined = [collective.joined[rank] for rank in group]
        match collective.kind:
            case "all-reduce":
                tensors: list[Tensor] = [payload for payload, _, _ in joined]
                first = tensors[0]
                for rank, tensor in zip(group, tensors, strict=True):
                    if tensor.shape != first.shape or tensor.dtype != first.dtype:
                        rule = "all ranks must pass tensors of one shape and type."
                        raise Disagreement(
                            "size of a round", _described(tensor), _described(first), rank, others=group[:1], rule=rule
                        )
                elements = first.numel() + 1  # with the weight
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
    """Return Σ wᵢ xᵢ / Σ wᵢ as one shared tensor; if all weights are 0, each rank's own tensor."""
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
