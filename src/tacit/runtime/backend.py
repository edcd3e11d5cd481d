"""The backend of a session on real processes: clock, trace, groups, message endpoints, exchanges among sessions."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from tacit.core.collective_bytes import tree_broadcast_bytes
from tacit.core.host_memory import keep_memory
from tacit.core.messages import Message
from tacit.core.network import SERVER, server_address, shard_at
from tacit.core.strategy import Strategy, shards_of, takes_joiners
from tacit.errors import Interrupted, PeerLost, RunError, TacitError, TimedOut
from tacit.record.facts import process_facts
from tacit.record.progress import Totals
from tacit.record.trace import EventQueue, PlainEvent, Trace
from tacit.record.versions import tacit_version
from tacit.runtime.clock import EventClock, RunClock
from tacit.runtime.collectives import Collectives
from tacit.runtime.environment import Environment, machine
from tacit.runtime.failures.causes import LOST, Cause, FailureCauses, publish_cause
from tacit.runtime.failures.liveness import Liveness
from tacit.runtime.failures.signals import TerminationSignal
from tacit.runtime.failures.timeouts import AdaptiveTimeout
from tacit.runtime.joining import ProcessStartExchange, StateReply, StateRequest
from tacit.runtime.launched import SERVER_SEAT, LaunchedLives
from tacit.runtime.live_times import LiveTimes
from tacit.runtime.membership.generations import NobodyLeft, RunIsOver
from tacit.runtime.membership.launched_liveness import LaunchedLiveness
from tacit.runtime.membership.members import Membership
from tacit.runtime.membership.setup import may_regroup, membership_of
from tacit.runtime.messaging.hook_lock import HookLock
from tacit.runtime.messaging.secret import find_secret
from tacit.runtime.network import ProcessNetwork
from tacit.runtime.participants import Participants
from tacit.runtime.rendezvous import agree, compare_with_members, rendezvous
from tacit.runtime.server.host import ClockTime, ServerHost
from tacit.runtime.server.last_learners import LastLearners
from tacit.runtime.server.returning import ReturningServer
from tacit.runtime.step_context import ProcessStep
from tacit.session import Session
from tacit.session.backend import LiveRound, StepEnded
from tacit.session.server_model import ServerLoop, ServerModel
from tacit.strategies import may_send

if TYPE_CHECKING:  # a run without messages does not import zmq
    from tacit.runtime.messaging.endpoint import MessageEndpoint


_log: Final = logging.getLogger("tacit")
_STOPPED: Final = "its process is stopped, or cut off from the store"
_WAY_OUT: Final = f"{_STOPPED}. Start the run again; it resumes from its checkpoint if it has one."
_UNCOUNTED: Final = (ClockTime, StateRequest, StateReply)


class ProcessBackend:
    """The ``SessionBackend`` of one process among ``size``."""

    world = "processes"
    step_ended: StepEnded | None = None

    def __init__(
        self,
        strategy: Strategy[Any],
        *,
        device: torch.device,
        interface: str | None = None,
        security: str | None = None,
        timeout_s: float | None = None,
        attach_timeout_s: float = 300.0,
        server: str = "rank0",
        live: bool = False,
        largest_bytes: int = 0,
    ) -> None:
        keep_memory()
        self._environment = Environment(attach_timeout_s)
        self.rank, self.size = self._environment.rank, self._environment.size
        self._trace, self.hook_lock, self.clock = Trace(), HookLock(), RunClock()
        self.now_s, self.set_clock, self.pause = self.clock.now_s, self.clock.set, self.clock.pause
        self._start_exchanges: list[tuple[float, float, int]] = []  # before the clock starts: begin, end, bytes sent
        self._timeout = AdaptiveTimeout(timeout_s)
        self.collectives: Collectives | None = None  # None in a run of one process
        self._participants: Participants | None = None  # None where lost workers do not come back
        self._life, self._peers_return = 1, False
        self.start_exchange: ProcessStartExchange | None = None
        self._device, self._strategy, self._security = device, strategy, security
        self._largest_bytes = largest_bytes  # of a frame
        self._backend_name: str | None = None  # of the strategy's groups: "gloo" or "nccl"
        self._is_late = False  # whether this process has joined a run that was on
        self._handler: Callable[[int, Message], None] | None = None
        self.endpoint: MessageEndpoint | None = None
        self._trace_rows = EventQueue()  # of messages, appended by the threads that send and receive
        self._host = host = ServerHost(strategy, self.rank, server=server)
        self._last_learners = LastLearners(self._environment)
        self._server: ReturningServer | None = None  # where tacit launch starts the server again
        self.server_hook_lock, self.server_is_process, self.server_models = host.hook_lock, host.is_process, host.models
        rows = (self._trace_rows, host.trace_rows)
        self.step = ProcessStep(self.rank, self.clock, self._trace, self.hook_lock, rows, self._raise_failure)
        self.network = ProcessNetwork(self)
        if live:
            self.network.live = LiveTimes(self.step, self.rank, self.size)
        self._causes = FailureCauses(self._environment, self.now_s)
        self._has_rounds = self.size > 1 and not (
            strategy.handles or strategy.has_server or strategy.keeps_models_apart
        )
        self._termination = TerminationSignal(waits_for_collective=self._has_rounds)
        self._environment.is_asked_to_end = lambda: self._termination.asked_s is not None
        if self.size > 1:
            try:
                self._connect(interface)
            except BaseException:
                if self.collectives is not None:
                    self.collectives.notices.close()
                self._termination.restore()
                raise

    def _connect(self, interface: str | None) -> None:
        """Find the other processes, and open groups and message endpoints."""
        lives = LaunchedLives(self._environment.store)
        regroups = may_regroup(self._strategy, lives)
        if lives.is_elastic and not (self._has_rounds or regroups):
            self._participants = self._take_part(lives)
            if self.server_is_process and SERVER_SEAT in os.environ:
                self._server = ReturningServer(lives)
        if self._participants is not None:
            self._life, self._peers_return = lives.life, True
        found = rendezvous(
            self._environment,
            device=self._device,
            interface=interface,
            waits_for_server=self.server_is_process,
            settings={"tacit": tacit_version(), "strategy": str(self._strategy)},
        )
        self.address, self._backend_name, self.network.hosts = found.address, found.backend, found.hosts
        is_elastic = regroups and found.backend == "gloo"
        if is_elastic:
            self._life, self._peers_return = lives.life, True
            self._causes.liveness = LaunchedLiveness(self._environment, lives)
        else:
            self._causes.liveness = self._participants or Liveness(self._environment, self.address)
        self.collectives = collectives = Collectives(
            self._environment,
            self._causes,
            self._termination,
            self.hook_lock,
            self._timeout,
            address=self.address,
            backend=found.backend,
            now_s=self.now_s,
            participants=self._participants,
        )
        collectives.start(membership_of(self._environment, lives, collectives, self.address) if is_elastic else None)
        if self._participants is not None and not self._joins:
            self._environment.has_ended = self._participants.is_gone  # in attach no worker waits for its next life
        if self.membership is not None:
            self.membership.means = self.step
        if self._participants is not None:
            self.start_exchange = ProcessStartExchange(
                self._participants,
                self.now_s,
                lambda: collectives.exchanges,
                lambda missed: setattr(collectives, "exchanges", missed),
            )
        if may_send(self._strategy):  # at once: a message may arrive before this rank sends or receives one
            self._security = self._security or ("token" if found.is_local else "curve")
            self.endpoint = self._open_endpoint(self.rank, self.hook_lock, self._trace_rows)
            if self._strategy.has_server and self._joins:
                self.endpoint.check_wait = lambda peer, waited_s: self._end_if_late()
            if self.start_exchange is not None:
                self.start_exchange.endpoint = self.endpoint
            if self.membership is not None and self._strategy.keeps_models_apart:
                self.membership.watch(self.endpoint)
            if self._host.is_here:
                self._host.endpoint = self._open_endpoint(
                    server_address(self.rank), self._host.hook_lock, self._host.trace_rows
                )

    def _take_part(self, lives: LaunchedLives) -> Participants:
        """Take part in the run, or join it if it is on; end it if it has lost its server, or all its models."""
        has_server = self._strategy.has_server
        while (participants := Participants(self._environment, lives, has_server=has_server)).joins:
            lost = [server_address(self.rank), self.rank]  # the server was in an earlier life of this worker
            if not self._host.is_here:
                try:
                    participants.raise_if_over()
                    break
                except NobodyLeft as error:
                    lost = [*error.seats]
            publish_cause(self._environment, Cause(LOST, lost))
            self._environment.skip_ended_runs()
        if participants.joins and not takes_joiners(self._strategy):
            raise TacitError(
                f"this run has begun, and {self._strategy} admits no worker during a run; the others continue "
                f"without worker {self.rank}."
            )
        return participants

    @property
    def _joins(self) -> bool:
        """Whether the run is on, and this process has yet to join it."""
        return self._participants is not None and self._participants.joins

    def _end_if_late(self) -> None:
        """Raise ``RunIsOver`` in a process that has yet to join a run whose last learners are decided."""
        if self._joins and self._last_learners.are_decided:
            _log.warning("worker %d has come back after the last update: the run is over without it.", self.rank)
            raise RunIsOver

    def _open_endpoint(self, address: int, hook_lock: HookLock, rows: EventQueue) -> MessageEndpoint:
        """Return a message endpoint at ``address`` that appends its events to ``rows``."""
        from tacit.runtime.messaging.endpoint import MessageEndpoint

        peers = [*range(self.size), *(server_address(shard) for shard in range(shards_of(self._strategy)))]

        def sent(to: int, message: Message, size_bytes: int) -> None:
            if isinstance(message, _UNCOUNTED):
                return
            rows.send(address, to, self.now_s(), size_bytes, message.kind)

        stamp_s = self.clock.stamp_s if address == self.rank else EventClock(self.now_s)

        def received(source: int, message: Message) -> None:
            if isinstance(message, _UNCOUNTED) and not isinstance(message, ClockTime):
                return
            now_s = stamp_s()
            if address < 0:
                self._host.received_s = now_s
            rows.receive(address, source, now_s, message.size_bytes, message.kind)

        assert self._security is not None
        return MessageEndpoint(
            address,
            peers,
            self._environment.store,
            host=self.address,
            security=self._security,
            secret=find_secret(),
            hook_lock=hook_lock,
            handles=self._handled if address >= 0 else (),
            handler=self._handle,
            sent=sent,
            received=received,
            timeout_s=self._timeout.timeout_s,
            largest_bytes=self._largest_bytes,
            life=self._life,
            peers_return=self._peers_return,
            is_stopped=None if self._participants is None else self._is_stopped,
        )

    def _is_stopped(self, peer: int) -> bool:
        """Whether the process of a worker, or the one of a worker with a server, is stopped or cut off."""
        if self._participants is None or (peer < 0 and self.server_is_process):
            return False
        return self._participants.is_silent(shard_at(peer) if peer < 0 else peer)

    def explained(self, lost: PeerLost) -> PeerLost:
        """Return ``lost`` with the worker whose process has stopped together with its server."""
        if lost.rank >= 0 or not self._is_stopped(lost.rank):
            return lost
        ranks = [lost.rank, shard_at(lost.rank)]
        return PeerLost(lost.rank, lost.at_s, lost.waiting_for, _WAY_OUT, _STOPPED, need="needs it", ranks=ranks)

    # Steps and trace.

    def _raise_failure(self) -> None:
        """Raise the error that has ended the run, if there is one: SIGTERM, or a failed endpoint or server."""
        if self._termination.asked_s is not None:
            self._end_on_termination()
        if self.endpoint is not None:
            self.endpoint.raise_if_failed()

    def _end_on_termination(self) -> None:
        """Raise if SIGTERM has arrived and the run ends with this step."""
        if self.collectives is not None:
            self.collectives.end_on_termination(at_collective=False)
        elif self._termination.is_due(at_collective=False):
            raise Interrupted("terminated (SIGTERM)")

    def restore_trace(self, rows: list[PlainEvent]) -> None:
        self._trace.rows[:0] = rows
        self.network.count_rounds(rows)

    @property
    def trace(self) -> Trace:
        self.step.collect_rows()
        return self._trace

    def record_exchange(self, started_s: float, label: str, round: int, size_bytes: int) -> None:
        """Add an exchange of this rank that ends now."""
        self.step.exchanged(started_s, self.clock.stamp_s(), label, round, size_bytes)

    def record_wait(self, started_s: float, label: str) -> None:
        """Add a wait of this rank that ends now."""
        self.step.waited(started_s, self.clock.stamp_s(), label)

    @property
    def live_round(self) -> LiveRound | None:
        return None if self.network.live is None else self.network.live.latest

    @property
    def totals(self) -> Totals:
        step = self.step
        return Totals(step.computed, step.compute_s, step.hook_s, step.sent_bytes)

    def facts(self) -> dict[str, Any]:
        return {"machine": machine(), "backend": self._backend_name, **process_facts(self._device)}

    def drain(self) -> None:
        self.step.drain_means()
        if self.endpoint is not None and not self._strategy.has_server:
            self._drain_messages(self.endpoint)

    def _drain_messages(self, endpoint: MessageEndpoint) -> None:
        """Let the messages that travel now arrive, and set the stopped clock to the arrival of the last one."""
        sent_by_me = {f"{rank}/{life}": count for (rank, life), count in endpoint.sent.items()}
        stopped_s, counts = self.now_s(), self.all_gather(json.dumps(sent_by_me).encode())
        me = f"{self.rank}/{self._life}"
        sent = {rank: json.loads(data).get(me, 0) for rank, data in enumerate(counts) if data}
        last_s = self.clock.at_s(endpoint.wait_for_arrival(sent))
        if last_s > stopped_s:
            self.clock.set(last_s)
            self._trace.wait(self.rank, stopped_s, last_s, "evaluation")

    # Handlers.

    @property
    def handles(self) -> tuple[type[Message], ...]:
        """The message kinds that the strategy's handler receives."""
        return self._strategy.handles

    @property
    def is_handling(self) -> bool:
        return self.hook_lock.is_handling

    def listen(self, session: Session, handler: Callable[[int, Message], None]) -> None:
        self._handler = handler
        if self.collectives is not None and not self._has_rounds:
            has_server = self._strategy.has_server
            self.collectives.skips_lost = self.membership is None and (self._strategy.skips_lost_workers or has_server)
            self.collectives.skips_failed = has_server
            self._causes.watch(lambda: self._termination.asked_s is not None, self._fail_endpoints)
        if self.endpoint is not None:
            self.endpoint.start_handling()

    def _fail_endpoints(self, cause: Cause) -> None:
        """Let the server, and hooks that wait for messages, raise the error for which the run ends."""
        assert self.endpoint is not None
        failure = self._causes.error_of(cause, "this run", self._timeout.timeout_s)
        self._host.fail(failure)
        self.endpoint.fail(failure)

    @property
    def _handled(self) -> tuple[type[Message], ...]:
        return self._strategy.handles if self.start_exchange is None else (*self._strategy.handles, StateRequest)

    def _handle(self, source: int, message: Message) -> None:
        assert self._handler is not None
        if self.start_exchange is not None and isinstance(message, StateRequest):
            self.start_exchange.take_request(source, message.life)
        else:
            self._handler(source, message)

    # The server.

    def start_server(self, loop: ServerLoop | None, model: ServerModel | None, steps: int | None, seed: int) -> None:
        if loop is not None and model is not None:
            assert self.endpoint is not None
            self._host.start(loop, model, self.size, steps, seed, now_s=self.now_s, failed=self.endpoint.fail)

    def send_initial_model(self, model: Tensor) -> None:
        assert self.endpoint is not None
        if self._is_late:  # an earlier life has sent it
            return
        self._host.send_initial_model(model, self.now_s(), self.endpoint)

    def server_has_returned(self) -> bool:
        """Wait for the next life of the server, whose connection has broken; return False if there will be none."""
        if self._server is None or self.endpoint is None:
            self._end_if_late()
            return False
        endpoint, server = self.endpoint, self._server
        with self.hook_lock.released():
            has_returned = server.wait(endpoint, self._run_ends, self._timeout.timeout_s)
        self._end_if_late()
        return has_returned

    def _run_ends(self) -> bool:
        is_late = self._joins and self._last_learners.are_decided
        return is_late or self._termination.asked_s is not None or self._causes.cause() is not None

    def join_server(self) -> Tensor | None:
        assert self.endpoint is not None and self.collectives is not None
        notices = self.collectives.notices
        notices.begin_message("the server's last update", self.endpoint.peers, may_be_handled=True)
        try:
            part = self._host.join(self._last_learners)
            with self.hook_lock.released():
                lives = self._last_learners.wait(
                    self.endpoint, self._timeout.timeout_s, lambda: self._is_stopped(SERVER)
                )
            self._end_unless_in(lives)
            result = self._receive_result(self.endpoint, lives)
        except TimedOut as error:
            raise notices.time_out_of(error) from None
        except PeerLost as error:  # possibly a consequence of the run's end
            raise self.collectives.error_with_cause(self.explained(error), "the last model") from error
        finally:
            notices.end()
        self.collectives.begin_last(lives)
        return result if part is None else part

    def _end_unless_in(self, lives: Mapping[int, int]) -> None:
        """Raise ``PeerLost`` if this process is not one of the last learners, whose ``lives`` are given by rank."""
        if lives.get(self.rank) != self._life:
            way_out = "the other workers continue without it."
            raise PeerLost(self.rank, self.now_s(), "the last model", way_out, need="is given to the others")

    def _receive_result(self, endpoint: MessageEndpoint, lives: Mapping[int, int]) -> Tensor | None:
        """Receive the result of a server process if this is the first of the last learners.

        If that fails the run ends for all: the server has decided that it is over.
        """
        assert self.collectives is not None
        try:
            return self._host.receive_result(endpoint, lives)
        except PeerLost as error:
            raise self.collectives.lost_for_good([SERVER]) from error

    # Exchanges among sessions, not counted as traffic.

    def agree(self, own: dict[str, Any]) -> None:
        if self.collectives is None:
            return
        if self._joins or self.joins:
            self._is_late = self._joins
            compare_with_members(self._environment, own)
            return
        agree(self._environment, own)
        self.collectives.broadcast(torch.zeros(1), 0)  # all ranks have arrived

    def start_clock(self) -> None:
        if self.collectives is not None and not (self._joins or self.joins):
            self.collectives.mean(torch.zeros(1))  # all ranks have arrived
            if self._participants is not None:
                self._participants.begin()
        self._timeout.start()
        if self.membership is not None:
            self.membership.start_clock()
        self.clock.start()
        if self._start_exchanges:
            begins, ends, sent = zip(*self._start_exchanges, strict=True)
            self._trace.start(self.rank, self.clock.at_s(begins[0]), self.clock.at_s(ends[-1]), sum(sent))
        self._start_exchanges.clear()

    def publish(self, name: str, value: Any) -> None:
        self._environment.publish(name, value)

    def published(self, name: str) -> list[Any]:
        return self._environment.published(name)

    def all_gather(self, data: bytes) -> list[bytes]:
        return [data] if self.collectives is None else self.collectives.exchange(data)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        if self.collectives is None or self._joins or self.joins:  # a joiner gets the model later
            return
        begun_s = time.perf_counter()
        self.collectives.broadcast(tensor, source)
        if not self.clock.is_started:
            sent = tree_broadcast_bytes(tensor.numel() * tensor.element_size(), source, self.size)[self.rank]
            self._start_exchanges.append((begun_s, time.perf_counter(), sent))

    def mean(self, tensor: Tensor) -> Tensor:
        return tensor.clone() if self.collectives is None else self.collectives.mean(tensor)

    @property
    def live_ranks(self) -> Sequence[int]:
        return (0,) if self.collectives is None else self.collectives.living

    @property
    def membership(self) -> Membership | None:
        return None if self.collectives is None else self.collectives.membership

    @property
    def joins(self) -> bool:
        """Whether the run is on, and this process has not got its model yet."""
        return self.membership is not None and not self.membership.holds

    # The end.

    def abort(self, failure: BaseException) -> None:
        if self.collectives is not None:  # a server continues without a learner that failed
            self.collectives.end(failure, ends_run=self._ends_run(failure))

    def _ends_run(self, failure: BaseException) -> bool:
        """Whether all workers end because of ``failure``: a server continues without a learner that failed."""
        if self._joins:
            return isinstance(failure, NobodyLeft)
        if self._participants is not None and not self._participants.has_begun:
            return True  # it needs every worker to begin
        is_learner = self._strategy.has_server and not self._host.is_here
        if is_learner and self._participants is not None and isinstance(failure, TimedOut):
            return False  # the server has gone on without this learner, which was cut off, or ends by its own time-out
        if self._participants is not None and self._hears_nobody(failure):
            return False  # it was cut off, and the others have gone on
        if self._participants is None or not isinstance(failure, PeerLost):
            return not is_learner or isinstance(failure, RunError | Interrupted)
        if not is_learner:
            return failure.rank != self.rank
        if failure.reason == _STOPPED:  # the process with the server
            return True
        # The server has gone on without this learner if it is there.
        if failure.rank >= 0:
            return False
        if self._server is not None:
            return self._server.is_gone()
        return self.server_is_process or self._participants.will_be_gone(shard_at(failure.rank))

    def _hears_nobody(self, failure: BaseException) -> bool:
        """Whether no other worker has answered, of two or more."""
        others = {*range(self.size)} - {self.rank}
        return isinstance(failure, TimedOut) and len(others) > 1 and others <= {*failure.missing}

    @property
    def failure_name(self) -> str | None:
        return None if self._causes.liveness is None else self._causes.liveness.run_name

    def is_gone(self, rank: int) -> bool:
        return self._causes.liveness is not None and self._causes.liveness.is_gone(rank)

    def close(self, failure: BaseException | None) -> None:
        if self.collectives is not None:
            self.collectives.notices.close()
        self._causes.leave()
        self.step.collect_rows()
        if failure is None and self.collectives is not None and (self._has_rounds or self.endpoint is None):
            self.collectives.last_barrier()
        if self.endpoint is not None:
            self.endpoint.close(after_failure=isinstance(failure, RunError))
            self._host.close(failure)
        if self.membership is not None:
            self.membership.close(run_is_over=failure is None)
        if self.collectives is not None:
            self.collectives.close_groups()
        self._causes.close()
        self._termination.restore()
