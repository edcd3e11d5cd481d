"""A worker's side of the server: it hosts the server or a shard, or exchanges models with a server process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from tacit.core.messages import Message, TensorMessage
from tacit.core.network import SERVER
from tacit.core.strategy import Strategy, shards_of
from tacit.errors import PeerLost
from tacit.record.merge import unpacked
from tacit.record.trace import EventQueue
from tacit.runtime.messaging.hook_lock import HookLock
from tacit.session.server_model import KeptModel, ServerLoop, ServerModel, unpacked_models

if TYPE_CHECKING:  # a run without messages does not import zmq
    from tacit.runtime.messaging.endpoint import MessageEndpoint
    from tacit.runtime.server.last_learners import LastLearners
    from tacit.runtime.server.thread import ProcessServer


@dataclass(frozen=True)
class ServerResult(Message, wire="state"):
    """Result of a server process, sent to the first of the last learners.

    Defined in a module that every worker imports: messages of unknown kinds are dropped.
    """

    parameters: Tensor
    record_bytes: int  # of the server's part of the trace
    kept_bytes: int  # of the intermediate models, as ``packed_models`` packs them


@dataclass(frozen=True)
class ResultPart(Message, wire="part"):
    """A part of the trace and of the intermediate models, which follow a ``ServerResult``: no frame is too large."""

    content: bytes


_PART_BYTES: Final = 2**22


def send_result(endpoint: MessageEndpoint, to: int, parameters: Tensor, record: bytes, kept: bytes) -> None:
    """Send the result of a server process to worker ``to``."""
    endpoint.send(to, ServerResult(parameters, len(record), len(kept)))
    content = record + kept
    for begin in range(0, len(content), _PART_BYTES):
        endpoint.send(to, ResultPart(content[begin : begin + _PART_BYTES]))


@dataclass(frozen=True)
class ClockTime(Message, wire="clock"):
    """Time of the run when it was sent: worker 0 sends it to a server process before the initial model."""

    time_s: float


class ServerHost:
    """One worker's side of the server; does nothing if the strategy has no server.

    server: "rank0" (shards run in the processes of the first workers) or "process" (the server has its own process).
    """

    def __init__(self, strategy: Strategy[Any], rank: int, *, server: str) -> None:
        self._rank, self._shards = rank, shards_of(strategy)
        self.is_process = self._shards > 0 and server == "process"
        self.is_here = rank < self._shards and not self.is_process
        self.hook_lock = HookLock()
        self.trace_rows = EventQueue()  # messages, recorded by the threads that send and receive them
        self.models: list[KeptModel] = []  # intermediate models of a server process
        self.endpoint: MessageEndpoint | None = None  # of the server, if it runs here
        self.received_s = 0.0  # when the server received its last message, on the clock of the trace
        self._server: ProcessServer | None = None

    def start(
        self,
        loop: ServerLoop,
        model: ServerModel,
        size: int,
        steps: int | None,
        seed: int,
        *,
        now_s: Callable[[], float],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Start the server in its own thread; ``failed`` is called with the error if it fails."""
        from tacit.runtime.server.thread import ProcessServer

        assert self.endpoint is not None
        received_s = lambda: self.received_s  # noqa: E731
        self._server = ProcessServer(
            self.endpoint, self.hook_lock, model, size, steps, seed, now_s, received_s, self.trace_rows, failed
        )
        self._server.start(loop)

    def send_initial_model(self, model: Tensor, time_s: float, endpoint: MessageEndpoint) -> None:
        """Send the time of the run and the initial model to a server process, from worker 0 only."""
        if self._rank == 0:
            endpoint.send(SERVER, ClockTime(time_s))
            endpoint.send(SERVER, TensorMessage(model))

    def join(self, last: LastLearners) -> Tensor | None:
        """Wait until the server that runs here is done; return its model, or the shard's part; None if none runs here.

        The host of the first shard decides on the ``last`` learners.
        """
        if self._server is None:
            return None
        assert self.endpoint is not None
        part = self._server.join()
        if self._rank == 0:
            for shard in range(self._shards):
                if shard in self.endpoint.lost:
                    what = f"shard {shard} of the model"
                    raise PeerLost(shard, 0.0, what, "start the run again.", need="was in its process")
            last.decide(self.endpoint)
        return part

    def receive_result(self, endpoint: MessageEndpoint, lives: Mapping[int, int]) -> Tensor | None:
        """Receive the result of a server process on the first of the last learners; return its model, else None."""
        if not self.is_process or self._rank != min(lives):
            return None
        _, result = endpoint.receive(ServerResult, source=SERVER)
        content = bytearray()
        while len(content) < result.record_bytes + result.kept_bytes:
            content += endpoint.receive(ResultPart, source=SERVER)[1].content
        self.trace_rows.extend(unpacked(bytes(content[: result.record_bytes]))[0])
        self.models.extend(unpacked_models(bytes(content[result.record_bytes :])))
        return result.parameters

    def fail(self, failure: BaseException) -> None:
        """Let the server that runs here raise ``failure`` when it next sends or receives."""
        if self.endpoint is not None:
            self.endpoint.fail(failure)

    def close(self, failure: BaseException | None) -> None:
        """Close the server's endpoint once the server's thread has ended."""
        if self.endpoint is None:
            return
        if failure is not None:
            self.endpoint.fail(failure)
        if self._server is None or self._server.has_ended():
            self.endpoint.close()
