"""The server's inbox: hands gradients to the server, and handles learners that ask, join, leave or are lost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from tacit.core.worker import Server
from tacit.errors import BadMessage, PeerLost
from tacit.strategies.servers.messages import (
    ModelRequest,
    Pushed,
    ServerLeave,
    ServerPush,
    ShardReport,
    ToServer,
    ToShards,
    uncompressed,
)
from tacit.strategies.servers.parts.learners import AWAY, Learners
from tacit.strategies.servers.parts.model_sender import ModelSender
from tacit.strategies.servers.parts.push_checks import check_gradient, check_push, check_sender
from tacit.strategies.servers.parts.server_channels import GradientChannels
from tacit.strategies.servers.parts.server_state import ServerState
from tacit.strategies.servers.parts.sharding import ShardGroup
from tacit.strategies.servers.rates import GradientRates

if TYPE_CHECKING:
    from tacit.strategies.servers.strategy import ParameterServerStrategy

_log: Final = logging.getLogger("tacit")


class OnRemoved(Protocol):
    """Called for each learner that has left or was lost."""

    def __call__(self, rank: int, *, is_lost: bool) -> None: ...


class ServerInbox:
    """Receives all messages of one server.

    on_removed: called for each learner that has left or was lost. It is an argument of each call, not an attribute, so
    that server and inbox form no reference cycle, which would keep the models alive.
    """

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        server: Server,
        state: ServerState,
        shards: ShardGroup,
        learners: Learners,
        models: ModelSender,
        rates: GradientRates,
    ) -> None:
        self._strategy, self._server, self._state = strategy, server, state
        self._shards, self._learners, self._models, self._rates = shards, learners, models, rates
        self.refused = 0  # messages that did not fit
        self._gradients = GradientChannels(strategy, server)

    def receive(self, on_removed: OnRemoved) -> Pushed | None:
        """Receive one message. Return it if it is a gradient to use, decoded."""
        try:
            source, message = self._server.network.receive(ToServer)
        except PeerLost as lost:
            self._lose(lost, on_removed)
            self._check_learners_left(lost)
            return None
        try:
            check_sender(source, message, self._server, self._strategy.shards)
            return self._take(source, message, on_removed)
        except BadMessage as error:
            self._refuse(source, error, on_removed)
            return None

    def _take(self, source: int, message: ToServer, on_removed: OnRemoved) -> Pushed | None:
        match message:
            case ServerPush() if self._learners.is_present[source]:  # the gradient of a lost learner is not used
                return source, self._decode(source, message)
            case ModelRequest():
                self._answer(source, message)
            case ServerLeave() if source < 0:
                self._shards.leader_has_ended = True
            case ServerLeave():
                self._remove(source, on_removed)
            case ToShards():
                self._shards.add(message, self._state.version)
            case ShardReport():
                self._shards.take_report(source, message)
        return None

    def dismiss_learners(self, on_removed: OnRemoved, *, answers_pushes: bool) -> None:
        """After the last update: answer learners until all have left."""
        while self._learners.count:
            try:
                source, message = self._server.network.receive(ToServer)
            except PeerLost as lost:
                self._lose(lost, on_removed)
                continue
            try:
                check_sender(source, message, self._server, self._strategy.shards)
            except BadMessage as error:
                self._refuse(source, error, on_removed)
                continue
            match message:
                case ServerPush() if answers_pushes:
                    self._models.send(source)
                case ModelRequest():
                    self._answer(source, message)
                case ServerLeave() if source >= 0:
                    self._remove(source, on_removed)
                case ToShards():
                    self._shards.add(message, self._state.version)

    def _decode(self, source: int, push: ServerPush) -> ServerPush:
        check_push(source, push, self._server, self._state.version if self._shards.is_leader else None)
        if not self._strategy.cancels and not self._rates.has_model(push.version):
            raise BadMessage(f"learner {source} pushed a gradient at version {push.version}, which no learner has.")
        decoded = self._gradients.decode(source, push)
        if decoded is not push:
            check_gradient(source, uncompressed(decoded.body), push.rate)
        self._learners.held[source] = AWAY
        return decoded

    def _refuse(self, source: int, error: BadMessage, on_removed: OnRemoved) -> None:
        """Drop a message that does not fit, and continue without its sender, whose state is unknown."""
        self.refused += 1
        if self.refused == 1:
            _log.warning("the server refused a message of worker %d: %s Further ones are only counted.", source, error)
        if 0 <= source < self._server.size and self._learners.is_present[source]:
            lost = PeerLost(
                source, self._server.now_s(), str(self._strategy), need="refused its message", reason=f"{error}"
            )
            self._lose(lost, on_removed)
            self._check_learners_left(lost)

    def _check_learners_left(self, lost: PeerLost) -> None:
        if not self._learners.count:
            raise PeerLost(
                lost.rank, lost.at_s, str(self._strategy), reason=lost.reason, need="has no learner left"
            ) from None

    def _answer(self, source: int, request: ModelRequest) -> None:
        if not request.is_joining:
            self._models.reply(source)
            return
        self._learners.add(source)
        self._gradients.reset(source)
        self._shards.forget_learner(source)
        self._models.reset(source)
        self._learners.record_k()
        self._models.send(source)

    def _lose(self, lost: PeerLost, on_removed: OnRemoved) -> None:
        """Continue without a lost learner. Without another shard of the model the server cannot continue."""
        if lost.rank < 0:
            raise lost
        was_present, k_before = self._learners.is_present[lost.rank], self._learners.k
        self._remove(lost.rank, on_removed, is_lost=True)
        if was_present:
            self._learners.report_lost(lost.rank, k_before)

    def _remove(self, rank: int, on_removed: OnRemoved, *, is_lost: bool = False) -> None:
        self._learners.remove(rank)
        on_removed(rank, is_lost=is_lost)
