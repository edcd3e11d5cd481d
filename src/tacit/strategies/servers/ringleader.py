"""Ringleader ASGD (Maranjyan & Richtárik, arXiv 2509.22860): asynchronous SGD in which every learner has the same
weight, however fast it is.

The server keeps a table with an entry for each of the n learners: the sum of b_i gradients, all taken at the model that
learner i holds.
    ḡ = (1/n) Σ_i (1/b_i) Σ_{j ≤ b_i} g_i^j,     w ← w − η ḡ
A round has two phases.
    1  Gradients are added to the table until every learner has an entry. A learner that pushed continues at the model it has.
    2  Each learner gets one update, when it pushes (the one that ended phase 1 at once): its gradient is added to the table, w is updated, and the
       learner continues at the new w. What it pushes from then on is kept for the table of the next round.
When all have had their update, the next round begins with what was kept.

Why: K-async uses a learner's gradients as often as it pushes, so on split data it trains towards the data of the fast
learners. Here fast learners average more gradients instead. A slow learner holds up updates, but nobody idles (up to
``_MOST`` gradients), and every gradient is used. Staleness is below 2n − 1 updates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final

import torch
from torch import Tensor

from tacit.compression.feedback.feedback import Update
from tacit.core.weights import has_data
from tacit.core.worker import Server, Worker
from tacit.strategies.servers.learner import KofP, Learner
from tacit.strategies.servers.messages import ServedModel, ServerPush, in_full
from tacit.strategies.servers.server import ParameterServer, Pushed, ServerState

_MOST: Final = 256
"""Gradients of one learner in an entry. One that has pushed so many idles until the phase ends: more would not make the
mean better, and where a learner cannot be reached, somebody must notice that nothing happens."""


@dataclass(frozen=True, kw_only=True)
class Ringleader(KofP):
    """Update with a table of all learners' gradients, averaged learner by learner: asynchronous, and unbiased where
    speeds and data differ.

    compressor, feedback, down: as in KAsync. A restarted server begins with an empty table.
    """

    waits: ClassVar[bool] = False
    has_k: ClassVar[bool] = False

    k: int = field(default=1, init=False)  # each push is an update, once the table is complete
    rate: None = field(default=None, init=False)
    shards: int = field(default=1, init=False)

    def follows_speed(self, workers: int) -> bool:
        return False

    def serve(self, server: Server, state: ServerState) -> None:
        state.has_left = [False] * server.size
        TableServer(self, server, state).serve()

    def _take(self, worker: Worker, state: Learner, shard: int, version: int, body: Tensor | Update) -> None:
        if not isinstance(body, Tensor) or body.numel():  # else the learner continues at the model it has
            super()._take(worker, state, shard, version, body)


@dataclass
class TableEntry:
    """What the table holds of one learner."""

    sum: Tensor  # Σ_j w_j g^j, with w_j the weight of a push: 1 where all batches are equal
    weight: float = 0.0  # Σ_j w_j
    pushes: int = 0  # b
    rate: float = 0.0  # the learning rate that came last

    def add(self, push: ServerPush) -> None:
        self.sum.add_(in_full(push.body), alpha=push.weight)
        self.weight, self.pushes, self.rate = self.weight + push.weight, self.pushes + 1, push.rate


class TableServer(ParameterServer):
    """One life of a server with a table."""

    def __init__(self, kind: KofP, server: Server, state: ServerState) -> None:
        super().__init__(kind, server, state)
        self._table: dict[int, TableEntry] = {}
        self._next_table: dict[int, TableEntry] = {}  # of learners that had their update in this round
        self._updated: set[int] = set()
        self._is_second_phase = False
        self._idle: dict[int, ServerPush] = {}  # the last pushes of learners that have pushed enough in this phase
        self._ready: list[Pushed] = []  # the push that the next update follows

    def serve(self) -> None:
        super().serve()
        for rank in self._idle:
            self._give(rank)

    def _take(self, source: int, push: ServerPush) -> None:
        opened = self._opened(source, push)
        if opened is None:
            return
        if not has_data(opened.weight):  # a skipped step
            self._continue(source, opened)
        elif source in self._updated:
            self._add(self._next_table, source, opened)
            self._continue_or_idle(self._next_table, source, opened)
        else:
            self._add(self._table, source, opened)
            if not self._is_second_phase and all(rank in self._table for rank in self._learners()):
                self._is_second_phase = True
                self._end_idling()
            if self._is_second_phase:
                self._ready = [(source, opened)]
                self._waiting[source] = None  # for the new model
            else:
                self._continue_or_idle(self._table, source, opened)

    def _due(self) -> list[Pushed]:
        return self._ready

    def _update(self, batch: list[Pushed]) -> None:
        super()._update(batch)
        self._ready = []
        self._updated.update(source for source, _ in batch)
        self._end_round()

    def _combined(self, batch: list[Pushed]) -> tuple[Tensor, float]:
        """Return ḡ and η; learners whose batches are larger weigh more, as in an all-reduce."""
        entries = [self._table[rank] for rank in sorted(self._table)]
        weights = [entry.weight / entry.pushes for entry in entries]
        gradient = torch.zeros_like(entries[0].sum)
        for entry in entries:
            gradient.add_(entry.sum, alpha=1 / entry.pushes)
        rate = sum(w * entry.rate for w, entry in zip(weights, entries, strict=True)) / sum(weights)
        return gradient.div_(sum(weights)), rate

    def _end_round(self) -> None:
        if self._is_second_phase and all(rank in self._updated for rank in self._learners()):
            self._table, self._next_table = self._next_table, {}
            self._updated, self._is_second_phase = set(), False
            self._end_idling()

    def _end_idling(self) -> None:
        idle, self._idle = self._idle, {}
        for rank, push in idle.items():
            self._continue(rank, push)

    def _forget(self, rank: int) -> None:
        """The mean is over the learners that are left."""
        super()._forget(rank)
        self._table.pop(rank, None)
        self._next_table.pop(rank, None)
        self._idle.pop(rank, None)
        self._end_round()

    def _learners(self) -> Iterable[int]:
        return (rank for rank, is_here in enumerate(self._is_here) if is_here)

    def _add(self, table: dict[int, TableEntry], source: int, push: ServerPush) -> None:
        if source not in table:
            table[source] = TableEntry(torch.zeros_like(self._server.parameters))
        table[source].add(push)

    def _continue_or_idle(self, table: dict[int, TableEntry], source: int, push: ServerPush) -> None:
        if table[source].pushes < _MOST:
            self._continue(source, push)
        else:
            self._idle[source] = push

    def _continue(self, source: int, push: ServerPush) -> None:
        """Let ``source`` compute another gradient at the model it has."""
        self._held[source] = push.version
        self._server.network.send(source, ServedModel(push.version, in_full(push.body).new_empty(0)).owned())
