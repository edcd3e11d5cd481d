"""A fast path for the four kinds of server where messages take time: no fibers, few events.

Four things happen at a time of their own: a step ends, a push or a model arrives, a transfer ends in the server's NIC.
Models that an update sends to many learners are one group: one transfer ends and one arrival follows for all of them.
The trace is the one that fibers write, which a test checks. If two things happen at the same time, the order of the
agenda decides, and the run is repeated by ``network_servers.py``.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import Final

from tacit.core.network import SERVER
from tacit.simulation.agenda import rare_collections
from tacit.simulation.computing.compute_times import ComputeTimes
from tacit.simulation.endpoints import WINDOW
from tacit.simulation.servers.model_updates import ModelUpdates, needs_no_fibers
from tacit.simulation.servers.pipes import Tie
from tacit.simulation.servers.race_messages import NEVER, RaceMessages
from tacit.simulation.servers.server_rows import MessageSizes, ServerRows
from tacit.simulation.world import World
from tacit.strategies.servers.kinds import KAsync, KBatchAsync, KBatchSync, KSync
from tacit.strategies.servers.messages import ServedModel, ServerPush, ServerRestart
from tacit.strategies.servers.parts.learners import LOST_MODEL
from tacit.strategies.servers.strategy import ParameterServerStrategy

_KINDS: Final = (KSync, KBatchSync, KAsync, KBatchAsync)


def run_network_race(world: World) -> bool:
    """Run the simulation like ``world.run``; return False, without effect, if the fast path does not apply."""
    strategy = world.strategy
    if not isinstance(strategy, ParameterServerStrategy) or not _applies(world, strategy):
        return False
    race = NetworkRace(world, strategy)
    try:
        with rare_collections():
            race.run()
    except Tie:
        world.trace.cut(-math.inf)
        world.servers[0].updates, world.agenda.now_s = 0, 0.0
        return False
    except BaseException:
        race.rows.write()
        raise
    race.rows.write()
    race.updates.train()
    return True


def _applies(world: World, strategy: ParameterServerStrategy) -> bool:
    """Whether the strategy is one of the four kinds with k and a rate alone, and no two learners share a NIC."""
    cluster = world.cluster
    if type(strategy) not in _KINDS or strategy != type(strategy)(k=strategy.k, rate=strategy.rate):
        return False
    remote = [cluster.host(rank) for rank in range(cluster.workers) if not cluster.is_local(rank, SERVER)]
    is_decided = len(set(remote)) == len(remote) and (cluster.cancel == "instant" or not strategy.cancels)
    return is_decided and needs_no_fibers(world, strategy)


class NetworkRace:
    """One run: the server and its learners."""

    def __init__(self, world: World, strategy: ParameterServerStrategy) -> None:
        engine, cluster, size = world.engine, world.cluster, world.cluster.workers
        push = ServerPush(0, 0, engine.learning_rate(0), engine.weight(0), math.nan, engine.row(0))
        model, restart = (sent(0, engine.row(0)) for sent in (ServedModel, ServerRestart))
        sizes = MessageSizes(push.size_bytes, model.size_bytes, restart.size_bytes)
        self.updates = ModelUpdates(world, strategy.k)
        self.rows = ServerRows(world.trace, sizes, strategy.k)
        self._ends: list[tuple[float, int]] = [(NEVER, -1)]  # a heap: end of a step, learner; some are outdated
        self._messages = RaceMessages(cluster, sizes, self._ends, self._receive_push, self._receive_models)
        self._world, self._strategy, self._last = world, strategy, world.steps
        self._k, self._cancels = strategy.k, strategy.cancels
        self._answers, self._waits = strategy.answers_pushes, strategy.waits_for_update
        # Whether the answer to a push is one model, which is sent at once:
        self._answers_alone = not self._waits or (self._k == 1 and not self._cancels)
        # By learner:
        self._end_of_step = [ComputeTimes(cluster, rank, world.streams).end_of_step for rank in range(size)]
        self._end_s = [NEVER] * size  # end of the step in progress
        self._started_s = [0.0] * size  # start of the step in progress, or of waiting for the model
        self._steps = [0] * size  # completed, with cancelled ones
        self._versions = [0] * size  # of its model
        self._cancelled_s = [-1.0] * size  # end of the last step that was cancelled
        self._pushing = [0] * size  # number of the step whose push is on its way; 0: none is
        self._held: dict[int, int] = {}  # those that wait for it with the next one: the version to continue at
        # The server:
        self._late: dict[int, int] = {}  # late pushes of a learner since it was sent a model
        self._version, self._is_over = 0, False
        self._idle_since_s: float | None = 0.0  # None: it waits for its window
        self._inbox: deque[tuple[int, int, int]] = deque()  # pushes: rank, version and number of the step
        self._pending: list[tuple[int, int, int]] = []  # pushes of the next update
        self._unsent: list[tuple[int, bool]] = []  # models that wait: rank, whether to restart
        self._in_flight = 0

    def run(self) -> None:
        """Process what happens, in order, until the server has sent the models of the last update."""
        strategy, ends, messages, end_s = self._strategy, self._ends, self._messages, self._end_s
        strategy.init_server(self._world.servers[0])
        self._world.servers[0].note("k", strategy.k)
        for worker in self._world.workers:
            strategy.init(worker)
        self._begin(range(len(end_s)), 0.0)
        before_s, soon = -1.0, messages.soon
        while not self._is_over:
            now_s, rank = ends[0]
            message_s = messages.next_s()
            if now_s < message_s:
                heapq.heappop(ends)
                if end_s[rank] != now_s:
                    continue  # the step was cancelled
                if now_s <= before_s:
                    raise Tie
                if not self._exchange_alone(rank, now_s):
                    self._end_step(rank, now_s)
                before_s = now_s
            else:
                if message_s <= before_s or message_s == NEVER or message_s == now_s == end_s[rank]:
                    raise Tie
                messages.proceed(message_s)
                before_s = message_s
            while soon:
                time_s, handle, about = soon.popleft()
                handle(time_s, *about)

    # Learners.

    def _begin(self, ranks: list[int] | range, now_s: float) -> None:
        """Start the next step of each of ``ranks``."""
        ends, end_s, end_of_step, started_s = self._ends, self._end_s, self._end_of_step, self._started_s
        if 4 * len(ranks) <= len(end_s) and len(ends) <= 4 * len(end_s) + 64:
            for rank in ranks:
                started_s[rank] = now_s
                time_s = end_s[rank] = end_of_step[rank](now_s)
                heapq.heappush(ends, (time_s, rank))
            return
        for rank in ranks:
            started_s[rank] = now_s
            end_s[rank] = end_of_step[rank](now_s)
        ends[:] = [(time_s, rank) for rank, time_s in enumerate(end_s) if time_s < NEVER]  # drops cancelled steps
        ends.append((NEVER, -1))
        heapq.heapify(ends)

    def _end_step(self, rank: int, now_s: float) -> None:
        """End the step of ``rank``, whose gradient is pushed once the last push has arrived."""
        self._steps[rank] += 1
        self.rows.steps += (rank, self._started_s[rank], now_s, self._steps[rank])
        if self._pushing[rank] and self._versions[rank] < self._last:
            self._end_s[rank], self._held[rank] = NEVER, self._versions[rank]
        else:
            self._push(rank, now_s, self._versions[rank])

    def _exchange_alone(self, rank: int, now_s: float) -> bool:
        """End the step of ``rank`` with a push to an idle server, and with its answer if it is one at once.

        Return False, without effect, where another event comes before their end or the push has other consequences.
        """
        pending, version, idle_since_s = self._pending, self._versions[rank], self._idle_since_s
        is_answered, is_last = self._answers_alone, len(pending) + 1 == self._k
        if idle_since_s is None or self._in_flight or self._pushing[rank] or not self._answers:
            return False
        if (version < self._version and self._cancels) or (is_last and self._version + 1 == self._last):
            return False
        if version >= self._last or (is_last and not is_answered):
            return False
        times_s = self._messages.exchange_alone(now_s, rank, is_answered=is_answered)
        if times_s is None:
            return False
        arrived_s, answered_s = times_s
        rows, started_s = self.rows, self._started_s
        self._steps[rank] = step = self._steps[rank] + 1
        rows.steps += (rank, started_s[rank], now_s, step)
        rows.pushes += (rank, now_s)
        rows.arrived += (rank, arrived_s)
        rows.idle += (idle_since_s, arrived_s)
        self._idle_since_s = arrived_s
        pending.append((rank, version, step))
        if is_last:
            self._update(arrived_s)
            pending.clear()
        if not is_answered:
            self._end_s[rank], started_s[rank] = NEVER, now_s
            return True
        rows.sent[0].add_one(arrived_s, rank)
        rows.received[0].add_one(answered_s, rank)
        rows.waiting_s.append(now_s)
        self._versions[rank], started_s[rank] = self._version, answered_s
        end_s = self._end_s[rank] = self._end_of_step[rank](answered_s)
        heapq.heappush(self._ends, (end_s, rank))
        return True

    def _push(self, rank: int, now_s: float, next_version: int, *, is_alone: bool = True) -> None:
        """Push the gradient of ``rank``; begin the next step unless the server is to answer first."""
        version, self._versions[rank], self._started_s[rank] = self._versions[rank], next_version, now_s
        is_pushed = version < self._last
        if is_pushed and self._answers:
            self._end_s[rank] = NEVER
        else:
            end_s = self._end_s[rank] = self._end_of_step[rank](now_s)
            heapq.heappush(self._ends, (end_s, rank))
        if is_pushed:
            self.rows.pushes += (rank, now_s)
            self._pushing[rank] = self._steps[rank]
            self._messages.push(now_s, rank, version, is_alone=is_alone)

    def _next_s(self) -> float:
        """Return when something happens next."""
        end_s, message_s = self._ends[0][0], self._messages.next_s()
        return end_s if end_s < message_s else message_s

    def _receive_models(self, now_s: float, version: int, is_restart: bool, ranks: list[int]) -> None:
        """Let models arrive; a server that waits for its window sends the next ones."""
        if self._is_over:
            return
        if not self._unsent:
            self._in_flight -= len(ranks)
            self._take_models(now_s, version, is_restart, ranks)
            return
        if self._version == self._last and self._messages.others_arrive(now_s, is_restart):
            raise Tie  # the run ends when the server has sent all models: who arrives until then depends on the order
        if len(self._unsent) > len(ranks):  # one model is sent for each that arrives, and nothing else happens
            self._in_flight -= len(ranks)
            self._serve(now_s)
            self._take_models(now_s, version, is_restart, ranks)
            return
        for rank in ranks:
            if self._is_over:
                return
            self._in_flight -= 1
            if self._unsent:
                self._serve(now_s)
            self._take_models(now_s, version, is_restart, [rank])

    def _take_models(self, now_s: float, version: int, is_restart: bool, ranks: list[int]) -> None:
        """Begin steps at a model that has arrived; a restart cancels a step in progress."""
        rows, versions, started_s = self.rows, self._versions, self._started_s
        if len(ranks) == 1 and not is_restart:
            [rank] = ranks
            rows.received[0].add_one(now_s, rank)
            rows.waiting_s.append(started_s[rank])
            versions[rank], started_s[rank] = version, now_s
            end_s = self._end_s[rank] = self._end_of_step[rank](now_s)
            heapq.heappush(self._ends, (end_s, rank))
            return
        rows.received[is_restart].add(now_s, ranks)
        if is_restart:
            ranks = self._cancel(now_s, version, ranks)
        else:
            rows.waiting_s += [started_s[rank] for rank in ranks]
        for rank in ranks:
            versions[rank] = version
        self._begin(ranks, now_s)

    def _cancel(self, now_s: float, version: int, ranks: list[int]) -> list[int]:
        """Cancel steps of ``ranks`` at older models; return whose.

        A learner that waits for the answer to a late push will get this model or a newer one.
        """
        rows, versions, end_s, started_s, steps = self.rows, self._versions, self._end_s, self._started_s, self._steps
        cancelled, cancelled_s = [], self._cancelled_s
        for rank in ranks:
            if end_s[rank] < NEVER and versions[rank] < version:
                if end_s[rank] <= now_s or cancelled_s[rank] == now_s:
                    raise Tie
                cancelled_s[rank] = now_s
                steps[rank] += 1
                cancelled.append(rank)
            elif rank in self._held:
                self._held[rank] = version
        rows.cancelled.add(now_s, cancelled)
        rows.cancelled_started_s += [started_s[rank] for rank in cancelled]
        rows.cancelled_steps += [steps[rank] for rank in cancelled]
        return cancelled

    # The server.

    def _receive_push(self, now_s: float, rank: int, version: int) -> None:
        if self._is_over:
            return
        step, self._pushing[rank] = self._pushing[rank], 0
        if rank in self._held:
            self._push(rank, now_s, self._held.pop(rank), is_alone=False)
        self.rows.arrived += (rank, now_s)
        self._inbox.append((rank, version, step))
        if self._idle_since_s is not None:
            self.rows.idle += (self._idle_since_s, now_s)
            self._idle_since_s = None
            self._serve(now_s)

    def _serve(self, now_s: float) -> None:
        """Handle pushes and send models until nothing is left to do or the window is full."""
        inbox, unsent = self._inbox, self._unsent
        while True:
            if unsent:
                self._send(now_s)
                if unsent:
                    return
            if self._version == self._last:
                if self._next_s() <= now_s:
                    raise Tie  # it may have to happen before the end
                self._is_over, self._world.agenda.now_s = True, now_s
                return
            if not inbox:
                self._idle_since_s = now_s
                return
            self._handle(now_s, *inbox.popleft())

    def _handle(self, now_s: float, source: int, version: int, step: int) -> None:
        """Handle one push: it is late, or waits for the update, or completes it."""
        pending, unsent = self._pending, self._unsent
        if version < self._version and self._cancels:
            self.rows.late += (source, now_s)
            if self._answers:
                unsent.append((source, False))
                return
            self._late[source] = self._late.get(source, 0) + 1
            if self._late[source] >= LOST_MODEL:
                unsent.append((source, True))
            return
        pending.append((source, version, step))
        if len(pending) == self._k:
            self._update(now_s)
            if self._cancels:
                idle = {rank for rank, _, _ in pending} if self._answers else ()
                unsent.extend((rank, rank not in idle) for rank in range(len(self._steps)))
            elif self._waits:
                unsent.extend((rank, False) for rank, _, _ in pending)
            pending.clear()
        if self._answers and not self._waits:
            unsent.append((source, False))

    def _update(self, now_s: float) -> None:
        self.rows.add_update(now_s, self._version, self._pending)
        self._version += 1
        self.updates.add(now_s, self._pending)

    def _send(self, now_s: float) -> None:
        """Send the models that wait, as far as the window allows."""
        unsent, room = self._unsent, WINDOW - self._in_flight
        if len(unsent) == 1 and room and not unsent[0][1]:  # the answer to a push
            [(rank, _)] = unsent
            unsent.clear()
            self.rows.sent[0].add_one(now_s, rank)
            is_alone = not self._in_flight and not self._inbox
            self._in_flight += 1
            self._messages.send_one(now_s, self._version, rank, is_alone=is_alone)
            return
        some, unsent[:] = unsent[:room], unsent[room:]
        models = [rank for rank, is_restart in some if not is_restart]
        restarts = [rank for rank, is_restart in some if is_restart] if len(models) < len(some) else []
        if models:
            self.rows.sent[0].add(now_s, models)
        if restarts:
            self.rows.sent[1].add(now_s, restarts)
            if self._late:
                self._late = {rank: count for rank, count in self._late.items() if rank not in restarts}
        is_alone = not self._in_flight and not self._inbox and not unsent
        self._in_flight += len(some)
        self._messages.send(now_s, self._version, models, restarts, is_alone=is_alone)
