"""The learner's side of the four kinds: push a gradient, receive a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.updates import Update
from tacit.core.network import server_address
from tacit.core.worker import Worker
from tacit.strategies.servers.messages import (
    ModelReply,
    ModelRequest,
    ServedModel,
    ServerLeave,
    ServerPush,
    ServerRestart,
    uncompressed,
)
from tacit.strategies.servers.parts.channels import gradient_channel, known_model_state, model_channel
from tacit.strategies.servers.parts.model_checks import check_model, check_numbers, check_restart, check_vector

if TYPE_CHECKING:
    from tacit.strategies.servers.strategy import ParameterServerStrategy

_NUMBERS_PER_S: Final = 10**9
"""More than the pushes that a learner can make in a second."""


@dataclass
class LearnerState:
    """The state of a learner."""

    versions: list[int]  # of its model, by shard; in the sync kinds none may be older than the first
    pushes: int = 0
    local_steps: int = 0  # since ``base``, their model; with their weight (``local_steps.py``)
    local_weight: float = 0.0
    base: Tensor | None = None
    restarts: list[ServerRestart] = field(default_factory=list)  # received by the handler and not yet applied
    gradient_states: list[FeedbackState] = field(default_factory=list)  # by shard, if gradients are compressed
    model_states: list[FeedbackState] = field(default_factory=list)  # by shard, if models are compressed


class Learner:
    """A strategy, a worker and its state: the operations that the strategy's hooks consist of."""

    def __init__(self, strategy: ParameterServerStrategy, worker: Worker, state: LearnerState) -> None:
        self._strategy, self._worker, self._state = strategy, worker, state

    @staticmethod
    def init(strategy: ParameterServerStrategy, worker: Worker) -> LearnerState:
        """Return the state before the first step."""
        state = LearnerState([0] * strategy.shards)
        parts = [worker.parameters[begin:end] for begin, end in worker.layout.cut(strategy.shards)]
        if strategy.compressor is not None:
            state.gradient_states = [gradient_channel(strategy, worker, part).new_state(part) for part in parts]
        if strategy.model_compressor is not None:
            state.model_states = [known_model_state(model_channel(strategy, worker, part), part) for part in parts]
        return state

    @property
    def is_done(self) -> bool:
        """Whether the learner's model has the last update."""
        return (steps := self._worker.steps) is not None and min(self._state.versions) >= steps

    def push(self, loss: float = nan, change: Tensor | None = None) -> None:
        """Send each shard its part of the gradient or ``change``, and receive the answers if the kind has them."""
        strategy, worker, state, rate = self._strategy, self._worker, self._state, self._worker.learning_rate
        gradient, weight = (worker.gradient, worker.weight) if change is None else (change, state.local_weight)
        worker.spend("flatten", gradient.numel())
        for shard, (begin, end) in enumerate(worker.layout.cut(strategy.shards)):
            body: Tensor | Update = (part := gradient[begin:end])
            if strategy.compressor is not None:
                body = gradient_channel(strategy, worker, part).encode(state.gradient_states[shard], part, weight, rate)
            push = ServerPush(state.pushes, state.versions[shard], rate, weight, loss, body)
            worker.network.send(server_address(shard), push)
        state.pushes += 1
        if strategy.answers_pushes:
            self._receive([0] if strategy.cancels else range(strategy.shards))

    def restart(self, source: int, message: ServerRestart) -> None:
        """Abandon the step in progress. ``apply_restarts`` applies the new model after it."""
        state, (begin, end) = self._state, self._worker.layout.cut(self._strategy.shards)[0]
        earliest = state.restarts[-1].version if state.restarts else state.versions[0]
        check_restart(source, message, self._worker, end - begin, earliest)
        state.restarts.append(message)
        if message.version > state.versions[0]:
            self._worker.abandon_step()

    def apply_restarts(self) -> None:
        """Apply the models that cancelled steps."""
        while self._state.restarts:  # more may arrive while this waits for the other shards
            self._apply_restarts_up_to(self._state.restarts[-1].version)
            self._receive(())

    def join(self) -> None:
        """Receive the current model before the first step; the first shard's last, which is never behind the others."""
        others = range(1, self._strategy.shards)
        for shard in others:
            self._worker.network.send(server_address(shard), ModelRequest(is_joining=True))
        for shard in others:
            self._receive_part(shard)
        self._worker.network.send(server_address(0), ModelRequest(is_joining=True))
        self._receive([0])
        # Shards may still have pushes of an earlier life, or report them: no number may occur twice.
        self._state.pushes = int(self._worker.now_s() * _NUMBERS_PER_S)

    def leave(self) -> None:
        """Tell the server that no push follows."""
        for shard in range(self._strategy.shards):
            self._worker.network.send(server_address(shard), ServerLeave())

    def server_model(self) -> Tensor:
        """Return the server's current model."""
        network, shards = self._worker.network, range(self._strategy.shards)
        for shard in shards:
            network.send(server_address(shard), ModelRequest())
        parts = [network.receive(ModelReply, source=server_address(shard))[1].body for shard in shards]
        for part, (begin, end) in zip(parts, self._worker.layout.cut(self._strategy.shards), strict=True):
            check_vector(part, end - begin)
            check_numbers(part, self._worker, self._worker.parameters.dtype)
        return torch.cat(parts)

    def _receive(self, shards: Iterable[int]) -> None:
        """Receive the next model of ``shards``; in the sync kinds also other shards', up to the first's version."""
        versions = self._state.versions
        for shard in shards:
            self._receive_part(shard)
        for shard in range(1, self._strategy.shards):
            while self._strategy.cancels and versions[shard] < versions[0]:
                self._receive_part(shard)
        self._worker.set_model_version(min(versions))

    def _receive_part(self, shard: int) -> None:
        _, model = self._worker.network.receive(ServedModel, source=server_address(shard))
        if shard == 0:
            self._apply_restarts_up_to(model.version)
        self._apply(shard, model)

    def _apply_restarts_up_to(self, version: int) -> None:
        """Apply restarts in the order sent, without omission: compressed models are differences."""
        while self._state.restarts and self._state.restarts[0].version <= version:
            self._apply(0, self._state.restarts.pop(0))

    def _apply(self, shard: int, model: ServedModel | ServerRestart) -> None:
        """Write a part of the model into the parameters; an empty one leaves them unchanged."""
        whole, (begin, end) = self._worker.parameters, self._worker.layout.cut(self._strategy.shards)[shard]
        check_model(model, self._worker, end - begin)
        is_empty = isinstance(model.body, Tensor) and not model.body.numel()
        if not is_empty:
            decoded = self._decode(shard, model.body)
            is_final = decoded is model.body and model.is_owned
            check_numbers(decoded, self._worker, whole.dtype, is_final=is_final)
            (whole if self._strategy.shards == 1 else whole[begin:end]).copy_(decoded)
            self._worker.spend("flatten", end - begin)
        self._state.versions[shard], self._state.local_steps = model.version, 0

    def _decode(self, shard: int, body: Tensor | Update) -> Tensor:
        if self._strategy.model_compressor is None:
            return uncompressed(body)
        if isinstance(body, Tensor):  # the first model of a learner that joined
            self._state.model_states[shard] = known_model_state(model_channel(self._strategy, self._worker, body), body)
            return body
        known = self._state.model_states[shard]
        return model_channel(self._strategy, self._worker, known.shared["sum"]).decode(known, body, 1.0)
