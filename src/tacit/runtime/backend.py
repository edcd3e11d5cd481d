"""The stage of a session on real processes: clock and trace, groups and post, and exchanges among sessions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tacit.core.messages import Message
from tacit.core.network import server_address
from tacit.core.strategy import Strategy, shards_of
from tacit.errors import Disagreement, Interrupted, RunError
from tacit.record.trace import EventQueue, PlainEvent, Trace
from tacit.runtime.collectives import Collectives
from tacit.runtime.environment import Environment
from tacit.runtime.failures.causes import Cause, FailureCauses
from tacit.runtime.failures.liveness import Liveness
from tacit.runtime.failures.signals import TerminationSignal
from tacit.runtime.failures.timeouts import AdaptiveTimeout
from tacit.runtime.messaging.hook_lock import HookLock
from tacit.runtime.network import Mean, ProcessNetwork
from tacit.runtime.rendezvous import meet
from tacit.runtime.server.host import ServerHost, Survivors
from tacit.session import Session
from tacit.session.agreement import first_difference
from tacit.session.server_model import ServerLife, ServerModel
from tacit.strategies import may_send

if TYPE_CHECKING:  # a run without messages needs no zmq
    from tacit.runtime.messaging.endpoint import MessageEndpoint


class EventClock:
    """A clock whose every reading is later than the one before: the order of an endpoint's events can be told even
    while its clock stands still.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s, self._last_s = now_s, -1.0

    def __call__(self) -> float:
        self._last_s = max(self._now_s(), self._last_s + 1e-9)
        return self._last_s


class ProcessBackend:
    """One process among ``size``."""

    world = "processes"

    def __init__(
        self,
        strategy: Strategy[Any],
        *,
        device: torch.device,
        interface: str | None = None,
        security: str | None = None,
        timeout_s: float | None = None,
        attach_timeout_s: float = 300.0,
        server: str = "beside",
    ) -> None:
        self._environment = Environment(attach_timeout_s)
        self.rank, self.size = self._environment.rank, self._environment.size
        self._trace, self.hook_lock, self.total_weight = Trace(), HookLock(), 0.0
        self._is_computing = True  # a gradient, as opposed to being in the optimizer's step
        self.boundaries = 0  # steps completed: what may change only between steps looks at this
        self.under_way: list[Mean] = []
        self._patience = AdaptiveTimeout(timeout_s)
        self._origin_s, self._since_s = time.perf_counter(), 0.0
        self._stopped_s: float | None = None  # what the clock shows while it stands still
        self.stamp_s = EventClock(self.now_s)
        self.collectives: Collectives | None = None  # of a process that is not alone
        self._device, self._strategy, self._security = device, strategy, security
        self._handler: Callable[[int, Message], None] | None = None
        self.endpoint: MessageEndpoint | None = None
        self._mail = EventQueue()  # messages, written down by whatever thread sends or reads them
        self._host = host = ServerHost(strategy, self.rank, server=server)
        self.server_hook_lock, self.server_is_apart, self.server_kept = host.hook_lock, host.is_apart, host.kept
        self._server_mail = host.mail
        self.network = ProcessNetwork(self)
        self._endings = FailureCauses(self._environment, self.now_s)
        self._has_rounds = self.size > 1 and not (
            strategy.handles or strategy.has_server or strategy.keeps_models_apart
        )
        self._termination = TerminationSignal(waits_for_collective=self._has_rounds)
        if self.size > 1:
            try:
                self._meet(interface)
            except BaseException:
                if self.collectives is not None:
                    self.collectives.notices.close()
                self._termination.put_back()
                raise

    def _meet(self, interface: str | None) -> None:
        """Find the others, and open groups and post with them."""
        rendezvous = meet(
            self._environment, device=self._device, interface=interface, waits_for_server=self.server_is_apart
        )
        self.address = rendezvous.address
        self._endings.liveness = Liveness(self._environment, self.address)
        self.collectives = Collectives(
            self._environment,
            self._endings,
            self._termination,
            self.hook_lock,
            self._patience,
            address=self.address,
            backend=rendezvous.backend,
            now_s=self.now_s,
        )
        if may_send(self._strategy):  # now and by all: a message may come before this rank sends or receives one
            self._security = self._security or ("token" if rendezvous.is_local else "curve")
            self.endpoint = self._open_post(self.rank, self.hook_lock, self._mail)
            if self._host.is_here:
                self._host.endpoint = self._open_post(server_address(self.rank), self._host.hook_lock, self._host.mail)

    def _open_post(self, address: int, hook_lock: HookLock, mail: EventQueue) -> MessageEndpoint:
        from tacit.runtime.messaging.endpoint import MessageEndpoint

        peers = [*range(self.size), *(server_address(shard) for shard in range(shards_of(self._strategy)))]

        def sent(to: int, message: Message, size_bytes: int) -> None:
            if isinstance(message, Survivors):
                return
            mail.send(address, to, self.now_s(), size_bytes, message.kind)

        stamp_s = self.stamp_s if address == self.rank else EventClock(self.now_s)

        def received(source: int, message: Message) -> None:
            if isinstance(message, Survivors):
                return
            now_s = stamp_s()
            if address < 0:
                self._host.received_s = now_s
            mail.receive(address, source, now_s, message.size_bytes, message.kind)

        assert self._security is not None
        return MessageEndpoint(
            address,
            peers,
            self._environment.store,
            host=self.address,
            security=self._security,
            hook_lock=hook_lock,
            handles=self._strategy.handles if address >= 0 else (),
            handler=self._handle,
            sent=sent,
            received=received,
            timeout_s=self._patience.timeout_s,
        )

    # Clock and trace.

    def now_s(self) -> float:
        return time.perf_counter() - self._origin_s if self._stopped_s is None else self._stopped_s

    def set_clock(self, time_s: float) -> None:
        if self._stopped_s is not None:
            self._stopped_s = time_s
        self._origin_s = time.perf_counter() - time_s
        self._since_s = time_s

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        if self._stopped_s is not None:  # somebody has stopped it already, and will let it go on
            yield
            return
        self._stopped_s = self.now_s()
        try:
            yield
        finally:
            stopped_s, self._stopped_s = self._stopped_s, None
            self.set_clock(stopped_s)

    def compute(self, step: int) -> None:
        if self._termination.asked_s is not None:
            self._end_on_termination()
        if self.endpoint is not None:
            self.endpoint.raise_if_failed()  # the server's failure too

    def _end_on_termination(self) -> None:
        """SIGTERM has come: raise if the end of this step is the moment to end."""
        if self.collectives is not None:
            self.collectives.end_on_termination(at_collective=False)
        elif self._termination.is_due(at_collective=False):
            raise Interrupted("terminated (SIGTERM)")

    def landed(self, step: int, is_dropped: bool) -> None:
        self._is_computing = False
        now_s = self.stamp_s()
        add = self._trace.cancelled if is_dropped else self._trace.compute
        add(self.rank, step, self._since_s, now_s)
        self._since_s = now_s

    def hooked(self) -> None:
        self._since_s = self.now_s()

    def stepped(self) -> None:
        self.boundaries += 1
        for mean in self.under_way:
            mean.look()
        if self._mail or self._server_mail:
            self._take_mail()
        self._trace.pack_if_long()
        self._is_computing = True

    def take_trace(self, rows: list[PlainEvent]) -> None:
        self._trace.rows[:0] = rows
        self.network.count_rounds(rows)

    @property
    def trace(self) -> Trace:
        """All that has happened here so far, messages of other threads included."""
        self._take_mail()
        return self._trace

    def _take_mail(self) -> None:
        for mail in (self._mail, self._server_mail):
            while mail:
                self._trace.rows.append(mail.popleft())

    def record_exchange(self, started_s: float, label: str, round: int, size_bytes: int) -> None:
        self._trace.exchange(self.rank, started_s, self.stamp_s(), label, round, size_bytes)

    def record_wait(self, started_s: float, label: str) -> None:
        self._trace.wait(self.rank, started_s, self.stamp_s(), label)

    # Handlers.

    @property
    def handles(self) -> tuple[type[Message], ...]:
        """The kinds of messages that the strategy's handler gets."""
        return self._strategy.handles

    @property
    def is_handling(self) -> bool:
        return self.hook_lock.is_handling

    def abandon(self) -> bool:
        """The backward pass under way goes on to its end, and the session drops its gradient; in a hook there is none
        under way.
        """
        return self._is_computing

    def listen(self, session: Session, handler: Callable[[int, Message], None]) -> None:
        self._handler = handler
        if self.collectives is not None and not self._has_rounds:
            self.collectives.leaves_out_lost = self._strategy.skips_lost_workers
            self._endings.watch(lambda: self._termination.asked_s is not None, self._fail_posts)
        if self.endpoint is not None:
            self.endpoint.start_handling()

    def _fail_posts(self, cause: Cause) -> None:
        """The run ends: let hooks, which wait for messages rather than in rounds, and the server raise that."""
        assert self.endpoint is not None
        failure = self._endings.error_of(cause, "this run", self._patience.timeout_s)
        self._host.fail(failure)
        self.endpoint.fail(failure)

    def _handle(self, source: int, message: Message) -> None:
        assert self._handler is not None
        self._handler(source, message)

    # The server.

    def start_server(self, life: ServerLife | None, model: ServerModel | None, steps: int | None, seed: int) -> None:
        if life is not None and model is not None:
            assert self.endpoint is not None
            self._host.start(life, model, self.size, steps, seed, now_s=self.now_s, failed=self.endpoint.fail)

    def send_start(self, model: Tensor) -> None:
        assert self.endpoint is not None
        self._host.send_off(model, self.endpoint)

    def join_server(self) -> Tensor | None:
        assert self.endpoint is not None
        part = self._host.join(self.endpoint)
        survivors = self._host.survivors(self.endpoint)
        if self.collectives is not None:  # what is left to exchange, is left to them
            self.collectives.living = tuple(survivors)
        return part

    # Among sessions: uncounted.

    def agree(self, own: dict[str, Any]) -> None:
        if self.size == 1:
            return
        environment = self._environment
        environment.publish("table", own)
        [first] = environment.gather("table", [0])
        difference = first_difference(own, first)
        environment.publish("verdict", difference)
        for rank, found in enumerate(environment.gather("verdict")):
            if found is not None:
                what, theirs, expected = found
                raise Disagreement(what, theirs, expected, rank, at_attach=True)
        self.spread(torch.zeros(1))  # all have come so far: from here the clock runs
        self._origin_s = time.perf_counter()

    def publish(self, name: str, value: Any) -> None:
        self._environment.publish(name, value)

    def published(self, name: str) -> list[Any]:
        return self._environment.published(name)

    def exchange(self, data: bytes) -> list[bytes]:
        return [data] if self.collectives is None else self.collectives.exchange(data)

    def spread(self, tensor: Tensor, source: int = 0) -> None:
        if self.collectives is not None:
            self.collectives.spread(tensor, source)

    def mean(self, tensor: Tensor) -> Tensor:
        return tensor.clone() if self.collectives is None else self.collectives.mean(tensor)

    @property
    def living(self) -> Sequence[int]:
        return (0,) if self.collectives is None else self.collectives.living

    # The end.

    def leave(self, failure: BaseException) -> None:
        if self.collectives is not None:  # a server goes on without a learner that failed
            is_learner = self._strategy.has_server and not self._host.is_here
            self.collectives.end(failure, ends_run=not is_learner or isinstance(failure, RunError | Interrupted))

    @property
    def ending(self) -> str | None:
        return self._endings.name()

    def close(self, failure: BaseException | None) -> None:
        if self.collectives is not None:
            self.collectives.notices.close()
        self._endings.leave()
        self._take_mail()
        if failure is None and self.collectives is not None and (self._has_rounds or self.endpoint is None):
            self.collectives.last_barrier()
        if self.endpoint is not None:
            self.endpoint.close()
            self._host.close(failure)
        if self.collectives is not None:
            self.collectives.shut()
        self._endings.close()
        self._termination.put_back()
