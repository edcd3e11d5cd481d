"""The server's answers: its model, sent to learners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacit.core.worker import Server
from tacit.strategies.servers.messages import ModelReply, ServedModel, ServerRestart, uncompressed
from tacit.strategies.servers.parts.learners import Learners
from tacit.strategies.servers.parts.server_channels import ModelChannels
from tacit.strategies.servers.parts.server_state import ServerState
from tacit.strategies.servers.rates import GradientRates

if TYPE_CHECKING:
    from tacit.strategies.servers.strategy import ParameterServerStrategy


class ModelSender:
    """Sends the current model to learners, and records the version that each of them holds."""

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        server: Server,
        state: ServerState,
        learners: Learners,
        rates: GradientRates,
    ) -> None:
        self._server, self._state, self._learners, self._rates = server, state, learners, rates
        self._channels = ModelChannels(strategy, server)
        self._model: ServedModel | None = None  # of the current version, copied when it is first needed
        self._restart: ServerRestart | None = None  # the last one sent; shared by learners that get the same model

    def send(self, rank: int, *, cancels_step: bool = False) -> None:
        """Let ``rank`` compute at the current model; ``cancels_step``: in place of the step in progress."""
        current = self._current()
        model = self._channels.encode(rank, current)
        self._learners.set_version(rank, model.version)
        if self._rates.keeps_models:
            self._rates.keep_model(model.version, uncompressed(current.body))
        if not cancels_step:
            self._server.network.send(rank, model)
            return
        if self._restart is None or self._restart.body is not model.body:
            self._restart = ServerRestart(model.version, model.body).owned()
        self._server.network.send(rank, self._restart)

    def reply(self, rank: int) -> None:
        """Send the current model for evaluation."""
        self._server.network.send(rank, ModelReply(uncompressed(self._current().body)).owned())

    def reset(self, rank: int) -> None:
        """Send ``rank`` its next model uncompressed: it has just joined."""
        self._channels.reset(rank)

    def drop_model(self) -> None:
        """Drop the copy of the model: an update has changed the model."""
        self._model = None

    def _current(self) -> ServedModel:
        if self._model is None:
            self._model = ServedModel(self._state.version, self._server.parameters.clone()).owned()
        return self._model
