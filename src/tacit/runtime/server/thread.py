"""Server thread: the server, or a shard, with its own thread, hook lock and message endpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread
from typing import Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from tacit.core.messages import Message
from tacit.core.network import DeferredMessage, Parts, Pending, shard_at
from tacit.core.randomness import Streams
from tacit.errors import MisplacedCall, PeerLost
from tacit.record.trace import EventQueue
from tacit.runtime.messaging.endpoint import MessageEndpoint
from tacit.runtime.messaging.hook_lock import HookLock
from tacit.session.server_model import ServerLoop, ServerModel

MessageType = TypeVar("MessageType", bound=Message)
_END_S: Final = 10.0
"""How long a server may take to notice that its endpoint has failed: one update at most."""


class ProcessServer:
    """The server as passed to ``ServerStrategy.serve``, and the thread that runs it."""

    knows_split = False  # the script splits the data itself

    def __init__(
        self,
        endpoint: MessageEndpoint,
        hook_lock: HookLock,
        model: ServerModel,
        size: int,
        steps: int | None,
        seed: int,
        now_s: Callable[[], float],
        received_s: Callable[[], float],
        trace_rows: EventQueue,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._model, self.size, self.steps, self._now_s, self._trace_rows = model, size, steps, now_s, trace_rows
        self._failed, self.now_s = failed, received_s
        self.shard, self._hook_lock = shard_at(endpoint.address), hook_lock
        self.network = ServerNetwork(endpoint, size)
        self.random: np.random.Generator = Streams(seed).numpy("strategy", endpoint.address)
        self.failure: BaseException | None = None
        self._loop: ServerLoop | None = None
        self._thread: Thread | None = None

    @property
    def parameters(self) -> Tensor:
        return self._model.parameters

    def update(self, gradient: Tensor, learning_rate: float | None = None, *, uses_optimizer: bool = True) -> None:
        start_s = self._now_s()
        self._model.update(gradient, learning_rate, start_s, uses_optimizer=uses_optimizer)
        self._trace_rows.hook(self.network.rank, start_s, self._now_s(), "update", gradient.numel())
        if self.shard == 0:
            self.note("update", self._model.updates)

    def note(self, name: str, value: float, about: int | None = None) -> None:
        self._trace_rows.note(self.network.rank, self._now_s(), name, value, about)

    def write_part(self, folder: str, version: int) -> str:
        assert self._loop is not None
        return self._loop.write_part(folder, self.shard, version)

    def start(self, loop: ServerLoop) -> None:
        self._loop = loop
        self._thread = Thread(target=self._run, args=(loop,), name="tacit-server", daemon=True)
        self._thread.start()

    def _run(self, loop: ServerLoop) -> None:
        try:
            with self._hook_lock, torch.no_grad():
                loop.run(self)
        except BaseException as error:  # noqa: BLE001 - the worker of this process raises it
            self.failure = error.__cause__ if isinstance(error, _RunOver) and error.__cause__ else error
            self._failed(self.failure)

    def has_ended(self) -> bool:
        """Wait a bounded time for the server's thread; return whether it has ended."""
        assert self._thread is not None
        self._thread.join(_END_S)
        return not self._thread.is_alive()

    def join(self) -> Tensor:
        """Wait until the server has ended; return its model."""
        assert self._thread is not None
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        return self.parameters


class _RunOver(Exception):
    """The server's endpoint has failed; the cause is why."""


class ServerNetwork:
    """The server's network: messages only."""

    def __init__(self, endpoint: MessageEndpoint, size: int) -> None:
        self._endpoint, self.rank, self.size = endpoint, endpoint.address, size
        self.waits: Callable[[], None] | None = None  # called before the server waits for a message
        self.hosts: Sequence[int] = ()  # unknown here
        self.members: Sequence[int] = tuple(range(size))

    def send(self, to: int, message: Message) -> None:
        self._endpoint.send(to, message)

    def receive(
        self, kind: type[MessageType], source: int | None = None, *, timeout_s: float | None = None
    ) -> tuple[int, MessageType]:
        if self.waits is not None:
            self.waits()
        try:
            self._endpoint.raise_if_failed()
        except PeerLost as failure:  # the run ends; the server must not go on without that one learner
            raise _RunOver from failure
        return self._endpoint.receive(kind, source, timeout_s=timeout_s)

    def all_reduce_mean(
        self,
        parts: Parts,
        weight: float = 1.0,
        *,
        group: Sequence[int] | None = None,
        into: Tensor | None = None,
        extra_state: bool = True,
    ) -> Tensor:
        raise _refusal("all_reduce_mean")

    def start_all_reduce_mean(
        self, parts: Parts, weight: float = 1.0, *, group: Sequence[int] | None = None, extra_state: bool = True
    ) -> Pending:
        raise _refusal("start_all_reduce_mean")

    def all_gather(
        self,
        message: MessageType | DeferredMessage[MessageType],
        *,
        group: Sequence[int] | None = None,
        continues: bool = False,
    ) -> list[MessageType]:
        raise _refusal("all_gather")

    def all_to_all(self, messages: Sequence[MessageType], *, group: Sequence[int] | None = None) -> list[MessageType]:
        raise _refusal("all_to_all")

    def broadcast(self, tensor: Tensor, source: int = 0, *, group: Sequence[int] | None = None) -> Tensor:
        raise _refusal("broadcast")


def _refusal(what: str) -> MisplacedCall:
    return MisplacedCall(f"the server called {what}: collectives are for workers; send and receive messages instead.")
