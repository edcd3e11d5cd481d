"""Runs of the four kinds of servers on any network, without fibers and messages.

Server and learners are generators that do what ``strategies/servers`` does, as far as time, bytes and versions are
concerned. Agenda, links and trace are those of the world, and every event is entered in the same order as with fibers.
So the trace is identical, also where events coincide. ``model_updates`` computes the models.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from tacit.core.network import SERVER
from tacit.simulation.computing.compute_times import ComputeTimes
from tacit.simulation.endpoints import WINDOW
from tacit.simulation.servers.model_updates import ModelUpdates, needs_no_fibers
from tacit.simulation.world import World
from tacit.strategies.servers.kinds import KAsync, KBatchAsync, KBatchSync, KSync
from tacit.strategies.servers.messages import ServedModel, ServerPush, ServerRestart, ToServer
from tacit.strategies.servers.parts.learners import AWAY, LOST_MODEL
from tacit.strategies.servers.parts.staleness import StalenessBound
from tacit.strategies.servers.strategy import ParameterServerStrategy

KINDS: Final = (KSync, KBatchSync, KAsync, KBatchAsync)


def run_network_servers(world: World) -> bool:
    """Run the simulation like ``world.run``; return False, without effect, if strategy or cluster need fibers."""
    strategy = world.strategy
    if not isinstance(strategy, ParameterServerStrategy) or type(strategy) not in KINDS:
        return False
    is_sent_whole = strategy.shards == 1 and strategy.compressor is None and strategy.model_compressor is None
    if not is_sent_whole or strategy.pushes_changes or getattr(strategy, "drop_staleness", None) is not None:
        return False
    if not needs_no_fibers(world, strategy):
        return False
    run = NetworkServerRun(world, strategy)
    world.agenda.run(lambda: run.is_over)
    run.updates.train()
    return True


class Gradient(NamedTuple):
    """What the server knows of a gradient: the version of its model, and the number of the learner's step."""

    version: int
    step: int


class Learner:
    """The state of one learner."""

    def __init__(self, rank: int, compute_times: ComputeTimes) -> None:
        self.rank, self.end_of_step = rank, compute_times.end_of_step
        self.version = 0  # of its model
        self.steps = 0  # attempts that have ended
        self.started_s = 0.0
        self.is_computing = self.is_abandoned = self.is_waiting = False
        self.restarts: list[int] = []  # versions of models that cancelled steps and are not applied yet
        self.models: deque[int] = deque()  # versions of models that answer pushes
        self.in_flight, self.window_is_full = 0, False
        self.resume: Callable[[], None]


class NetworkServerRun:
    """One run: a server, its learners, and the messages between them."""

    def __init__(self, world: World, strategy: ParameterServerStrategy) -> None:
        engine, cluster = world.engine, world.cluster
        self.updates = ModelUpdates(world, strategy.k)
        self._world, self._strategy, self._agenda, self._trace = world, strategy, world.agenda, world.trace
        self._transfer = world.fabric.transfer
        self._is_instant = cluster.cancel == "instant"
        push = ServerPush(0, 0, engine.learning_rate(0), engine.weight(0), math.nan, engine.row(0))
        self._push_bytes = push.size_bytes
        self._model_bytes, self._restart_bytes = (
            sent(0, engine.row(0)).size_bytes for sent in (ServedModel, ServerRestart)
        )
        self._version = 0
        self._inbox: deque[tuple[int, Gradient]] = deque()
        self._is_receiving = self._window_is_full = self.is_over = False
        self._in_flight = 0
        self._held, self._late = [0] * cluster.workers, [0] * cluster.workers
        self._bound = StalenessBound(strategy.staleness_bound)
        self._learners = [Learner(rank, world.compute_times(rank)) for rank in range(cluster.workers)]
        self._resume_server: Callable[[], None] = partial(next, self._serve(), None)
        self._agenda.at(0.0, self._resume_server)
        for learner in self._learners:
            learner.resume = partial(next, self._learn(learner), None)
            self._agenda.at(0.0, learner.resume)

    # The learner.

    def _learn(self, learner: Learner) -> Iterator[None]:
        agenda, trace, strategy, rank = self._agenda, self._trace, self._strategy, learner.rank
        strategy.init(self._world.workers[rank])
        is_answered, last = strategy.answers_pushes, self._world.steps
        while True:
            learner.started_s, learner.is_computing, learner.is_abandoned = agenda.now_s, True, False
            agenda.at(learner.end_of_step(agenda.now_s), partial(self._end_step, learner, learner.steps))
            yield
            learner.is_computing = False
            learner.steps += 1
            if not learner.is_abandoned:
                trace.compute(rank, learner.steps, learner.started_s, agenda.now_s)
                if learner.version < last:
                    while learner.in_flight:  # one push is under way at a time
                        learner.window_is_full = True
                        yield
                    self._push(learner)
                    if is_answered:
                        if not learner.models:
                            since_s, learner.is_waiting = agenda.now_s, True
                            yield
                            trace.wait(rank, since_s, agenda.now_s, ServedModel.kind)
                        learner.version = learner.models.popleft()
                        learner.restarts = [one for one in learner.restarts if one > learner.version]
            if learner.restarts:
                learner.version = learner.restarts[-1]
                learner.restarts.clear()

    def _end_step(self, learner: Learner, before: int) -> None:
        """End the step after ``before`` others, unless it has been cancelled already."""
        if learner.steps != before or not learner.is_computing:
            return
        if learner.is_abandoned:
            if self._is_instant:
                return
            self._record_cancelled(learner)
        learner.resume()

    def _record_cancelled(self, learner: Learner) -> None:
        self._trace.cancelled(learner.rank, learner.steps + 1, learner.started_s, self._agenda.now_s)

    def _push(self, learner: Learner) -> None:
        rank, size_bytes = learner.rank, self._push_bytes
        self._trace.send(rank, SERVER, self._agenda.now_s, size_bytes, ServerPush.kind)
        learner.in_flight += 1
        self._transfer(
            rank, SERVER, size_bytes, partial(self._push_arrived, learner, Gradient(learner.version, learner.steps))
        )

    def _push_arrived(self, learner: Learner, gradient: Gradient) -> None:
        learner.in_flight -= 1
        if learner.window_is_full:
            learner.window_is_full = False
            learner.resume()
        self._trace.receive(SERVER, learner.rank, self._agenda.now_s, self._push_bytes, ServerPush.kind)
        self._inbox.append((learner.rank, gradient))
        if self._is_receiving:
            self._is_receiving = False
            self._resume_server()

    # The server.

    def _serve(self) -> Iterator[None]:
        world, strategy, agenda, trace, inbox = self._world, self._strategy, self._agenda, self._trace, self._inbox
        server, last, waiting = world.servers[0], world.steps, dict[int, None]()
        pending: list[tuple[int, Gradient]] = []
        strategy.init_server(server)
        server.note("k", strategy.k)
        while self._version < last:
            if not inbox:
                since_s, self._is_receiving = agenda.now_s, True
                yield
                trace.wait(SERVER, since_s, agenda.now_s, ToServer.kind)
            source, gradient = inbox.popleft()
            self._held[source] = AWAY
            if strategy.cancels and gradient.version < self._version:
                server.note("late", 1.0, about=source)
                self._late[source] += 1
                if strategy.answers_pushes:
                    yield from self._send([source])
                elif self._late[source] >= LOST_MODEL:
                    yield from self._send([source], idle=())
            else:
                pending.append((source, gradient))
                if strategy.answers_pushes:
                    waiting[source] = None
            while self._version < last and (
                batch := self._bound.select(pending, strategy.k, self._version, self._held)
            ):
                trace.pack_if_long()
                for source, used in batch:
                    server.note("staleness", self._version - used.version, about=source)
                self._version += 1
                server.note("update", self._version)
                self.updates.add(agenda.now_s, [(source, *used) for source, used in batch])
                gone = {id(used) for _, used in batch}
                pending = [] if strategy.cancels else [one for one in pending if id(one[1]) not in gone]
                if strategy.cancels:
                    yield from self._send(range(len(self._learners)), idle=waiting)
                    waiting.clear()
                elif strategy.waits_for_update:
                    unused = {source for source, _ in pending}
                    answered = [rank for rank in waiting if rank not in unused]
                    waiting = {rank: None for rank in waiting if rank in unused}
                    yield from self._send(answered)
            is_held = self._bound.holds_learners(pending, strategy.k)
            if strategy.answers_pushes and not strategy.waits_for_update and not is_held:
                yield from self._send(waiting)
                waiting.clear()
        yield from self._send(waiting)
        self.is_over = True

    def _send(self, ranks: Iterable[int], idle: Container[int] | None = None) -> Iterator[None]:
        """Send the current model to ``ranks``, as the window allows. idle: all others' steps in progress are cancelled.

        None: no step is cancelled.
        """
        agenda, trace, transfer, version = self._agenda, self._trace, self._transfer, self._version
        for rank in ranks:
            self._held[rank], self._late[rank] = version, 0
            while self._in_flight >= WINDOW:
                self._window_is_full = True
                yield
            if idle is None or rank in idle:
                kind, size_bytes, arrived = ServedModel.kind, self._model_bytes, self._model_arrived
            else:
                kind, size_bytes, arrived = ServerRestart.kind, self._restart_bytes, self._restart_arrived
            trace.send(SERVER, rank, agenda.now_s, size_bytes, kind)
            self._in_flight += 1
            transfer(SERVER, rank, size_bytes, partial(arrived, self._learners[rank], version))

    def _sent_arrived(self) -> None:
        self._in_flight -= 1
        if self._window_is_full:
            self._window_is_full = False
            self._resume_server()

    def _model_arrived(self, learner: Learner, version: int) -> None:
        self._sent_arrived()
        self._trace.receive(learner.rank, SERVER, self._agenda.now_s, self._model_bytes, ServedModel.kind)
        learner.models.append(version)
        if learner.is_waiting:
            learner.is_waiting = False
            learner.resume()

    def _restart_arrived(self, learner: Learner, version: int) -> None:
        self._sent_arrived()
        self._trace.receive(learner.rank, SERVER, self._agenda.now_s, self._restart_bytes, ServerRestart.kind)
        learner.restarts.append(version)
        if version > learner.version and learner.is_computing and not learner.is_abandoned:
            learner.is_abandoned = True
            if self._is_instant:
                self._record_cancelled(learner)
                self._agenda.at(self._agenda.now_s, learner.resume)
