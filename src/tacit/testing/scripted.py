"""A network whose answers are a list: call the hooks of a strategy in a unit test, without a simulation.

network = ScriptedNetwork(rank=0, size=2, answers=[torch.tensor([3.0])])
worker = ScriptedWorker(network, parameters=torch.tensor([1.0]))
LocalSGD(period=Every(1)).after_step(worker, state)
assert network.calls[0].name == "all_reduce_mean"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tacit.core.messages import Message
from tacit.core.network import DeferredMessage, MessageType, Network, Parts, check_one_for_each, joined, made
from tacit.core.parameter_layout import Layout
from tacit.core.worker import ObservedLosses, VectorMean, Worker
from tacit.errors import require


@dataclass(frozen=True)
class Call:
    """A call of the network: its name, and a copy of what the strategy gave."""

    name: str
    given: Any
    details: dict[str, Any] = field(default_factory=dict)  # weight, group, to, source


class ScriptedNetwork:
    """A ``Network`` that answers from a list and records every call in ``calls``.

    ``answers`` holds one entry for each call that returns something, in order:

    - ``all_reduce_mean`` and ``start_all_reduce_mean``: the mean, a flat tensor; or a function of the tensor given.
    - ``all_gather`` and ``all_to_all``: the messages of all ranks, in rank order; None in the place of its own.
    - ``broadcast``: the tensor of the source.
    - ``receive``: the pair (source, message).

    ``send`` needs no answer. An answer that is left over is in ``left``.
    """

    def __init__(self, rank: int = 0, size: int = 2, answers: Sequence[Any] = ()) -> None:
        require(0 <= rank < size, f"rank={rank} must be at least 0 and below size={size}.")
        self.rank, self.size = rank, size
        self.left, self.calls = list(answers), list[Call]()
        self.hosts = self.members = tuple(range(size))

    def all_reduce_mean(
        self,
        parts: Parts,
        weight: float = 1.0,
        *,
        group: Sequence[int] | None = None,
        into: Tensor | None = None,
        extra_state: bool = True,
    ) -> Tensor:
        mean = self._mean("all_reduce_mean", parts, weight, group)
        if into is None:
            return mean
        into.copy_(mean[: into.numel()].view_as(into))
        return mean[into.numel() :]

    def start_all_reduce_mean(
        self, parts: Parts, weight: float = 1.0, *, group: Sequence[int] | None = None, extra_state: bool = True
    ) -> ScriptedPending:
        return ScriptedPending(self._mean("start_all_reduce_mean", parts, weight, group))

    def all_gather(
        self,
        message: MessageType | DeferredMessage[MessageType],
        *,
        group: Sequence[int] | None = None,
        continues: bool = False,
    ) -> list[MessageType]:
        message = made(message)
        answer = self._answer(Call("all_gather", message.snapshot(), {"group": group, "continues": continues}))
        return [message if one is None else one for one in answer]

    def all_to_all(self, messages: Sequence[MessageType], *, group: Sequence[int] | None = None) -> list[MessageType]:
        check_one_for_each(messages, self.size if group is None else len(group))
        answer = self._answer(Call("all_to_all", [one.snapshot() for one in messages], {"group": group}))
        return [messages[place] if one is None else one for place, one in enumerate(answer)]

    def broadcast(self, tensor: Tensor, source: int = 0, *, group: Sequence[int] | None = None) -> Tensor:
        answer: Tensor = self._answer(Call("broadcast", tensor.clone(), {"source": source, "group": group}))
        return answer.clone()

    def send(self, to: int, message: Message) -> None:
        self.calls.append(Call("send", message.snapshot(), {"to": to}))

    def receive(
        self, kind: type[MessageType], source: int | None = None, *, timeout_s: float | None = None
    ) -> tuple[int, MessageType]:
        found, message = self._answer(Call("receive", kind, {"source": source}))
        assert isinstance(message, kind), f"receive({kind.__name__}): the next answer is a {type(message).__name__}."
        assert source in (None, found), f"receive(source={source}): the next answer comes from {found}."
        return found, message

    def _mean(self, name: str, parts: Parts, weight: float, group: Sequence[int] | None) -> Tensor:
        given = joined(parts)
        answer: Tensor | Callable[[Tensor], Tensor] = self._answer(
            Call(name, given, {"weight": weight, "group": group})
        )
        mean = answer.clone() if isinstance(answer, Tensor) else answer(given.clone())
        assert mean.numel() == given.numel(), (
            f"{name}: the answer has {mean.numel()} numbers, {given.numel()} were given."
        )
        return mean.reshape(parts.shape) if isinstance(parts, Tensor) else mean.reshape(-1)

    def _answer(self, call: Call) -> Any:
        self.calls.append(call)
        assert self.left, f"{call.name} is call {len(self.calls)} of the network, and no answer is left for it."
        return self.left.pop(0)


@dataclass(frozen=True)
class ScriptedPending:
    """A collective that is complete from the start."""

    result: Tensor
    is_ready: bool = True

    def wait(self) -> Tensor:
        return self.result


@dataclass
class ScriptedWorker:
    """A ``Worker`` around a ``ScriptedNetwork``; set ``step``, ``gradient``, ``observed`` and ``time_s`` before a hook.

    ``notes`` holds what the strategy notes; ``was_skipped`` and ``was_abandoned`` whether it skips the update.
    """

    network: ScriptedNetwork
    parameters: Tensor
    gradient: Tensor = field(default_factory=lambda: torch.empty(0))
    step: int = 0
    steps: int | None = None
    learning_rate: float = 0.1
    weight: float = 1.0
    seed: int = 0
    observed: ObservedLosses = ObservedLosses(1, 1.0, None, None)
    time_s: float = 0.0
    notes: list[tuple[str, float]] = field(default_factory=list)
    was_skipped: bool = False
    was_abandoned: bool = False

    def __post_init__(self) -> None:
        self.random = np.random.default_rng((self.seed, self.rank + 1))
        self.shared_random = np.random.default_rng((self.seed, 0))

    @property
    def rank(self) -> int:
        return self.network.rank

    @property
    def size(self) -> int:
        return self.network.size

    @property
    def layout(self) -> Layout:
        """One tensor with all parameters."""
        return Layout(("parameters",), (self.parameters.shape,), (0,), self.parameters.numel())

    def take_observed(self) -> ObservedLosses:
        return self.observed

    def report_total_weight(self, total_weight: float) -> None:
        """Accept the total weight."""

    def average_extra_state(self, weight: float, mean: VectorMean | None = None) -> None:
        """Accept the call: there is nothing to average."""

    def spend(self, what: str, numbers: int) -> None:
        """Accept the call: time does not pass."""

    def set_model_version(self, updates: int) -> None:
        """Accept the model's version."""

    def skip_update(self) -> None:
        self.was_skipped = True

    def abandon_step(self) -> None:
        self.was_abandoned = True

    def now_s(self) -> float:
        return self.time_s

    def note(self, name: str, value: float) -> None:
        self.notes.append((name, value))


if TYPE_CHECKING:

    def _fulfils(network: ScriptedNetwork, worker: ScriptedWorker) -> tuple[Network, Worker]:
        return network, worker
