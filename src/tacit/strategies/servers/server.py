"""The parameter server of the four kinds: wait for K gradients, average them, update the model, answer the learners.

    w_{j+1} = w_j − (η/K) Σ_{l=1..K} g(w_τ(l,j), ξ_{l,j})
``cancels``: an update cancels steps in progress. ``waits_for_update``: a learner idles from its push to the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from tacit.core.worker import Server
from tacit.strategies.servers.messages import Pushed, ServerPush, uncompressed
from tacit.strategies.servers.parts.averages import mean_gradient
from tacit.strategies.servers.parts.inbox import ServerInbox
from tacit.strategies.servers.parts.learner_speeds import SpeedBiasCheck
from tacit.strategies.servers.parts.learners import Learners
from tacit.strategies.servers.parts.model_sender import ModelSender
from tacit.strategies.servers.parts.pending_pushes import PendingPushes
from tacit.strategies.servers.parts.server_state import ServerState
from tacit.strategies.servers.parts.sharding import ShardGroup
from tacit.strategies.servers.parts.staleness import StalenessBound
from tacit.strategies.servers.rates import GradientRates

if TYPE_CHECKING:
    from tacit.strategies.servers.strategy import ParameterServerStrategy


class KPolicy(Protocol):
    """A rule that chooses K after each update (AdaSync)."""

    def next_k(self, server: Server, state: ServerState, batch: Sequence[Pushed]) -> int: ...


class ParameterServer:
    """One server, or one shard of it, from its first message to its last."""

    def __init__(
        self, strategy: ParameterServerStrategy, server: Server, state: ServerState, k_policy: KPolicy | None = None
    ) -> None:
        self._strategy, self._server, self._state, self._k_policy = strategy, server, state, k_policy
        most_k = strategy.k if k_policy is None else max(strategy.k, server.size)
        self._shards = ShardGroup(strategy.shards, server, most_k if strategy.cancels else None)
        self._bound = StalenessBound(strategy.staleness_bound)
        self._rates, self._speed_bias = GradientRates(strategy.rate, server, state), SpeedBiasCheck(strategy, server)
        self._learners = Learners(strategy, server, state)
        self._models = ModelSender(strategy, server, state, self._learners, self._rates)
        self._inbox = ServerInbox(strategy, server, state, self._shards, self._learners, self._models, self._rates)
        self._pending = PendingPushes(self._shards)  # gradients for the next updates, in order of arrival
        self._waiting: dict[int, int] = {}  # learners to answer, in order of arrival, and the numbers of their pushes
        self._answers_pushes = strategy.answers_pushes and (self._shards.is_leader or not strategy.cancels)

    def serve(self) -> None:
        """Receive and update until the last update, or until all learners have left."""
        self._learners.record_k()
        while not self._is_complete and (self._learners.count or self._shards.may_update or self._pending.incomplete):
            if (received := self._inbox.receive(self._remove)) is not None:
                self._add_gradient(*received)
            while not self._is_complete and (batch := self._next_batch()):
                self._update(batch)
            self._answer_before_update()
        if self._shards.is_leader:
            if self._pending and not self._is_complete:  # all learners have left: use their last gradients
                self._update([*self._pending])
            self._shards.announce_end()
        for rank in self._waiting:  # no update follows
            self._models.send(rank)

    def dismiss(self) -> None:
        """Answer learners after the last update until all have left."""
        self._inbox.dismiss_learners(self._remove, answers_pushes=self._answers_pushes)

    @property
    def _is_complete(self) -> bool:
        return (steps := self._server.steps) is not None and self._state.version >= steps

    def _add_gradient(self, source: int, push: ServerPush) -> None:
        """Add a gradient to the pending ones, unless its step was cancelled or skipped, or no update can use it."""
        if is_late := self._strategy.drops(self._state.version - push.version):
            self._learners.record_late(source)
        if not (push.is_skipped or is_late or self._shards.has_enough(source)):
            self._pending.add(source, push)
            if self._answers_pushes:
                self._waiting[source] = push.number
            return
        self._shards.forget(source, push.number)
        if self._answers_pushes:
            self._models.send(source)
        elif self._learners.has_lost_model(source):
            self._models.send(source, cancels_step=True)

    def _next_batch(self) -> list[Pushed]:
        """Return the gradients of the next update; nothing until there are enough."""
        if not self._shards.is_leader:
            return self._shards.next_batch(self._pending)
        pending = self._pending
        held = (
            [*self._learners.held, *pending.incomplete_versions] if self._strategy.shards > 1 else self._learners.held
        )
        return self._bound.select(pending.complete, self._learners.k, self._state.version, held)

    def _update(self, batch: list[Pushed]) -> None:
        server, state = self._server, self._state
        if self._shards.is_leader:
            self._shards.announce(batch)
            for source, push in batch:
                server.note("staleness", state.version - push.version, about=source)
            self._speed_bias.add(batch, self._learners)
        self._rates.record_uses(batch)
        self._apply(sorted(batch, key=lambda one: one[0]))
        state.version += 1
        self._models.drop_model()
        self._pending.remove([*self._pending] if self._strategy.cancels else self._pending.used_up(batch))
        if self._k_policy is not None and self._shards.is_leader:
            state.k = min(server.size, max(1, self._k_policy.next_k(server, state, batch)))
            self._learners.record_k()
        self._answer_after_update()
        self._rates.drop_models(self._learners.held, self._pending)
        self._shards.write_checkpoints(state.version)

    def _apply(self, batch: list[Pushed]) -> None:
        self._server.update(*self._average(batch))

    def _average(self, batch: list[Pushed]) -> tuple[Tensor, float]:
        """Return the mean gradient of ``batch``, which is in rank order, and its rate."""
        weights = [push.weight for _, push in batch]
        rates = [self._rates.rate(source, push, self._learners) for source, push in batch]
        return mean_gradient([uncompressed(push.body) for _, push in batch], weights, rates)

    def _answer_before_update(self) -> None:
        """K-batch-async: send the current model to learners that pushed, unless the staleness bound holds them."""
        is_held = self._shards.is_leader and self._bound.holds_learners(self._pending.complete, self._state.k)
        if self._answers_pushes and not self._strategy.waits_for_update and not is_held:
            for rank in self._waiting:
                self._models.send(rank)
            self._waiting.clear()

    def _answer_after_update(self) -> None:
        """Sync kinds: send the new model to all learners. K-async: to those whose gradients were used."""
        if self._strategy.cancels:
            for rank in self._learners:
                self._models.send(rank, cancels_step=self._shards.is_leader and rank not in self._waiting)
            self._waiting.clear()
        elif self._strategy.waits_for_update:
            pending = {(source, push.number) for source, push in self._pending}
            for rank in [rank for rank, number in self._waiting.items() if (rank, number) not in pending]:
                del self._waiting[rank]
                self._models.send(rank)

    def _remove(self, rank: int, *, is_lost: bool) -> None:
        """Remove a learner that has left, or was lost: what it has not sent to all shards never arrives there."""
        self._waiting.pop(rank, None)
        if is_lost:
            self._pending.remove([one for one in self._pending.incomplete if one[0] == rank])
        self._rates.drop_models(self._learners.held, self._pending)
