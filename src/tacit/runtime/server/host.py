"""A worker's side of the server: it hosts the server or a shard, or exchanges models with a server process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
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
    from tacit.runtime.server.thread import ProcessServer


@dataclass(frozen=True)
class ServerResult(Message, wire="state"):
    """Result of a server process, sent to worker 0.

    Defined in a module that every worker imports: messages of unknown kinds are dropped.
    """

    parameters: Tensor
    record_bytes: int  # of the server's part of the trace
    kept_bytes: int  # of the intermediate models, as ``packed_models`` packs them
    lost: Tensor  # ranks of the learners that were lost
    lives: Tensor  # of all learners


@dataclass(frozen=True)
class ResultPart(Message, wire="part"):
    """A part of the trace and of the intermediate models, which follow a ``ServerResult``: no frame is too large."""

    content: bytes


_PART_BYTES: Final = 2**22


def send_result(endpoint: MessageEndpoint, parameters: Tensor, record: bytes, kept: bytes) -> None:
    """Send the result of a server process to worker 0."""
    lost = torch.tensor(endpoint.lost, dtype=torch.int64)
    lives = torch.tensor([endpoint.life_of(rank) for rank in endpoint.peers])
    endpoint.send(0, ServerResult(parameters, len(record), len(kept), lost, lives))
    content = record + kept
    for begin in range(0, len(content), _PART_BYTES):
        endpoint.send(0, ResultPart(content[begin : begin + _PART_BYTES]))


@dataclass(frozen=True)
class ClockTime(Message, wire="clock"):
    """Time of the run when it was sent: worker 0 sends it to a server process before the initial model."""

    time_s: float


@dataclass(frozen=True)
class Survivors(Message, wire="alive"):
    """Ranks that close the run together, sent by worker 0 when the server is done; not counted as traffic."""

    ranks: Tensor
    lives: Tensor


class ServerHost:
    """One worker's side of the server; does nothing if the strategy has no server.

    server: "rank0" (shards run in the processes of the first workers) or "process" (the server has its own process).
    """

    def __init__(self, strategy: Strategy[Any], rank: int, *, server: str) -> None:
        self._rank, self._shards, self._lost = rank, shards_of(strategy), set[int]()
        self._lives: list[int] = []  # of all learners, as the server knows them
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

    def join(self, endpoint: MessageEndpoint) -> Tensor | None:
        """Wait until the server is done; return its model, or the shard's part.

        Return None if this worker neither hosts a server nor receives the result of a server process.
        """
        if self._server is not None:
            assert self.endpoint is not None
            part = self._server.join()
            self._lost.update(rank for rank in self.endpoint.lost if rank >= 0)
            self._lives = [self.endpoint.life_of(rank) for rank in self.endpoint.peers if rank >= 0]
            return part
        return self._receive_result(endpoint) if self.is_process and self._rank == 0 else None

    def _receive_result(self, endpoint: MessageEndpoint) -> Tensor:
        """Receive the result of a server process; return its model."""
        _, result = endpoint.receive(ServerResult, source=SERVER)
        content = bytearray()
        while len(content) < result.record_bytes + result.kept_bytes:
            content += endpoint.receive(ResultPart, source=SERVER)[1].content
        self.trace_rows.extend(unpacked(bytes(content[: result.record_bytes]))[0])
        self.models.extend(unpacked_models(bytes(content[result.record_bytes :])))
        self._lost.update(result.lost.tolist())
        self._lives = result.lives.tolist()
        return result.parameters

    def survivors(self, endpoint: MessageEndpoint, has_returned: Callable[[], bool]) -> dict[int, int]:
        """Return the ranks that the first server has not lost, with their lives. Call after ``join``.

        Worker 0 sends them to the others. has_returned: waits for the next life of worker 0, if there will be one.
        """
        while self._rank != 0:
            try:
                received = endpoint.receive(Survivors, source=0)[1]
                return dict(zip(received.ranks.tolist(), received.lives.tolist(), strict=True))
            except PeerLost as lost:
                if has_returned():
                    continue
                way_out = "start the run again; the server resumes from its checkpoint if it wrote one."
                need = "passes through that worker"
                raise PeerLost(lost.rank, lost.at_s, "the last model", way_out, need=need) from None
        ranks = [rank for rank in endpoint.peers if rank >= 0 and rank not in self._lost]
        for shard in range(0 if self.is_process else self._shards):
            if shard not in ranks:
                raise PeerLost(
                    shard, 0.0, f"shard {shard} of the model", "start the run again.", need="was in its process"
                )
        lives = [self._lives[rank] for rank in ranks]
        for rank in ranks[1:]:
            endpoint.send(rank, Survivors(torch.tensor(ranks), torch.tensor(lives)))
        return dict(zip(ranks, lives, strict=True))

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
