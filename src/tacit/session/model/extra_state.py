"""Extra state that is averaged along with the parameters: buffers and, on request, the optimizer's moments.

It is appended to the strategy's own all-reduce, so that a round stays one message. Strategies without such an
all-reduce (servers, gossip) average buffers when the model is reported.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import torch
from torch import Tensor, nn

from tacit.core.messages import Message
from tacit.core.network import Network, Parts, Pending, tensors_of
from tacit.core.state_io import PendingRound
from tacit.core.worker import VectorMean
from tacit.errors import nearest, require
from tacit.session.steps.optimizers import Optimizers, evaluates_several_times, is_moment

MessageType = TypeVar("MessageType", bound=Message)
BUFFERS: Final = ("average", "keep", "recalibrate")
MomentsEvery = int | Mapping[str, int] | None
"""Rounds between two averages of the optimizer's moments, of all or by name; None: every round."""
OPTIMIZER_STATE: Final = ("keep", "average", "reset")


class AveragedState(ABC):
    """Tensors that are averaged with the parameters, gathered into one vector and written back from it.

    moments_every: rounds between two averages of a moment, by name; 1 for names that it leaves out.
    """

    def __init__(self, moments_every: MomentsEvery = None) -> None:
        self._moments_every = moments_every
        self.rounds = 0  # that have ended
        self.agreed_moments: list[tuple[int, str]] | None = None  # optimizer's number and name in its state

    @property
    def is_empty(self) -> bool:
        """Whether the next round averages nothing else than the parameters."""
        return not self._tensors()

    def agree_on_moments(self, exchange: Callable[[bytes], list[bytes]]) -> None:  # noqa: B027 - nothing by default
        """Exchange which moments the ranks hold, where they may differ."""

    def is_due(self, moment: str) -> bool:
        """Whether the next round averages the moment of this name."""
        every = self._moments_every
        interval = every.get(moment, 1) if isinstance(every, Mapping) else every or 1
        return (self.rounds + 1) % interval == 0

    def gather(self, like: Tensor) -> list[Tensor]:
        """Return the state that the next round averages as flat tensors with the dtype and device of ``like``."""
        return [t.detach().reshape(-1).to(like) for t in self._tensors()]

    def apply_mean(self, mean: Tensor, sent: Tensor | None) -> None:
        """Write ``mean`` back; with ``sent``, which was averaged while training continued, add the difference."""
        at = 0
        for tensor in self._tensors():
            part = slice(at, at + tensor.numel())
            at += tensor.numel()
            new = mean[part].view(tensor.shape).to(tensor)
            if sent is None:
                tensor.copy_(new)
            else:
                tensor.add_(new - sent[part].view(tensor.shape).to(tensor))

    def end_round(self) -> None:
        """Count a round, after its means are written."""
        self.rounds += 1

    @abstractmethod
    def _tensors(self) -> list[Tensor]:
        """Return the tensors that the next round averages, in an order that all ranks share."""


def check_moments(optimizer_state: str, moments_every: MomentsEvery) -> None:
    """Raise ``ValueError`` unless the policy for moments, and the rounds between their averages, are valid."""
    require(
        optimizer_state in OPTIMIZER_STATE,
        f"optimizer_state={optimizer_state!r} is unknown{nearest(str(optimizer_state), OPTIMIZER_STATE)}",
    )
    if moments_every is None:
        return
    what = f"moments_every={moments_every!r}"
    require(
        optimizer_state == "average", f'{what} needs optimizer_state="average"; add it, or leave out moments_every.'
    )
    rounds = list(moments_every.values()) if isinstance(moments_every, Mapping) else [moments_every]
    is_valid = all(type(one) is int and one >= 1 for one in rounds)
    example = 'write a number of rounds, at least 1, or one for each moment: {"exp_avg": 3, "exp_avg_sq": 6}'
    require(is_valid, f"{what} must be whole numbers of rounds; {example}.")


class ExtraState(AveragedState):
    """Buffers and moments of an attached model."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Optimizers,
        parameters: Sequence[nn.Parameter],
        buffers: str,
        optimizer_state: str,
        moments_every: MomentsEvery = None,
    ) -> None:
        super().__init__(moments_every)
        require(buffers in BUFFERS, f"buffers={buffers!r} is unknown{nearest(str(buffers), BUFFERS)}")
        check_moments(optimizer_state, moments_every)
        self._optimizers = [o for o in optimizers if not evaluates_several_times(o)]  # StepHooks resets the others
        held = [{id(p) for group in o.param_groups for p in group["params"]} for o in self._optimizers]
        # By optimizer, in the model's order.
        self._parameters = [[p for p in parameters if id(p) in own] for own in held]
        # Walking the tree in every round would take longer than copying a small model.
        self._modules = list(model.modules())
        self.buffers, self.optimizer_state = buffers, optimizer_state

    def float_buffers(self) -> list[Tensor]:
        """Return the buffers that can be averaged; counters and masks stay local."""
        held = (b for module in self._modules for b in module._buffers.values() if b is not None)
        return list({id(b): b for b in held if b.is_floating_point()}.values())

    def agree_on_moments(self, exchange: Callable[[bytes], list[bytes]]) -> None:
        """Exchange, once, which moments the ranks hold. A rank that skipped its first step has none and sends zeros."""
        if self.optimizer_state != "average" or self.agreed_moments is not None:
            return
        own = sorted(
            {
                (number, name)
                for number, parameters in enumerate(self._parameters)
                for p in parameters
                for name, value in self._optimizers[number].state.get(p, {}).items()
                if is_moment(value, p)
            }
        )
        names = {(number, name) for raw in exchange(json.dumps(own).encode()) for number, name in json.loads(raw)}
        self.agreed_moments = sorted(names) or None  # no rank has stepped yet: exchange again

    def end_round(self) -> None:
        """Count a round; reset the optimizers' state after it, where the user asked for that."""
        super().end_round()
        if self.optimizer_state == "reset":
            for optimizer in self._optimizers:
                optimizer.state.clear()

    def _tensors(self) -> list[Tensor]:
        tensors = self.float_buffers() if self.buffers == "average" else []
        held = self.agreed_moments or () if self.optimizer_state == "average" else ()
        for number, name in (moment for moment in held if self.is_due(moment[1])):
            for parameter in self._parameters[number]:
                moment = self._optimizers[number].state.get(parameter, {}).get(name)
                tensors.append(moment if isinstance(moment, Tensor) else torch.zeros_like(parameter))
        return tensors


class NetworkWithExtraState:
    """The network that strategies see: all-reduces over all ranks carry the extra state, all else passes through."""

    def __init__(self, network: Network, extra_state: AveragedState, exchange: Callable[[bytes], list[bytes]]) -> None:
        self._network, self._extra_state, self._exchange = network, extra_state, exchange
        self.rank, self.size = network.rank, network.size
        self.all_gather, self.all_to_all, self.broadcast = network.all_gather, network.all_to_all, network.broadcast
        self.send, self.receive = network.send, network.receive

    @property
    def rounds(self) -> int:
        """Rounds that have averaged extra state."""
        return self._extra_state.rounds

    @rounds.setter
    def rounds(self, value: int) -> None:
        self._extra_state.rounds = value

    @property
    def agreed_moments(self) -> list[tuple[int, str]] | None:
        """The moments that all ranks average; None as long as they have not agreed."""
        return self._extra_state.agreed_moments

    @agreed_moments.setter
    def agreed_moments(self, moments: list[tuple[int, str]] | None) -> None:
        self._extra_state.agreed_moments = moments

    @property
    def hosts(self) -> Sequence[int]:
        return self._network.hosts

    @property
    def members(self) -> Sequence[int]:
        return self._network.members

    def all_reduce_mean(
        self,
        parts: Parts,
        weight: float = 1.0,
        *,
        group: Sequence[int] | None = None,
        into: Tensor | None = None,
        extra_state: bool = True,
    ) -> Tensor:
        if group is not None or not extra_state:
            return self._network.all_reduce_mean(parts, weight, group=group, into=into)
        self._extra_state.agree_on_moments(self._exchange)
        if self._extra_state.is_empty:
            mean = self._network.all_reduce_mean(parts, weight, into=into)
        else:
            own, extra = self._with_extra_state(parts)
            received = self._network.all_reduce_mean([*own, *extra], weight, into=into)
            numbers = received.numel() - sum(part.numel() for part in extra)
            mean = received[:numbers]
            self._extra_state.apply_mean(received[numbers:], None)
        self._extra_state.end_round()
        return mean

    def start_all_reduce_mean(
        self, parts: Parts, weight: float = 1.0, *, group: Sequence[int] | None = None, extra_state: bool = True
    ) -> Pending:
        if group is not None or not extra_state:
            return PendingWithExtraState(self._network.start_all_reduce_mean(parts, weight, group=group), None)
        self._extra_state.agree_on_moments(self._exchange)
        if self._extra_state.is_empty:
            return PendingWithExtraState(self._network.start_all_reduce_mean(parts, weight), self._extra_state)
        own, extra = self._with_extra_state(parts)
        pending = self._network.start_all_reduce_mean([*own, *extra], weight)
        return PendingWithExtraState(pending, self._extra_state, torch.cat(extra))

    def finished(self, received: Tensor, extra: Tensor | None, ends_round: bool) -> PendingWithExtraState:
        """Return a round that ended while a checkpoint was written, as if it were still in progress."""
        return PendingWithExtraState(None, self._extra_state if ends_round else None, extra, received)

    def average_extra_state(self, like: Tensor, weight: float, mean: VectorMean | None = None) -> None:
        """Average the extra state by ``mean``, or in an all-reduce of its own, after a round without it."""
        self._extra_state.agree_on_moments(self._exchange)
        if not self._extra_state.is_empty:
            extra = self._extra_state.gather(like)
            mean = self._network.all_reduce_mean if mean is None else mean
            self._extra_state.apply_mean(mean(torch.cat(extra), weight), None)
        self._extra_state.end_round()

    def _with_extra_state(self, parts: Parts) -> tuple[list[Tensor], list[Tensor]]:
        own = tensors_of(parts)
        require(
            all(part.dim() == 1 for part in own),
            "buffers are averaged with flat all-reduces only; flatten the tensor, or attach with buffers='keep'.",
        )
        return own, self._extra_state.gather(own[0])


class PendingWithExtraState(PendingRound):
    """An all-reduce in progress, with the extra state that was sent. A checkpoint stores its result.

    extra_state: None if another call averages it.
    """

    def __init__(
        self,
        pending: Pending | None,
        extra_state: AveragedState | None,
        extra: Tensor | None = None,
        received: Tensor | None = None,
    ) -> None:
        self._pending, self._extra_state, self.extra, self._received = pending, extra_state, extra, received

    def copied(
        self, copied_pending: Callable[[Pending], Pending], network: NetworkWithExtraState
    ) -> PendingWithExtraState:
        """Return a copy for another worker, whose ``network`` it is."""
        pending = None if self._pending is None else copied_pending(self._pending)
        extra, received = (None if one is None else one.clone() for one in (self.extra, self._received))
        return PendingWithExtraState(pending, network._extra_state if self.ends_round else None, extra, received)

    @property
    def ends_round(self) -> bool:
        return self._extra_state is not None

    @property
    def is_ready(self) -> bool:
        return self._pending is None or self._pending.is_ready

    def result(self) -> Tensor:
        """Wait for the result, extra state included, without applying it."""
        if self._received is None:
            assert self._pending is not None
            self._received = self._pending.wait()
        return self._received

    def wait(self) -> Tensor:
        received = self.result()
        if self._extra_state is None:
            return received
        if self.extra is not None:
            numbers = received.numel() - self.extra.numel()
            self._extra_state.apply_mean(received[numbers:], self.extra)
            received = received[:numbers]
        self._extra_state.end_round()
        return received
