"""Compressed gradients up and compressed models down, between one learner and one server.

Each link is a conversation of its own, with the memory of a feedback on both ends: the learner says C(…) of its
gradient and the server keeps what it has understood, learner by learner (EF21: g_i on both ends). On the way down the
server says how its model differs from what this learner knows of it, h ← h + C(w − h), which is EF21 with the model in
the gradient's place. Memory on the server: one vector per learner and direction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacit.compression.compressor import Compressor
from tacit.compression.feedback import EF21, EF21Bidirectional
from tacit.compression.feedback.feedback import Coder, Feedback, FeedbackState, Update
from tacit.core.worker import Server, Worker
from tacit.errors import BadMessage, require
from tacit.strategies.servers.messages import ServedModel, ServerPush, in_full

if TYPE_CHECKING:
    from tacit.strategies.servers.learner import KofP


def check_links(compressor: Compressor | None, feedback: Feedback | None, down: Compressor | None) -> None:
    """Raise unless compressors and feedback are what they should be."""
    for name, one in (("compressor", compressor), ("down", down)):
        require(
            one is None or isinstance(one, Compressor),
            f"{name}={one!r} must be a compressor such as TopK(fraction=0.01).",
        )
    require(
        feedback is None or compressor is not None,
        f"feedback={feedback} has nothing to do without a compressor=….",
    )
    require(
        not isinstance(feedback, EF21Bidirectional),
        "EF21Bidirectional compresses a broadcast that a server does not make; use down=… for the models.",
    )
    if compressor is not None:
        (feedback or EF21()).check(compressor)
    if down is not None:
        EF21().check(down)


class Channel:
    """One end of a conversation about vectors like ``like``."""

    def __init__(self, compressor: Compressor, feedback: Feedback, owner: Worker | Server, like: Tensor) -> None:
        self._feedback = feedback
        self._coder = Coder(
            compressor,
            owner.random,
            owner.random,
            like.numel(),
            like.dtype,
            like.device,
            (),
            feedback.scale(compressor, like.numel()),
        )

    def begin(self, like: Tensor) -> FeedbackState:
        """Return the memory before anything was said."""
        return self._feedback.begin(0, 1, like)

    def closed(self, state: FeedbackState, vector: Tensor, weight: float, rate: float) -> Update:
        """Return ``vector`` compressed, and update the memory."""
        said = self._feedback.encode(state, vector, weight, rate, self._coder)
        self._feedback.decode(state, [said], rate, self._coder)
        return said

    def opened(self, state: FeedbackState, body: Tensor | Update, rate: float) -> Tensor:
        """Return the vector as far as it is understood."""
        if not isinstance(body, Update):
            raise BadMessage(f"a {type(body).__name__} came where a compressed vector was expected.")
        return self._feedback.decode(state, [body], rate, self._coder).to(self._coder.dtype)


def up(kind: KofP, owner: Worker | Server, like: Tensor) -> Channel:
    """Return one end of a gradient's way."""
    assert kind.compressor is not None
    return Channel(kind.compressor, kind.feedback or EF21(), owner, like)


def down(kind: KofP, owner: Worker | Server, like: Tensor) -> Channel:
    """Return one end of a model's way."""
    assert kind.down is not None
    return Channel(kind.down, EF21(), owner, like)


def knowing(link: Channel, model: Tensor) -> FeedbackState:
    """Return a memory in which ``model`` is known already: all start from one model."""
    state = link.begin(model)
    state.own["estimate"].copy_(model)
    state.shared["sum"].copy_(model)
    state.weights[0] = 1.0
    return state


class GradientChannels:
    """The server's ends of its learners' ways up."""

    def __init__(self, kind: KofP, server: Server) -> None:
        self._server, self._states = server, dict[int, FeedbackState]()
        self._link = None if kind.compressor is None else up(kind, server, server.parameters)

    def begin(self, rank: int) -> None:
        """Forget what ``rank`` said in an earlier life."""
        self._states.pop(rank, None)

    def opened(self, rank: int, push: ServerPush) -> ServerPush:
        """Return ``push`` with its gradient in full."""
        parameters = self._server.parameters
        if self._link is None:
            gradient = in_full(push.body)
            if gradient.shape != parameters.shape:
                raise BadMessage(f"a gradient of {gradient.numel()} numbers came for {parameters.numel()} parameters.")
            return push
        if rank not in self._states:
            self._states[rank] = self._link.begin(parameters)
        return replace(push, body=self._link.opened(self._states[rank], push.body, push.rate))


class ModelChannels:
    """The server's ends of its learners' ways down."""

    def __init__(self, kind: KofP, server: Server) -> None:
        self._link = None if kind.down is None else down(kind, server, server.parameters)
        self._start = (
            server.parameters.clone() if self._link else torch.empty(0)
        )  # what learners know before the first word
        self._states: dict[int, FeedbackState] = {}
        self._has_met: set[int] = set()

    def begin(self, rank: int) -> None:
        """``rank`` knows nothing: its next model is sent in full."""
        self._states.pop(rank, None)
        self._has_met.add(rank)

    def closed(self, rank: int, model: ServedModel) -> ServedModel:
        """Return ``model`` as it travels to ``rank``: in full to one who has just come."""
        if self._link is None:
            return model
        if rank not in self._states and rank in self._has_met:
            self._states[rank] = knowing(self._link, in_full(model.body))
            return model
        if rank not in self._states:
            self._states[rank] = knowing(self._link, self._start)
        said = self._link.closed(self._states[rank], in_full(model.body), 1.0, 1.0)
        return ServedModel(model.version, said).owned()
