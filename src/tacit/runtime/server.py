"""The server of a server strategy: a second endpoint in rank 0's process, with its own thread, monitor and post."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tacit.errors import MisplacedCall
from tacit.messages import Message
from tacit.network import SERVER, Parts, Pending
from tacit.randomness import Streams
from tacit.runtime.post import Post
from tacit.session.server_model import ServerModel
from tacit.strategies.strategy import Strategy
from tacit.trace import NOTE, PlainEvent

MessageType = TypeVar("MessageType", bound=Message)


class ProcessServer:
    """What ``serve`` is given, and the thread it runs in."""

    def __init__(
        self,
        post: Post,
        model: ServerModel,
        size: int,
        steps: int | None,
        seed: int,
        now_s: Callable[[], float],
        mail: deque[PlainEvent],
    ) -> None:
        self._model, self.size, self.steps, self._now_s, self._mail = model, size, steps, now_s, mail
        self.network = ServerNetwork(post, size)
        self.random: np.random.Generator = Streams(seed).numpy("strategy", SERVER)
        self.failure: BaseException | None = None
        self._thread: Thread | None = None

    @property
    def parameters(self) -> Tensor:
        return self._model.parameters

    def update(self, gradient: Tensor, learning_rate: float | None = None) -> None:
        self._model.update(gradient, learning_rate)
        self.note("update", self._model.updates)

    def note(self, name: str, value: float) -> None:
        now_s = self._now_s()
        self._mail.append((now_s, SERVER, NOTE, now_s, 0, 0, -2, 0, float(value), name))

    def start(self, strategy: Strategy[Any]) -> None:
        self._thread = Thread(target=self._live, args=(strategy,), name="tacit-server", daemon=True)
        self._thread.start()

    def _live(self, strategy: Strategy[Any]) -> None:
        try:
            with torch.no_grad():
                strategy.serve(self, strategy.init_server(self))
        except BaseException as error:  # noqa: BLE001 - raised in rank 0's worker
            self.failure = error

    def join(self) -> Tensor:
        """Wait until the server has nothing left to do; return its model."""
        assert self._thread is not None
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        return self.parameters


class ServerNetwork:
    """The server's port: messages alone."""

    rank = SERVER

    def __init__(self, post: Post, size: int) -> None:
        self._post, self.size = post, size

    def send(self, to: int, message: Message) -> None:
        self._post.send(to, message)

    def receive(self, kind: type[MessageType], source: int | None = None) -> tuple[int, MessageType]:
        return self._post.receive(kind, source)

    def all_reduce_mean(self, parts: Parts, weight: float = 1.0, *, group: Sequence[int] | None = None) -> Tensor:
        raise _refusal("all_reduce_mean")

    def start_all_reduce_mean(
        self, parts: Parts, weight: float = 1.0, *, group: Sequence[int] | None = None
    ) -> Pending:
        raise _refusal("start_all_reduce_mean")

    def all_gather(self, message: MessageType, *, group: Sequence[int] | None = None) -> list[MessageType]:
        raise _refusal("all_gather")

    def broadcast(self, tensor: Tensor, source: int = 0, *, group: Sequence[int] | None = None) -> Tensor:
        raise _refusal("broadcast")


def _refusal(what: str) -> MisplacedCall:
    return MisplacedCall(f"the server called {what}: collectives are for workers; send and receive messages instead.")
