"""What a worker's process has to do with its strategy's server: it is host to the server or a shard of it, or sends off
one that is apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:  # a run without messages needs no zmq
    from tacit.runtime.messaging.endpoint import MessageEndpoint
    from tacit.runtime.server.thread import ProcessServer


@dataclass(frozen=True)
class ServerResult(Message, wire="state"):
    """What a server apart leaves behind.

    Known to every worker from the start: a kind that is not known yet is dropped.
    """

    parameters: Tensor
    record: bytes  # its part of the trace
    kept: bytes  # models on the way, as ``packed_models`` packs them
    lost: Tensor  # ranks of the learners that were lost


@dataclass(frozen=True)
class Survivors(Message, wire="alive"):
    """From worker 0 to the others when the server is done: the ranks that close the run together.

    Not part of the strategy's traffic.
    """

    ranks: Tensor


class ServerHost:
    """One worker's side of the server, wherever that lives; idle where the strategy has none."""

    def __init__(self, strategy: Strategy[Any], rank: int, *, server: str) -> None:
        self._rank, self._shards, self._lost = rank, shards_of(strategy), set[int]()
        self.is_apart = self._shards > 0 and server == "process"
        self.is_here = rank < self._shards and not self.is_apart
        self.hook_lock = HookLock()
        self.mail = EventQueue()  # messages, written down by whatever thread sends or reads them
        self.kept: list[KeptModel] = []  # what a server apart kept of its models on the way
        self.endpoint: MessageEndpoint | None = None  # the server's own, where one lives here
        self.received_s = 0.0  # when the server received its last message, as the trace has it
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
        """Let the server live in a thread of its own; ``failed`` is told if that goes wrong."""
        from tacit.runtime.server.thread import ProcessServer

        assert self.endpoint is not None
        received_s = lambda: self.received_s  # noqa: E731
        self._server = ProcessServer(
            self.endpoint, self.hook_lock, model, size, steps, seed, now_s, received_s, self.mail, failed
        )
        self._server.start(loop)

    def send_off(self, model: Tensor, endpoint: MessageEndpoint) -> None:
        """Give a server apart the model to start from; the first worker's is enough."""
        if self._rank == 0:
            endpoint.send(SERVER, TensorMessage(model))

    def join(self, endpoint: MessageEndpoint) -> Tensor | None:
        """Wait until the server is done and return its model, or the shard's part; None where neither is this worker's
        business.
        """
        if self._server is not None:
            assert self.endpoint is not None
            part = self._server.join()
            self._lost.update(self.endpoint.lost)
            return part
        return self._take_remains(endpoint) if self.is_apart and self._rank == 0 else None

    def _take_remains(self, endpoint: MessageEndpoint) -> Tensor:
        """Take what a server apart leaves behind."""
        _, left = endpoint.receive(ServerResult, source=SERVER)
        self.mail.extend(unpacked(left.record)[0])
        self.kept.extend(unpacked_models(left.kept))
        self._lost.update(left.lost.tolist())
        return left.parameters

    def survivors(self, endpoint: MessageEndpoint) -> list[int]:
        """Return the ranks that the first server has not lost. Worker 0 tells them to the others; after ``join``."""
        if self._rank != 0:
            try:
                return [int(rank) for rank in endpoint.receive(Survivors, source=0)[1].ranks]
            except PeerLost as lost:
                way_out = "start the run again; the server resumes from its checkpoint if it wrote one."
                need = "passes through that worker"
                raise PeerLost(lost.rank, lost.at_s, "the last model", way_out, need=need) from None
        ranks = [rank for rank in endpoint.peers if rank >= 0 and rank not in self._lost]
        for shard in range(0 if self.is_apart else self._shards):
            if shard not in ranks:
                raise PeerLost(
                    shard, 0.0, f"shard {shard} of the model", "start the run again.", need="was in its process"
                )
        for rank in ranks[1:]:
            endpoint.send(rank, Survivors(torch.tensor(ranks)))
        return ranks

    def fail(self, failure: BaseException) -> None:
        """Let the server that lives here raise ``failure`` where it next sends or receives."""
        if self.endpoint is not None:
            self.endpoint.fail(failure)

    def close(self, failure: BaseException | None) -> None:
        """Close the server's post, once its thread, which reads from it, has ended."""
        if self.endpoint is None:
            return
        if failure is not None:
            self.endpoint.fail(failure)
        if self._server is None or self._server.has_ended():
            self.endpoint.close()
