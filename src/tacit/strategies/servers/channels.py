"""Compressed gradients to the server and compressed models to the learners.

A channel connects one learner with one server in one direction. Both ends keep the state of a feedback. Gradients: the
learner encodes with the strategy's feedback, and the server decodes with one state per learner (EF21: g_i on both
ends). Models: the server sends the compressed difference to what the learner knows, h ← h + C(w − h), which is EF21
with the model in place of the gradient. The server stores one vector per learner and direction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacit.compression.compressor import Compressor
from tacit.compression.feedback import EF21, EF21Bidirectional
from tacit.compression.feedback.codec import Codec
from tacit.compression.feedback.feedback import Feedback
from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.updates import Update
from tacit.core.worker import Server, Worker
from tacit.errors import BadMessage, require
from tacit.strategies.servers.messages import ServedModel, ServerPush, uncompressed

if TYPE_CHECKING:
    from tacit.strategies.servers.strategy import ParameterServerStrategy


def check_compression(
    compressor: Compressor | None, feedback: Feedback | None, model_compressor: Compressor | None
) -> None:
    """Raise ``ValueError`` unless the three arguments of a server strategy fit together."""
    for name, one in (("compressor", compressor), ("model_compressor", model_compressor)):
        require(
            one is None or isinstance(one, Compressor),
            f"{name}={one!r} must be a compressor such as TopK(fraction=0.01).",
        )
    require(
        feedback is None or compressor is not None,
        f"feedback={feedback} needs a compressor; add compressor=… or remove feedback.",
    )
    require(
        not isinstance(feedback, EF21Bidirectional),
        f"feedback={feedback} compresses a broadcast, which a server does not make; use model_compressor=… for models.",
    )
    if compressor is not None:
        (feedback or EF21()).check(compressor)
    if model_compressor is not None:
        EF21().check(model_compressor)


class Channel:
    """One end of a channel for vectors of the shape of ``like``."""

    def __init__(self, compressor: Compressor, feedback: Feedback, owner: Worker | Server, like: Tensor) -> None:
        self._feedback = feedback
        self._codec = Codec(
            compressor,
            owner.random,
            owner.random,
            like.numel(),
            like.dtype,
            like.device,
            (),
            feedback.scale(compressor, like.numel()),
        )

    def new_state(self, like: Tensor) -> FeedbackState:
        """Return the state before the first message."""
        return self._feedback.begin(0, 1, like)

    def encode(self, state: FeedbackState, vector: Tensor, weight: float, rate: float) -> Update:
        """Return ``vector`` compressed, and update the state."""
        codec = replace(self._codec, weight=weight, rate=rate)
        update = self._feedback.encode_update(state, vector, codec)
        self._feedback.decode_updates(state, [update], codec)
        return update

    def decode(self, state: FeedbackState, body: Tensor | Update, rate: float) -> Tensor:
        """Return the receiver's estimate of the vector, and update the state."""
        if not isinstance(body, Update):
            raise BadMessage(f"a {type(body).__name__} arrived where a compressed vector was expected.")
        codec = replace(self._codec, rate=rate)
        return self._feedback.decode_updates(state, [body], codec).to(codec.dtype)


def gradient_channel(strategy: ParameterServerStrategy, owner: Worker | Server, like: Tensor) -> Channel:
    """Return one end of a channel for gradients."""
    assert strategy.compressor is not None
    return Channel(strategy.compressor, strategy.feedback or EF21(), owner, like)


def model_channel(strategy: ParameterServerStrategy, owner: Worker | Server, like: Tensor) -> Channel:
    """Return one end of a channel for models."""
    assert strategy.model_compressor is not None
    return Channel(strategy.model_compressor, EF21(), owner, like)


def known_model_state(channel: Channel, model: Tensor) -> FeedbackState:
    """Return the state of a channel whose two ends both know ``model``."""
    state = channel.new_state(model)
    state.own["estimate"].copy_(model)
    state.shared["sum"].copy_(model)
    state.weights[0] = 1.0
    return state


class GradientChannels:
    """The server's ends of all learners' gradient channels."""

    def __init__(self, strategy: ParameterServerStrategy, server: Server) -> None:
        self._server, self._states = server, dict[int, FeedbackState]()
        is_compressed = strategy.compressor is not None
        self._channel = gradient_channel(strategy, server, server.parameters) if is_compressed else None

    def reset(self, rank: int) -> None:
        """Start a new channel to ``rank``, which has joined."""
        self._states.pop(rank, None)

    def decode(self, rank: int, push: ServerPush) -> ServerPush:
        """Return ``push`` with its gradient uncompressed."""
        parameters = self._server.parameters
        if self._channel is None:
            found = uncompressed(push.body)
            if found.shape != parameters.shape:
                raise BadMessage(f"a gradient of {found.numel()} numbers arrived for {parameters.numel()} parameters.")
            return push
        if rank not in self._states:
            self._states[rank] = self._channel.new_state(parameters)
        return replace(push, body=self._channel.decode(self._states[rank], push.body, push.rate))


class ModelChannels:
    """The server's ends of all learners' model channels."""

    def __init__(self, strategy: ParameterServerStrategy, server: Server) -> None:
        is_compressed = strategy.model_compressor is not None
        self._channel = model_channel(strategy, server, server.parameters) if is_compressed else None
        self._start = server.parameters.clone() if is_compressed else torch.empty(0)  # all learners know it
        self._states: dict[int, FeedbackState] = {}
        self._has_joined: set[int] = set()

    def reset(self, rank: int) -> None:
        """Start a new channel to ``rank``, which has joined: its next model is sent uncompressed."""
        self._states.pop(rank, None)
        self._has_joined.add(rank)

    def encode(self, rank: int, model: ServedModel) -> ServedModel:
        """Return ``model`` in the form to send to ``rank``."""
        if self._channel is None:
            return model
        if rank not in self._states and rank in self._has_joined:
            self._states[rank] = known_model_state(self._channel, uncompressed(model.body))
            return model
        if rank not in self._states:
            self._states[rank] = known_model_state(self._channel, self._start)
        update = self._channel.encode(self._states[rank], uncompressed(model.body), 1.0, 1.0)
        return ServedModel(model.version, update).owned()
