"""Races: timing-only runs of the four kinds of server on a network that costs nothing, without fibers or messages.

Where nothing but the learners' computing takes time, a run is a heap of (end of a step, learner), as in the paper's own
simulator (Dutta et al., arXiv 1803.01113):

    K-sync          pop K learners; all restart with fresh times
    K-batch-sync    pop K times, each one popped going on; all restart with fresh times
    K-async         pop K learners; these restart, the others keep their times
    K-batch-async   pop, restart, and count to K

A race writes the very events that fibers write, as a test checks, at about a tenth of the cost. That holds as long as
no two steps end at one moment: where they do, the order of messages decides, and fibers must run instead.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tacit.cluster.delays import SlowSpells
from tacit.core.messages import Message
from tacit.core.network import SERVER
from tacit.record.trace import CANCELLED, COMPUTE, NOTE, RECEIVE, SEND, WAIT, Column
from tacit.simulation.agenda import rare_collections
from tacit.simulation.compute_times import ComputeTimes
from tacit.simulation.endpoints import WINDOW
from tacit.simulation.engine.engine import TimingEngine
from tacit.simulation.world import World
from tacit.strategies.servers.kinds import KAsync, KBatchAsync, KBatchSync, KSync
from tacit.strategies.servers.messages import ServedModel, ServerPush, ServerRestart, ToServer
from tacit.strategies.servers.strategy import ParameterServerStrategy

_KINDS: Final = (KSync, KBatchSync, KAsync, KBatchAsync)
_LONG: Final = 50_000  # pushes and cancelled steps noted before they are written


def run_fast_servers(world: World) -> bool:
    """Let everything happen, as ``world.run`` would; return False, with nothing done, where only fibers can tell what
    happens.
    """
    if not _is_race(world):
        return False
    race = FastServerRun(world)
    try:
        with rare_collections():
            race.run()
    except _Tie:
        world.trace.cut(-math.inf)
        world.servers[0].updates, world.agenda.now_s = 0, 0.0
        return False
    except BaseException:
        race.write_whole_updates()
        world.agenda.now_s = race.written_s
        raise
    return True


def _is_race(world: World) -> bool:
    """Whether computing is all that takes time, and the strategy one of the four kinds with nothing but its k."""
    cluster, strategy = world.cluster, world.strategy
    is_free = cluster.latency_s == 0 and cluster.bandwidth_bytes_per_s == math.inf and not cluster.links
    is_steady = not cluster.faults and not isinstance(cluster.compute, SlowSpells)
    is_whole = world.is_timing and not world.is_resumed
    if not (
        is_free
        and is_steady
        and is_whole
        and isinstance(strategy, ParameterServerStrategy)
        and type(strategy) in _KINDS
    ):
        return False
    is_plain = strategy == type(strategy)(k=strategy.k)
    return is_plain and (cluster.cancel == "instant" or not strategy.cancels)


class _Tie(Exception):
    """Two things happen at one moment."""


class FastServerRun:
    """One run: the state of every learner, and lists of what happened since it was last written."""

    def __init__(self, world: World) -> None:
        assert isinstance(world.strategy, ParameterServerStrategy) and isinstance(world.engine, TimingEngine)
        self._world, self._kind, engine, size = world, world.strategy, world.engine, world.cluster.workers
        self._paces = [ComputeTimes(world.cluster, rank, world.streams) for rank in range(size)]
        self._ends: list[tuple[float, int]] = []  # a heap of steps under way: when they end, and whose they are
        self._started_s = [0.0] * size  # by learner, as is what follows
        self._steps = [0] * size  # behind it, cancelled ones included
        self._held = [0] * size  # the version of the model it computes with
        self._now_s, self._version, self._pending = 0.0, 0, list[int]()  # pending: who pushed since the last update
        push = ServerPush(0, 0, engine.learning_rate(0), engine.weight(0), math.nan, engine.gradient(0))
        self._push_bytes = push.size_bytes
        self._model_bytes, self._restart_bytes = (
            sent(0, engine.row(0)).size_bytes for sent in (ServedModel, ServerRestart)
        )
        self._cancelled_at_once = (
            0 if not self._kind.cancels else size - self._kind.k if self._kind.waits_for_update else size
        )
        self._happened = _Happened()
        self._written, self.written_s = 0, 0.0  # updates that are written, and up to when
        self._heard_s = 0.0  # when the last push came that is written

    def run(self) -> None:
        """Let steps end one after the other, until the last update."""
        world, kind, ends = self._world, self._kind, self._ends
        kind.init_server(world.servers[0])
        world.servers[0].note("k", kind.k)
        for worker in world.workers:
            kind.init(worker)
            self._begin(worker.rank)
        while self._version < world.steps:
            before_s, (self._now_s, rank) = self._now_s, heapq.heappop(ends)
            if self._now_s <= before_s:
                raise _Tie
            self._land(rank)
            if len(self._pending) == kind.k:
                if ends and ends[0][0] <= self._now_s:
                    raise _Tie
                self._update()
            if kind.answers_pushes and not kind.waits_for_update:
                self._begin(rank)

    def _begin(self, rank: int) -> None:
        """A learner starts on its next mini-batch, with the model as it is."""
        now_s = self._now_s
        self._started_s[rank], self._held[rank] = now_s, self._version
        heapq.heappush(self._ends, (self._paces[rank].end_of_step(now_s), rank))

    def _land(self, rank: int) -> None:
        """A learner has computed a gradient and pushes it."""
        noted, steps = self._happened, self._steps
        steps[rank] += 1
        noted.pushed_s.append(self._now_s)
        noted.pushers.append(rank)
        noted.started_s.append(self._started_s[rank])
        noted.steps.append(steps[rank])
        noted.staleness.append(self._version - self._held[rank])
        self._pending.append(rank)
        if not self._kind.answers_pushes:
            self._begin(rank)

    def _update(self) -> None:
        """The server has enough: whoever waited goes on with the new model, and perhaps all others must."""
        world, kind, pending = self._world, self._kind, self._pending
        self._version += 1
        self._pending = []
        self._happened.updated_s.append(self._now_s)
        if kind.cancels:
            self._cancel(set(pending) if kind.waits_for_update else set())
        server = world.servers[0]
        server.updates, world.agenda.now_s = self._version, self._now_s
        world.updated(server)
        if self._version == world.steps:
            self._write(self._reached_at_last(pending))
        elif self._happened.is_long:
            self._write()
        for rank in pending if kind.waits_for_update else ():
            self._begin(rank)

    def _cancel(self, idle: set[int]) -> None:
        """All who compute drop it and begin anew."""
        ranks, noted, steps = (
            [rank for rank in range(len(self._steps)) if rank not in idle],
            self._happened,
            self._steps,
        )
        self._ends.clear()
        for rank in ranks:
            steps[rank] += 1
        noted.cancelled += ranks
        noted.cancelled_started_s += [self._started_s[rank] for rank in ranks]
        noted.cancelled_steps += [steps[rank] for rank in ranks]
        for rank in ranks:
            self._begin(rank)

    # What is written.

    def write_whole_updates(self) -> None:
        """Interrupted: write what happened, but for the last update, whose models may not have been sent."""
        self._happened.keep(len(self._happened.updated_s) - 1, self._kind.k, self._cancelled_at_once)
        if self._happened.updated_s:
            self._write()

    def _write(self, reached_at_last: set[int] | None = None) -> None:
        """Write all that happened; of the very last update's models only some arrive."""
        noted, kind, record = self._happened, self._kind, self._world.trace.record_many
        pushed_s, pushers = np.array(noted.pushed_s), np.array(noted.pushers, np.int32)
        heard_s, self._heard_s = np.concatenate(([self._heard_s], pushed_s[:-1])), noted.pushed_s[-1]
        updated_s, numbers = np.array(noted.updated_s), np.arange(len(noted.updated_s)) + 1.0 + self._written
        used_s, size_bytes = np.repeat(updated_s, kind.k), self._push_bytes
        record(COMPUTE, pushers, pushed_s, np.array(noted.started_s), step=np.array(noted.steps))
        record(SEND, pushers, pushed_s, pushed_s, peer=SERVER, size_bytes=size_bytes, label=ServerPush.kind)
        record(RECEIVE, SERVER, pushed_s, pushed_s, peer=pushers, size_bytes=size_bytes, label=ServerPush.kind)
        record(WAIT, SERVER, pushed_s, heard_s, label=ToServer.kind)
        record(NOTE, SERVER, used_s, used_s, peer=pushers, value=np.array(noted.staleness, float), label="staleness")
        record(NOTE, SERVER, updated_s, updated_s, value=numbers, label="update")
        if kind.answers_pushes:
            answered_s, at_last = (used_s, kind.k) if kind.waits_for_update else (pushed_s, 1)
            arrive = _arriving(pushers, at_last, reached_at_last)
            self._write_models(ServedModel, self._model_bytes, pushers, answered_s, arrive)
            record(WAIT, pushers[arrive], answered_s[arrive], pushed_s[arrive], label=ServedModel.kind)
        if kind.cancels:
            cancelled, cancelled_s = np.array(noted.cancelled, np.int32), np.repeat(updated_s, self._cancelled_at_once)
            arrive = _arriving(cancelled, self._cancelled_at_once, reached_at_last)
            self._write_models(ServerRestart, self._restart_bytes, cancelled, cancelled_s, arrive)
            started_s, steps = np.array(noted.cancelled_started_s), np.array(noted.cancelled_steps)
            record(CANCELLED, cancelled[arrive], cancelled_s[arrive], started_s[arrive], step=steps[arrive])
        self._written, self.written_s = self._written + len(updated_s), noted.updated_s[-1]
        self._happened = _Happened()

    def _write_models(
        self, sent: type[Message], size_bytes: int, ranks: Column, sent_s: Column, arrive: Column | slice
    ) -> None:
        record, label = self._world.trace.record_many, sent.kind
        record(SEND, SERVER, sent_s, sent_s, peer=ranks, size_bytes=size_bytes, label=label)
        record(RECEIVE, ranks[arrive], sent_s[arrive], sent_s[arrive], peer=SERVER, size_bytes=size_bytes, label=label)

    def _reached_at_last(self, pending: list[int]) -> set[int]:
        """Return who gets a model of the last update: the run is over when the server has sent them all, and its window
        lets it send one more whenever one has arrived."""
        kind = self._kind
        sent_to = list(range(len(self._paces))) if kind.cancels else pending if kind.waits_for_update else pending[-1:]
        return set(sent_to[: max(0, len(sent_to) - WINDOW)])


def _arriving(ranks: Column, at_last: int, reached: set[int] | None) -> Column | slice:
    """Return which of the models sent to ``ranks`` arrive: all, but of the last ``at_last`` perhaps only those to some."""
    if reached is None or at_last == 0:
        return slice(None)
    arriving = np.ones(len(ranks), bool)
    arriving[-at_last:] = [rank in reached for rank in ranks[-at_last:].tolist()]
    return arriving


@dataclass
class _Happened:
    """What happened since it was last written: pushes, updates, and steps that an update cancelled."""

    pushed_s: list[float] = field(default_factory=list)
    pushers: list[int] = field(default_factory=list)
    started_s: list[float] = field(default_factory=list)  # the push's step
    steps: list[int] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    updated_s: list[float] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    cancelled_started_s: list[float] = field(default_factory=list)
    cancelled_steps: list[int] = field(default_factory=list)

    def keep(self, updates: int, pushes: int, cancelled: int) -> None:
        """Forget all but the first updates, each with so many pushes and cancelled steps."""
        for name, kept in vars(self).items():
            each = 1 if name == "updated_s" else cancelled if name.startswith("cancelled") else pushes
            del kept[max(0, updates) * each :]

    @property
    def is_long(self) -> bool:
        return len(self.pushers) + len(self.cancelled) > _LONG
