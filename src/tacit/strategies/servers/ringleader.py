"""Ringleader ASGD (Maranjyan & Richtárik, arXiv 2509.22860): asynchronous SGD in which all learners weigh the same.

The server keeps a table: per learner i, the sum of b_i gradients, all computed at the model that learner i holds.
    ḡ = (1/n) Σ_i (1/b_i) Σ_{j ≤ b_i} g_i^j,     w ← w − η ḡ
A round has two phases.
    1  Gradients are added to the table until all learners have an entry. A learner that pushed continues at its model.
    2  Each learner gets one update when it pushes (the one that ended phase 1 at once): its gradient is added to the
       table, w is updated, and the learner continues at the new w. Its later pushes go to the table of the next round.
When all learners have had their update, the next round starts with that table.

K-async uses a learner's gradients as often as it pushes, so on split data the model fits the data of the fast learners.
Here its gradients are averaged instead. No learner idles (up to ``_MOST`` gradients). Staleness is below 2n − 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

import torch
from torch import Tensor

from tacit.core.worker import Server
from tacit.strategies.servers.messages import Pushed, ServedModel, ServerPush, uncompressed
from tacit.strategies.servers.parts.server_state import ServerState
from tacit.strategies.servers.server import ParameterServer
from tacit.strategies.servers.strategy import ParameterServerStrategy

_MOST: Final = 256
"""Gradients in an entry. A learner then idles until the phase ends, so that a run with an unreachable learner stops."""


@dataclass(frozen=True, kw_only=True)
class Ringleader(ParameterServerStrategy):
    """Update with a table of all learners' gradients, averaged per learner: unbiased if speeds and data differ.

    compressor, feedback, model_compressor: as in KAsync. A restarted server starts with an empty table.
    """

    waits_for_update: ClassVar[bool] = False
    has_adjustable_k: ClassVar[bool] = False

    k: int = field(default=1, init=False)  # each push is an update, once the table is complete
    rate: None = field(default=None, init=False)
    shards: int = field(default=1, init=False)

    def is_speed_biased(self, workers: int) -> bool:
        return False

    def serve(self, server: Server, state: ServerState) -> None:
        state.has_left = [False] * server.size
        RingleaderServer(self, server, state).serve()


@dataclass
class TableEntry:
    """The entry of one learner."""

    sum: Tensor  # Σ_j w_j g^j, where w_j is the weight of a push: 1 if all batches are equal
    weight: float = 0.0  # Σ_j w_j
    pushes: int = 0  # b
    rate: float = 0.0  # of the last push

    def add(self, push: ServerPush) -> None:
        self.sum.add_(uncompressed(push.body), alpha=push.weight)
        self.weight, self.pushes, self.rate = self.weight + push.weight, self.pushes + 1, push.rate


class RingleaderServer(ParameterServer):
    """A parameter server with a table of gradients."""

    def __init__(self, strategy: ParameterServerStrategy, server: Server, state: ServerState) -> None:
        super().__init__(strategy, server, state)
        self._table, self._next_table = dict[int, TableEntry](), dict[int, TableEntry]()
        self._updated, self._is_second_phase = set[int](), False  # updated: learners that had their update
        self._idle: dict[int, ServerPush] = {}  # the last push of each learner that has pushed enough in this phase
        self._ready: list[Pushed] = []  # the push that the next update follows

    def serve(self) -> None:
        super().serve()
        for rank in self._idle:
            self._models.send(rank)

    def _add_gradient(self, source: int, push: ServerPush) -> None:
        if push.is_skipped:
            self._continue(source, push)
        elif source in self._updated:
            self._add(self._next_table, source, push)
            self._continue_or_idle(self._next_table, source, push)
        else:
            self._add(self._table, source, push)
            if not self._is_second_phase and all(rank in self._table for rank in self._learners):
                self._is_second_phase = True
                self._end_idling()
            if self._is_second_phase:
                self._ready = [(source, push)]
                self._waiting[source] = push.number  # for the new model
            else:
                self._continue_or_idle(self._table, source, push)

    def _next_batch(self) -> list[Pushed]:
        return self._ready

    def _update(self, batch: list[Pushed]) -> None:
        super()._update(batch)
        self._ready = []
        self._updated.update(source for source, _ in batch)
        self._end_round()

    def _average(self, batch: list[Pushed]) -> tuple[Tensor, float]:
        """Return ḡ and η. Learners with larger batches weigh more, as in an all-reduce."""
        entries = [self._table[rank] for rank in sorted(self._table)]
        weights, gradient = [entry.weight / entry.pushes for entry in entries], torch.zeros_like(entries[0].sum)
        for entry in entries:
            gradient.add_(entry.sum, alpha=1 / entry.pushes)
        rate = sum(w * entry.rate for w, entry in zip(weights, entries, strict=True)) / sum(weights)
        return gradient.div_(sum(weights)), rate

    def _end_round(self) -> None:
        if self._is_second_phase and all(rank in self._updated for rank in self._learners):
            self._table, self._next_table = self._next_table, {}
            self._updated, self._is_second_phase = set(), False
            self._end_idling()

    def _end_idling(self) -> None:
        idle, self._idle = self._idle, {}
        for rank, push in idle.items():
            self._continue(rank, push)

    def _remove(self, rank: int, *, is_lost: bool) -> None:
        super()._remove(rank, is_lost=is_lost)
        for entries in (self._table, self._next_table, self._idle):
            entries.pop(rank, None)
        self._end_round()

    def _add(self, table: dict[int, TableEntry], source: int, push: ServerPush) -> None:
        if source not in table:
            table[source] = TableEntry(torch.zeros_like(self._server.parameters))
        table[source].add(push)

    def _continue_or_idle(self, table: dict[int, TableEntry], source: int, push: ServerPush) -> None:
        if table[source].pushes >= _MOST:
            self._idle[source] = push
        else:
            self._continue(source, push)

    def _continue(self, source: int, push: ServerPush) -> None:
        """Let ``source`` compute another gradient at its model."""
        self._learners.held[source] = push.version
        self._server.network.send(source, ServedModel(push.version, uncompressed(push.body).new_empty(0)).owned())
