"""The server's ends of the channels to all its learners."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tacit.compression.feedback.state import FeedbackState
from tacit.core.worker import Server
from tacit.errors import BadMessage
from tacit.strategies.servers.messages import ServedModel, ServerPush, uncompressed
from tacit.strategies.servers.parts.channels import gradient_channel, known_model_state, model_channel

if TYPE_CHECKING:
    from tacit.strategies.servers.strategy import ParameterServerStrategy


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
        try:
            return replace(push, body=self._channel.decode(self._states[rank], push.body, push.rate))
        except (ValueError, IndexError, RuntimeError) as error:  # its sizes or indices fit no vector
            raise BadMessage(f"a compressed gradient cannot be decoded: {error}") from error


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
