"""The stage of a session on real processes: clock, trace, groups, agreement, and what happens when somebody is lost."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from tacit.errors import Disagreement, Interrupted, PeerLost, RunError, TacitError, TimedOut
from tacit.messages import Message, TensorMessage
from tacit.network import SERVER, server_address
from tacit.runtime.environment import Environment, gpu, machine, own_address, way_to
from tacit.runtime.groups import Group
from tacit.runtime.monitor import Monitor
from tacit.runtime.patience import Patience
from tacit.runtime.ports import Mean, ProcessNetwork
from tacit.session import Session
from tacit.session.agreement import first_difference
from tacit.session.history import unpacked
from tacit.session.server_model import KeptModel, ServerLife, ServerModel, unpacked_models
from tacit.strategies.strategy import Strategy
from tacit.trace import CANCELLED, COMPUTE, RECEIVE, SEND, PlainEvent, Trace

if TYPE_CHECKING:  # a run without messages needs no zmq
    from tacit.runtime.post import Post
    from tacit.runtime.server import ProcessServer

_log: Final = logging.getLogger("tacit")
_ROLL_CALL_S: Final = 3.0
"""How long survivors wait for each other's sign of life before they call the others lost."""
_TERMINATION_S: Final = 10.0
"""How long after SIGTERM a step boundary without a collective is good enough: torchrun kills after 30 seconds."""


class ProcessStage:
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
        self.server_is_apart, self.server_kept = strategy.has_server and server == "apart", list[KeptModel]()
        self.rank, self.size = self._environment.rank, self._environment.size
        self._trace, self.monitor, self.server_monitor, self.total_weight = Trace(), Monitor(), Monitor(), 0.0
        self._is_computing = True  # a gradient, as opposed to being in the optimizer's step
        self.boundaries = 0  # steps completed: what may change only between steps looks at this
        self.under_way: list[Mean] = []
        self._patience = Patience(timeout_s)
        self._origin_s, self._since_s = time.perf_counter(), 0.0
        self._stopped_s: float | None = None  # what the clock shows while it stands still
        self._groups: dict[tuple[int, ...], Group] = {}
        self._device, self._strategy, self._security = device, strategy, security
        self._handler: Callable[[int, Message], None] | None = None
        self.post: Post | None = None
        self._server_post: Post | None = None
        self._server: ProcessServer | None = None
        self._mail: deque[PlainEvent] = deque()  # messages, written down by whatever thread sends or reads them
        self._server_mail: deque[PlainEvent] = deque()
        self.network = ProcessNetwork(self)
        self._terminated_s: float | None = None  # when SIGTERM came
        self._restore_signal = self._catch_termination()
        if self.size > 1:
            try:
                self._meet(interface)
            except BaseException:
                self._restore_signal()
                raise

    def _meet(self, interface: str | None) -> None:
        """Find the others, and open groups and post with them."""
        environment, is_cuda = self._environment, self._device.type == "cuda"
        mine = {"machine": machine(), "gpu": gpu() if is_cuda else None, "interface": interface}
        environment.publish("place", mine)
        if self.server_is_apart and self.rank == 0:
            _log.info("waiting for the server: tacit serve … --master %s --workers %d", environment.master, self.size)
        places = environment.gather("place", range(self.size + self.server_is_apart))
        is_local = len({place["machine"] for place in places}) == 1 and not any(place["interface"] for place in places)
        self.address = "127.0.0.1" if is_local else self._address_between_machines(interface)
        gpus = [(place["machine"], place["gpu"]) for place in places]
        has_own_gpus = is_cuda and len(set(gpus)) == self.size and dist.is_nccl_available()
        self.backend = "nccl" if has_own_gpus else "gloo"
        self.control = self._open("control", tuple(range(self.size)), "gloo")
        self.group(tuple(range(self.size)))
        if self._strategy.sends or self._strategy.handles or self._strategy.has_server:
            self._security = self._security or ("token" if is_local else "curve")
            self.post = self._open_post(self.rank, self.monitor, self._mail)
            if self._strategy.has_server and self.rank < self._strategy.shards and not self.server_is_apart:
                self._server_post = self._open_post(server_address(self.rank), self.server_monitor, self._server_mail)

    def _address_between_machines(self, interface: str | None) -> str:
        """Return the IP by which the others reach this process; a machine that sees the master at loopback asks its way to another one."""
        own = own_address(interface)
        self._environment.publish("address", own)
        offered = [address for address in self._environment.gather("address") if address is not None]
        if own is None and not offered:
            raise TacitError(
                "every machine sees the master at loopback; name the network interface with interface=… at tacit.attach."
            )
        return own or way_to(offered[0])

    def _open(self, name: str, ranks: tuple[int, ...], backend: str) -> Group:
        store = self._environment.store
        return Group(store, f"{name}/{ranks}", list(ranks), self.rank, address=self.address, backend=backend)

    def _open_post(self, address: int, monitor: Monitor, mail: deque[PlainEvent]) -> Post:
        from tacit.runtime.post import Post

        shards = self._strategy.shards if self._strategy.has_server else 0
        peers = [*range(self.size), *(server_address(shard) for shard in range(shards))]

        def sent(to: int, message: Message, size_bytes: int) -> None:
            now_s = self.now_s()
            mail.append((now_s, address, SEND, now_s, 0, 0, to, size_bytes, 0.0, message.kind))

        def received(source: int, message: Message) -> None:
            now_s = self.now_s()
            mail.append((now_s, address, RECEIVE, now_s, 0, 0, source, message.size_bytes, 0.0, message.kind))

        assert self._security is not None
        return Post(
            address, peers, self._environment.store, host=self.address, security=self._security, monitor=monitor,
            handles=self._strategy.handles if address >= 0 else (), handler=self._handle, sent=sent, received=received,
            timeout_s=self._patience.timeout_s,
        )  # fmt: skip

    def group(self, ranks: tuple[int, ...]) -> Group:
        """Return the group of ``ranks``, opened by its members when they first meet in it."""
        if ranks not in self._groups:
            with self.monitor.released():
                self._groups[ranks] = self._open("strategy", ranks, self.backend)
        return self._groups[ranks]

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

    def compute(self, step: int, is_dropped: bool = False) -> None:
        if self._terminated_s is not None:
            self.end_on_termination(at_collective=False)
        if self.post is not None:
            self.post.raise_if_failed()
        if self._server is not None and self._server.failure is not None:
            raise self._server.failure
        self._is_computing = False
        now_s = self.now_s()
        kind = CANCELLED if is_dropped else COMPUTE
        self._trace.rows.append((now_s, self.rank, kind, self._since_s, step, 0, -2, 0, 0.0, ""))
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

    def record(self, kind: str, started_s: float, **rest: Any) -> None:
        self._trace.record(kind, self.rank, started_s, self.now_s(), **rest)

    # Handlers.

    @property
    def is_handling(self) -> bool:
        return self.monitor.is_handling

    def abandon(self) -> bool:
        """The backward pass under way goes on to its end, and the session drops its gradient; in a hook there is none under way."""
        return self._is_computing

    def listen(self, session: Session, handler: Callable[[int, Message], None]) -> None:
        self._handler = handler
        if self.post is not None:
            self.post.start_handling()

    def _handle(self, source: int, message: Message) -> None:
        assert self._handler is not None
        self._handler(source, message)

    # The server.

    def start_server(self, life: ServerLife | None, model: ServerModel | None, steps: int | None, seed: int) -> None:
        if life is None or model is None:
            return
        from tacit.runtime.server import ProcessServer

        assert self._server_post is not None and self.post is not None
        self._server = ProcessServer(
            self._server_post,
            self.server_monitor,
            model,
            self.size,
            steps,
            seed,
            self.now_s,
            self._server_mail,
            self.post.fail,
        )
        self._server.start(life)

    def send_start(self, model: Tensor) -> None:
        if self.rank == 0:
            assert self.post is not None
            self.post.send(SERVER, TensorMessage(model))

    def join_server(self) -> Tensor | None:
        if self._server is not None:
            return self._server.join()
        return self._remains() if self.server_is_apart and self.rank == 0 else None

    def _remains(self) -> Tensor:
        """Take what a server apart leaves behind."""
        from tacit.runtime.apart import Remains

        assert self.post is not None
        _, left = self.post.receive(Remains, source=SERVER)
        self._server_mail.extend(unpacked(left.record)[0])
        self.server_kept = unpacked_models(left.kept)
        return left.parameters

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

    def exchange(self, data: bytes) -> list[bytes]:
        return [data] if self.size == 1 else self.exchange_bytes(self.control, data, "exchange of states")

    def exchange_bytes(self, members: Group, data: bytes, what: str) -> list[bytes]:
        """Return every member's bytes, in the order of its ranks."""
        return self.swap_bytes(members, [data] * members.size, what)

    def swap_bytes(self, members: Group, given: Sequence[bytes], what: str) -> list[bytes]:
        """Give ``given[j]`` to the j-th member and return what every member gave to this one."""
        return members.swap(given, lambda work: self.wait_for(work, members, what))

    def spread(self, tensor: Tensor, source: int = 0) -> None:
        if self.size > 1:
            wire = tensor.detach().to("cpu").contiguous()
            self.wait_for(self.control.broadcast(wire, source), self.control, "broadcast of the model")
            tensor.copy_(wire)

    def mean(self, tensor: Tensor) -> Tensor:
        if self.size == 1:
            return tensor.clone()
        wire = tensor.detach().to("cpu", torch.promote_types(tensor.dtype, torch.float32), copy=True)
        self.wait_for(self.control.all_reduce(wire), self.control, "mean of the models")
        return wire.div_(self.size).to(tensor)

    # Waiting, and when it is in vain.

    def wait_for(self, work: dist.Work, members: Group, what: str) -> None:
        """Wait with the monitor released; turn what gloo throws into who is lost."""
        timeout_s = self._patience.timeout_s
        try:
            with self.monitor.released():
                work.wait(timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise self._explained(error, members, what, timeout_s) from error
        self._patience.collective_done(self.now_s())

    def _explained(self, error: RuntimeError, members: Group, what: str, timeout_s: float) -> RunError:
        """Find out who does not answer: survivors give a sign of life through the store, and look who else does."""
        at_s = self.now_s()
        missing = [rank for rank in self._roll_call() if rank in members.ranks]
        if "timed out" in str(error).lower() or "timeout" in str(error).lower():
            return TimedOut(what, missing, timeout_s)
        reasons = {rank: reason for rank, reason in self._environment.published("reason").items() if rank != self.rank}
        if reasons and not missing:
            missing = list(reasons)
        if not missing:
            return RunError(f"{what} failed although all workers answer: {error}")
        rank = missing[0]
        return self._lost(rank, what, at_s)

    def _lost(self, rank: int, what: str, at_s: float) -> PeerLost:
        told = self._environment.published("reason").get(rank)
        reason = (told or "its process ended without a word").rstrip(".")
        way_out = f"{reason}. Start the run again; it goes on from its checkpoint where it has one."
        return PeerLost(rank, at_s, what, way_out, told)

    def _roll_call(self) -> list[int]:
        """Return the ranks that give no sign of life."""
        environment = self._environment
        with contextlib.suppress(RuntimeError):
            environment.publish("alive", True)
        until_s = time.monotonic() + _ROLL_CALL_S
        answered = set(environment.published("alive")) | {self.rank}
        while len(answered) < self.size and time.monotonic() < until_s:
            time.sleep(0.02)
            answered |= set(environment.published("alive"))
        return [rank for rank in range(self.size) if rank not in answered]

    # SIGTERM: what torchrun sends to everybody once a worker has died, and what a scheduler sends.

    def _catch_termination(self) -> Callable[[], None]:
        """Let the step under way come to its end before the process does; return what puts the handler back."""
        is_ours = threading.current_thread() is threading.main_thread()
        if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return lambda: None
        signal.signal(signal.SIGTERM, self._terminate)

        def put_back() -> None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

        return put_back

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        if self._terminated_s is not None:  # asked twice: at once
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        self._terminated_s = time.monotonic()

    def end_on_termination(self, *, at_collective: bool) -> None:
        """End at the next collective, where all survivors stand at one step; at the next step boundary where none comes soon."""
        if self._terminated_s is None:
            return
        waits_for_collective = self.size > 1 and not (self._strategy.handles or self._strategy.has_server)
        if waits_for_collective and not at_collective and time.monotonic() - self._terminated_s < _TERMINATION_S:
            return
        at_s = self.now_s()
        missing = self._roll_call() if self.size > 1 else []
        if missing:
            raise self._lost(missing[0], "this run", at_s)
        raise Interrupted("terminated (SIGTERM)")

    # The end.

    def close(self, failure: BaseException | None) -> None:
        if failure is not None and self.size > 1:
            with contextlib.suppress(RuntimeError):
                if not isinstance(failure, PeerLost):
                    self._environment.publish("reason", f"{type(failure).__name__}: {failure}")
        self._take_mail()
        if self.post is not None:
            self.post.close()
            if self._server_post is not None:
                self._server_post.close()
        elif failure is None and self.size > 1:
            with contextlib.suppress(RuntimeError):  # nobody closes its sockets while another still reads from them
                self.control.all_reduce(torch.zeros(1)).wait(timedelta(seconds=30))
        for group in (*self._groups.values(), *([self.control] if self.size > 1 else [])):
            group.shut()
        self._groups.clear()
        self._restore_signal()
