"""A fast path for the four kinds of server on a network without cost: no fibers, no messages.

If only the learners' computations take time, a run is a heap of (end of a step, learner), as in the simulator of the
paper (Dutta et al., arXiv 1803.01113):

    K-sync          pop K learners; all restart with new times
    K-batch-sync    pop K times, each popped learner continues; then all restart with new times
    K-async         pop K learners; these restart, the others keep their times
    K-batch-async   pop a learner and restart it, K times

The fast path writes the same events as the fibers, which a test checks, at about a tenth of the cost. If two steps end
at the same time, the order of messages decides, and the run is repeated with fibers.
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
from tacit.simulation.computing.compute_times import ComputeTimes
from tacit.simulation.endpoints import WINDOW
from tacit.simulation.servers.model_updates import ModelUpdates, needs_no_fibers
from tacit.simulation.world import World
from tacit.strategies.servers.kinds import KAsync, KBatchAsync, KBatchSync, KSync
from tacit.strategies.servers.messages import ServedModel, ServerPush, ServerRestart, ToServer
from tacit.strategies.servers.strategy import ParameterServerStrategy

_KINDS: Final = (KSync, KBatchSync, KAsync, KBatchAsync)
_BUFFERED: Final = 50_000  # pushes and cancelled steps that are buffered before they are written to the trace


def run_fast_servers(world: World) -> bool:
    """Run the simulation like ``world.run``; return False, without effect, if the fast path does not apply."""
    if not _applies(world):
        return False
    fast = FastServerRun(world)
    try:
        with rare_collections():
            fast.run()
    except _Tie:
        world.trace.cut(-math.inf)
        world.servers[0].updates, world.agenda.now_s = 0, 0.0
        return False
    except BaseException:
        fast.write_complete_updates()
        world.agenda.now_s = fast.written_s if world.is_timing else 0.0
        raise
    fast.updates.train()
    return True


def _applies(world: World) -> bool:
    """Whether only computation takes time, and the strategy is one of the four kinds with no argument but k."""
    cluster, strategy = world.cluster, world.strategy
    has_spells = any(isinstance(cluster.delay(rank), SlowSpells) for rank in range(cluster.workers))
    if not (
        cluster.is_free
        and not has_spells
        and isinstance(strategy, ParameterServerStrategy)
        and type(strategy) in _KINDS
        and needs_no_fibers(world, strategy)
    ):
        return False
    is_plain = strategy == type(strategy)(k=strategy.k)
    return is_plain and (cluster.cancel == "instant" or not strategy.cancels)


class _Tie(Exception):
    """Raised if two steps end at the same time."""


class FastServerRun:
    """One run: the state of each learner, and the events that are not yet written to the trace."""

    def __init__(self, world: World) -> None:
        assert isinstance(world.strategy, ParameterServerStrategy)
        self._world, self._strategy, engine, size = world, world.strategy, world.engine, world.cluster.workers
        self._compute_times = [ComputeTimes(world.cluster, rank, world.streams) for rank in range(size)]
        self._ends: list[tuple[float, int]] = []  # a heap of the steps in progress: end, learner
        self._started_s = [0.0] * size  # by learner, like the next two
        self._steps = [0] * size  # completed, with cancelled ones
        self._versions = [0] * size  # the version of the model it computes at
        self._now_s, self._version = 0.0, 0
        self._pending: list[int] = []  # the learners that pushed since the last update
        self.updates = ModelUpdates(world, self._strategy.k)
        push = ServerPush(0, 0, engine.learning_rate(0), engine.weight(0), math.nan, engine.row(0))
        self._push_bytes = push.size_bytes
        self._model_bytes, self._restart_bytes = (
            sent(0, engine.row(0)).size_bytes for sent in (ServedModel, ServerRestart)
        )
        self._cancelled_per_update = 0
        if self._strategy.cancels:
            self._cancelled_per_update = size - self._strategy.k if self._strategy.waits_for_update else size
        self._events = _Events()
        self._written, self.written_s = 0, 0.0  # number of updates that are written, and the time of the last
        self._last_push_s = 0.0  # time of the last push that is written

    def run(self) -> None:
        """Process the ends of steps in order, until the last update."""
        world, strategy, ends = self._world, self._strategy, self._ends
        strategy.init_server(world.servers[0])
        world.servers[0].note("k", strategy.k)
        for worker in world.workers:
            strategy.init(worker)
            self._begin(worker.rank)
        while self._version < world.steps:
            before_s, (self._now_s, rank) = self._now_s, heapq.heappop(ends)
            if self._now_s <= before_s:
                raise _Tie
            self._push(rank)
            if len(self._pending) == strategy.k:
                if ends and ends[0][0] <= self._now_s:
                    raise _Tie
                self._update()
            if strategy.answers_pushes and not strategy.waits_for_update:
                self._begin(rank)

    def _begin(self, rank: int) -> None:
        """Start the next step of ``rank`` at the current model."""
        now_s = self._now_s
        self._started_s[rank], self._versions[rank] = now_s, self._version
        heapq.heappush(self._ends, (self._compute_times[rank].end_of_step(now_s), rank))

    def _push(self, rank: int) -> None:
        """End the step of ``rank`` with a push."""
        events, steps = self._events, self._steps
        steps[rank] += 1
        events.pushed_s.append(self._now_s)
        events.pushers.append(rank)
        events.started_s.append(self._started_s[rank])
        events.steps.append(steps[rank])
        events.staleness.append(self._version - self._versions[rank])
        self._pending.append(rank)
        if not self._strategy.answers_pushes:
            self._begin(rank)

    def _update(self) -> None:
        """Update the model; restart the learners that waited and, in the sync kinds, all others."""
        world, strategy, pending = self._world, self._strategy, self._pending
        self._version += 1
        self._pending = []
        self._events.updated_s.append(self._now_s)
        if strategy.cancels:
            self._cancel(set(pending) if strategy.waits_for_update else set())
        self.updates.add(self._now_s, () if world.is_timing else self._used())
        if self._version == world.steps:
            world.agenda.now_s = self._now_s
            self._write(self._reached_by_last_update(pending))
        elif self._events.is_full:
            self._write()
        for rank in pending if strategy.waits_for_update else ():
            self._begin(rank)

    def _used(self) -> list[tuple[int, int, int]]:
        """Return learner, version and step of the gradients that the last update uses."""
        events, k, before = self._events, self._strategy.k, self._version - 1
        last = zip(events.pushers[-k:], events.staleness[-k:], events.steps[-k:], strict=True)
        return [(rank, before - staleness, step) for rank, staleness, step in last]

    def _cancel(self, idle: set[int]) -> None:
        """Cancel and restart the steps of all learners but the idle ones."""
        ranks = [rank for rank in range(len(self._steps)) if rank not in idle]
        events, steps = self._events, self._steps
        self._ends.clear()
        for rank in ranks:
            steps[rank] += 1
        events.cancelled += ranks
        events.cancelled_started_s += [self._started_s[rank] for rank in ranks]
        events.cancelled_steps += [steps[rank] for rank in ranks]
        for rank in ranks:
            self._begin(rank)

    # Events for the trace.

    def write_complete_updates(self) -> None:
        """After an interrupt: write all events but those of the last update, whose models may not have been sent."""
        self._events.keep(len(self._events.updated_s) - 1, self._strategy.k, self._cancelled_per_update)
        if self._events.updated_s:
            self._write()

    def _write(self, reached: set[int] | None = None) -> None:
        """Write the buffered events. reached: at the end of the run, the learners whose last model arrives."""
        events, strategy, record = self._events, self._strategy, self._world.trace.record_many
        pushed_s, pushers = np.array(events.pushed_s), np.array(events.pushers, np.int32)
        waiting_s, self._last_push_s = np.concatenate(([self._last_push_s], pushed_s[:-1])), events.pushed_s[-1]
        updated_s, numbers = np.array(events.updated_s), np.arange(len(events.updated_s)) + 1.0 + self._written
        used_s, size_bytes = np.repeat(updated_s, strategy.k), self._push_bytes
        record(COMPUTE, pushers, pushed_s, np.array(events.started_s), step=np.array(events.steps))
        record(SEND, pushers, pushed_s, pushed_s, peer=SERVER, size_bytes=size_bytes, label=ServerPush.kind)
        record(RECEIVE, SERVER, pushed_s, pushed_s, peer=pushers, size_bytes=size_bytes, label=ServerPush.kind)
        record(WAIT, SERVER, pushed_s, waiting_s, label=ToServer.kind)
        record(NOTE, SERVER, used_s, used_s, peer=pushers, value=np.array(events.staleness, float), label="staleness")
        record(NOTE, SERVER, updated_s, updated_s, value=numbers, label="update")
        if strategy.answers_pushes:
            answered_s, at_last = (used_s, strategy.k) if strategy.waits_for_update else (pushed_s, 1)
            arrive = _arriving(pushers, at_last, reached)
            self._write_models(ServedModel, self._model_bytes, pushers, answered_s, arrive)
            record(WAIT, pushers[arrive], answered_s[arrive], pushed_s[arrive], label=ServedModel.kind)
        if strategy.cancels:
            cancelled, cancelled_s = (
                np.array(events.cancelled, np.int32),
                np.repeat(updated_s, self._cancelled_per_update),
            )
            arrive = _arriving(cancelled, self._cancelled_per_update, reached)
            self._write_models(ServerRestart, self._restart_bytes, cancelled, cancelled_s, arrive)
            started_s, steps = np.array(events.cancelled_started_s), np.array(events.cancelled_steps)
            record(CANCELLED, cancelled[arrive], cancelled_s[arrive], started_s[arrive], step=steps[arrive])
        self._written, self.written_s = self._written + len(updated_s), events.updated_s[-1]
        self._events = _Events()

    def _write_models(
        self, sent: type[Message], size_bytes: int, ranks: Column, sent_s: Column, arrive: Column | slice
    ) -> None:
        record, label = self._world.trace.record_many, sent.kind
        record(SEND, SERVER, sent_s, sent_s, peer=ranks, size_bytes=size_bytes, label=label)
        record(RECEIVE, ranks[arrive], sent_s[arrive], sent_s[arrive], peer=SERVER, size_bytes=size_bytes, label=label)

    def _reached_by_last_update(self, pending: list[int]) -> set[int]:
        """Return the learners that receive the model of the last update.

        The run ends when the server has sent all models, and its window lets it send one more when one has arrived.
        """
        sent_to = pending if self._strategy.waits_for_update else pending[-1:]
        if self._strategy.cancels:
            sent_to = list(range(len(self._compute_times)))
        return set(sent_to[: max(0, len(sent_to) - WINDOW)])


def _arriving(ranks: Column, at_last: int, reached: set[int] | None) -> Column | slice:
    """Return which models sent to ``ranks`` arrive: all, but of the last ``at_last`` only those to ``reached``."""
    if reached is None or at_last == 0:
        return slice(None)
    arriving = np.ones(len(ranks), bool)
    arriving[-at_last:] = [rank in reached for rank in ranks[-at_last:].tolist()]
    return arriving


@dataclass
class _Events:
    """Buffered events: pushes, updates, and the steps that updates cancelled."""

    pushed_s: list[float] = field(default_factory=list)
    pushers: list[int] = field(default_factory=list)
    started_s: list[float] = field(default_factory=list)  # of the step that ended with the push
    steps: list[int] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    updated_s: list[float] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    cancelled_started_s: list[float] = field(default_factory=list)
    cancelled_steps: list[int] = field(default_factory=list)

    def keep(self, updates: int, pushes: int, cancelled: int) -> None:
        """Keep the first ``updates``, each with so many pushes and cancelled steps."""
        for name, kept in vars(self).items():
            each = 1 if name == "updated_s" else cancelled if name.startswith("cancelled") else pushes
            del kept[max(0, updates) * each :]

    @property
    def is_full(self) -> bool:
        return len(self.pushers) + len(self.cancelled) > _BUFFERED
