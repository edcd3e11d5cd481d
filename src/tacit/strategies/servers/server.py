"""The server's side: takes what learners push, and updates when enough of it is there.

One counter serves all four kinds; what distinguishes them are two questions (``kinds.py``): is other work cancelled at
an update (``cancels``), and does a learner wait for the update after its push (``waits``).

With ``shards`` > 1 there is one counter per shard. The first one decides which pushes make up an update and tells the
others (``ServerDecree``), so that all parts of the model are made of the same gradients. In the sync kinds the others
give every new version to everybody, and a learner waits for the one that goes with the first shard's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import torch
from torch import Tensor

from tacit.core.network import server_address
from tacit.core.weights import has_data
from tacit.core.worker import Server
from tacit.errors import BadMessage, PeerLost
from tacit.strategies.servers.channels import GradientChannels, ModelChannels
from tacit.strategies.servers.learner_speeds import UseCounts, UseTimes
from tacit.strategies.servers.messages import (
    ServedModel,
    ServerAsk,
    ServerDecree,
    ServerLeave,
    ServerPush,
    ServerRestart,
    ShownModel,
    ToServer,
    in_full,
)

if TYPE_CHECKING:
    from tacit.strategies.servers.learner import KofP

_AWAY: Final = -1
_LOST: Final = 100
"""Late pushes in a row that tell a lost model from one on its way: nobody has so many under way."""

_log = logging.getLogger(__name__)

Pushed = tuple[int, ServerPush]
"""A learner's rank, and what it pushed."""


@dataclass
class ServerState:
    """What a server must remember from one life to the next; pushes under way are not part of it: learners compute them
    again.
    """

    k: int  # K, how many gradients make an update
    version: int = 0  # updates so far
    has_left: list[bool] = field(default_factory=list)  # by learner: or was lost
    memory: dict[str, float] = field(default_factory=dict)  # of whoever adapts k


class Adapting(Protocol):
    """Chooses k anew after every update."""

    def next_k(self, server: Server, state: ServerState, batch: Sequence[Pushed]) -> int: ...


class ParameterServer:
    """One life of one server."""

    def __init__(self, kind: KofP, server: Server, state: ServerState, adapting: Adapting | None = None) -> None:
        self._kind, self._server, self._state, self._adapting = kind, server, state, adapting
        self._is_leader = server.shard == 0
        self._answers = kind.answers and (self._is_leader or not kind.cancels)
        self._pending: list[Pushed] = []  # in order of arrival
        self._waiting: dict[int, None] = {}  # learners to be answered, in order of arrival
        self._held = [state.version] * server.size  # by learner: the version it computes at, or ``_AWAY``
        self._is_here = [not left for left in state.has_left]
        self._here = sum(self._is_here)
        self._noted_k: int | None = None  # K as the trace has it
        self._has_warned = False  # that fewer than K learners are left
        self._late = [0] * server.size  # by learner: late pushes since it was given a model
        self._decrees: list[ServerDecree] = []
        self._leader_is_over = self._is_leader
        self._model: ServedModel | None = None  # of this version, made when first asked for
        self._restarting: ServerRestart | None = None  # the last one sent, for the next learner if it gets the same
        self._models: dict[int, Tensor] = {}  # that learners hold, by version, where distances are asked for
        is_timed = kind.rate is not None and kind.rate.needs_times
        self._times = UseTimes(state.memory) if is_timed else None
        may_be_biased = not server.knows_split and kind.follows_speed(server.size)
        self._counts = UseCounts(kind, server.size) if may_be_biased else None
        self._up, self._down = GradientChannels(kind, server), ModelChannels(kind, server)
        if self._needs_models:
            self._models[state.version] = server.parameters.clone()

    @property
    def _needs_models(self) -> bool:
        return self._kind.rate is not None and self._kind.rate.needs_distance

    @property
    def _is_complete(self) -> bool:
        return self._server.steps is not None and self._state.version >= self._server.steps

    def serve(self) -> None:
        """Update until all updates are made, or everybody has left."""
        self._note_k()
        while not self._is_complete and (self._here or not self._leader_is_over or self._decrees):
            self._listen()
            while not self._is_complete and (batch := self._due()):
                self._update(batch)
            self._answer_at_once()
        if self._is_leader:
            if self._pending and not self._is_complete:  # everybody has left: what they pushed last still counts
                self._update(self._pending[:])
            self._tell_shards(ServerLeave())
        for rank in self._waiting:  # for an update that will not come
            self._give(rank)

    def dismiss(self) -> None:
        """The last update is made: tell so to whoever still comes, until everybody has left."""
        while self._here:
            try:
                source, message = self._server.network.receive(ToServer)
            except PeerLost as lost:
                self._lose(lost)
                continue
            match message:
                case ServerPush() if self._answers:
                    self._give(source)
                case ServerAsk():
                    self._tell(source, message)
                case ServerLeave() if source >= 0:
                    self._forget(source)

    # What comes.

    def _listen(self) -> None:
        try:
            source, message = self._server.network.receive(ToServer)
        except PeerLost as lost:
            self._lose(lost)
            if not self._here:
                raise PeerLost(lost.rank, lost.at_s, str(self._kind), need="has no learner left") from None
            return
        match message:
            case ServerPush():
                self._take(source, message)
            case ServerAsk():
                self._tell(source, message)
            case ServerLeave() if source < 0:
                self._leader_is_over = True
            case ServerLeave():
                self._forget(source)
            case ServerDecree():
                self._decrees.append(message)

    def _take(self, source: int, push: ServerPush) -> None:
        """Put a push with the others, or drop it: cancelled work never reaches the model, nor does a push that comes
        after its learner was lost.
        """
        opened = self._opened(source, push)
        if opened is None:
            return
        push, is_late = opened, self._kind.cancels and push.version < self._state.version
        if is_late and self._is_leader:
            self._server.note("late", 1.0, about=source)
            self._late[source] += 1
        if has_data(push.weight) and not is_late:
            self._pending.append((source, push))
            if self._answers:
                self._waiting[source] = None
        elif self._answers:
            self._give(source)
        elif self._late[source] >= _LOST:
            self._give(source, interrupts=True)

    def _opened(self, source: int, push: ServerPush) -> ServerPush | None:
        """Return ``push`` with its gradient in full; None where its learner was lost before it arrived."""
        version = self._state.version
        if not self._is_here[source]:
            return None
        if push.version > version and self._is_leader:
            raise BadMessage(f"learner {source} pushed a gradient at version {push.version} of a model at {version}.")
        self._held[source] = _AWAY
        return self._up.opened(source, push)

    def _tell(self, source: int, asked: ServerAsk) -> None:
        if not asked.is_joining:
            self._server.network.send(source, ShownModel(in_full(self._current().body)).owned())
            return
        self._here += not self._is_here[source]
        self._is_here[source], self._state.has_left[source] = True, False
        self._up.begin(source)
        self._down.begin(source)
        self._note_k()
        self._give(source)

    def _lose(self, lost: PeerLost) -> None:
        """Continue without a learner that was lost; without another shard of the model nothing can continue."""
        if lost.rank < 0:
            raise lost
        was_here, waited_for = self._is_here[lost.rank], self._waited_for
        self._forget(lost.rank)
        if not was_here or not self._is_leader:
            return
        self._server.note("lost", self._here, about=lost.rank)
        self._note_k()
        if self._waited_for < waited_for and self._here and not self._has_warned:
            self._has_warned = True
            _log.warning("worker %d is missing; %s continues with k=%d.", lost.rank, self._kind, self._waited_for)

    @property
    def _waited_for(self) -> int:
        """How many gradients make an update: K, but not more learners than are here where each pushes one."""
        k = self._state.k
        return min(k, max(1, self._here)) if self._kind.waits else k

    def _note_k(self) -> None:
        """Put K into the trace when it has changed."""
        if self._is_leader and self._waited_for != self._noted_k:
            self._noted_k = self._waited_for
            self._server.note("k", self._noted_k)

    def _forget(self, rank: int) -> None:
        self._here -= self._is_here[rank]
        self._is_here[rank], self._state.has_left[rank], self._held[rank] = False, True, _AWAY
        self._waiting.pop(rank, None)
        self._prune()

    # Updates.

    def _due(self) -> list[Pushed]:
        """Return the pushes that make up the next update, where there are enough."""
        if not self._is_leader:
            return self._decreed()
        k, pending = self._waited_for, self._pending
        if len(pending) < k:
            return []
        if (bound := self._kind.staleness_bound) is None:
            return pending[:k]
        oldest = self._state.version + 1 - bound  # what may still be used after this update
        if any(_AWAY < held < oldest for held in self._held):
            return []  # somebody computes at an older model: its gradient is waited for
        return [*pending[:k], *(one for one in pending[k:] if one[1].version < oldest)]

    def _decreed(self) -> list[Pushed]:
        """Return the pushes of the oldest decree, once all of them are here."""
        if not self._decrees:
            return []
        oldest_first = {(source, push.number): (source, push) for source, push in reversed(self._pending)}
        wanted = zip(self._decrees[0].ranks.tolist(), self._decrees[0].numbers.tolist(), strict=True)
        batch = [oldest_first[key] for key in wanted if key in oldest_first]
        if len(batch) < len(self._decrees[0].ranks):
            return []
        del self._decrees[0]
        return batch

    def _update(self, batch: list[Pushed]) -> None:
        server, state = self._server, self._state
        if self._is_leader:
            self._decree(batch)
            for source, push in batch:
                server.note("staleness", state.version - push.version, about=source)
            if self._counts is not None:
                self._counts.add((source for source, _ in batch), self._is_here)
        if self._times is not None:
            for source, _ in batch:
                self._times.use(source, state.version + 1)
        server.update(*self._combined(sorted(batch, key=lambda one: one[0])))
        state.version += 1
        self._model = None
        used = {id(push) for _, push in batch}
        self._pending = [] if self._kind.cancels else [one for one in self._pending if id(one[1]) not in used]
        if self._adapting is not None and self._is_leader:
            state.k = min(server.size, max(1, self._adapting.next_k(server, state, batch)))
            self._note_k()
        if self._kind.cancels:
            self._restart()
        elif self._kind.waits:
            pending = {source for source, _ in self._pending}
            for rank in [rank for rank in self._waiting if rank not in pending]:
                del self._waiting[rank]
                self._give(rank)
        self._prune()

    def _decree(self, batch: list[Pushed]) -> None:
        """Let the other shards make the same update."""
        if self._kind.shards > 1:
            ranks, numbers = (
                torch.tensor(of) for of in zip(*((source, push.number) for source, push in batch), strict=True)
            )
            self._tell_shards(ServerDecree(ranks, numbers).owned())

    def _tell_shards(self, message: ServerDecree | ServerLeave) -> None:
        for shard in range(1, self._kind.shards):
            self._server.network.send(server_address(shard), message)

    def _combined(self, batch: list[Pushed]) -> tuple[Tensor, float]:
        """Return Σ w η g / Σ w η̄ and η̄, the weighted mean of the rates: applied, Σ w η g / Σ w, summed in rank order
        as everywhere.
        """
        weights = [push.weight for _, push in batch]
        rates = [self._rate(source, push) for source, push in batch]
        total = sum(weights)
        mean_rate = sum(w * r for w, r in zip(weights, rates, strict=True)) / total
        gradient = torch.zeros_like(in_full(batch[0][1].body))
        for (_, push), weight, rate in zip(batch, weights, rates, strict=True):
            gradient.add_(in_full(push.body), alpha=weight * (rate / mean_rate if mean_rate else 1.0))
        return gradient.div_(total), mean_rate

    def _rate(self, source: int, push: ServerPush) -> float:
        rule, version = self._kind.rate, self._state.version
        if rule is None:
            return push.rate
        staleness, distance_squared = version - push.version, self._distance_squared(push)
        if self._times is None:
            return rule.of(push.rate, staleness, distance_squared)
        learners = (rank for rank, is_here in enumerate(self._is_here) if is_here)
        relative_time = self._times.relative(source, learners)
        return rule.of(push.rate, staleness, distance_squared, relative_time=relative_time)

    def _distance_squared(self, push: ServerPush) -> float:
        if not self._needs_models or push.version == self._state.version:
            return 0.0
        return float((self._server.parameters - self._models[push.version]).square().sum())

    # Models for learners.

    def _answer_at_once(self) -> None:
        """K-batch-async: whoever pushed goes on with the model as it is, unless that would let it run too far ahead."""
        if not self._answers or self._kind.waits:
            return
        is_bounded = self._kind.staleness_bound is not None and self._is_leader
        if is_bounded and len(self._pending) >= self._state.k:
            return  # the update must wait for a slow learner, and so must they
        for rank in self._waiting:
            self._give(rank)
        self._waiting.clear()

    def _restart(self) -> None:
        """Give everybody the new model: those who wait for it, and those who compute what nobody needs any more."""
        for rank, is_here in enumerate(self._is_here):
            if is_here:
                self._give(rank, interrupts=self._is_leader and rank not in self._waiting)
        self._waiting.clear()

    def _give(self, rank: int, interrupts: bool = False) -> None:
        """Let ``rank`` compute at the current model."""
        model = self._down.closed(rank, self._current())
        self._held[rank], self._late[rank] = model.version, 0
        if self._needs_models:
            self._models[model.version] = in_full(self._current().body)
        if interrupts and (self._restarting is None or self._restarting.body is not model.body):
            self._restarting = ServerRestart(model.version, model.body).owned()
        self._server.network.send(rank, self._restarting if interrupts and self._restarting else model)

    def _prune(self) -> None:
        """Forget models that nobody computes with and no pending gradient was taken at: versions are kept, not a copy
        for each learner.
        """
        if self._models:
            wanted = {*self._held, *(push.version for _, push in self._pending), self._state.version}
            self._models = {version: model for version, model in self._models.items() if version in wanted}

    def _current(self) -> ServedModel:
        if self._model is None:
            self._model = ServedModel(self._state.version, self._server.parameters.clone()).owned()
        return self._model
