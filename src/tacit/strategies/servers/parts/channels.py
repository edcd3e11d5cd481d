"""Compressed gradients to the server and compressed models to the learners.

A channel connects one learner with one server in one direction. Both ends keep the state of a feedback. Gradients: the
learner encodes with the strategy's feedback, and the server decodes with one state per learner (EF21: g_i on both
ends). Models: the server sends the compressed difference to what the learner knows, h ← h + C(w − h), which is EF21
with the model in place of the gradient. The server stores one vector per learner and direction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from tacit.compression.compressor import Compressor
from tacit.compression.feedback import EF21, EF21Bidirectional
from tacit.compression.feedback.codec import Codec
from tacit.compression.feedback.feedback import Feedback
from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.updates import Update
from tacit.core.worker import Server, Worker, is_timing_only
from tacit.errors import BadMessage, require

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
        self._like = like if is_timing_only(owner) else None  # what is decoded where contents have no effect
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
        codec = self._codec._replace(weight=weight, rate=rate)
        if self._like is not None:
            return self._feedback.nominal_update(state, codec)
        update = self._feedback.encode_update(state, vector, codec)
        self._feedback.decode_updates(state, [update], codec)
        return update

    def decode(self, state: FeedbackState, body: Tensor | Update, rate: float) -> Tensor:
        """Return the receiver's estimate of the vector, and update the state."""
        if not isinstance(body, Update):
            raise BadMessage(f"a {type(body).__name__} arrived where a compressed vector was expected.")
        if self._like is not None:
            return self._like
        codec = self._codec._replace(rate=rate)
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
