"""Toy strategies for tests: each is a few lines, and together they use every call of ``Network``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from tacit.core.messages import Message, TensorMessage
from tacit.core.network import SERVER
from tacit.core.strategy import RunsAhead, ServerStrategy, Strategy
from tacit.core.worker import Server, Worker


@dataclass(frozen=True)
class Ball(Message):
    number: int


@dataclass(frozen=True)
class Question(Message):
    model: Tensor


@dataclass(frozen=True)
class Answer(Message):
    model: Tensor


@dataclass(frozen=True)
class Gradient(Message):
    value: Tensor


@dataclass(frozen=True)
class NewModel(Message):
    value: Tensor


@dataclass
class BallLog:
    log: list[tuple[float, int, int]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class PingPong(Strategy[BallLog]):
    """Ranks 0 and 1 exchange a message after every step; each waits for the other's."""

    def init(self, worker: Worker) -> BallLog:
        return BallLog()

    def after_step(self, worker: Worker, state: BallLog) -> None:
        if worker.rank > 1:
            return
        worker.network.send(1 - worker.rank, Ball(worker.step))
        source, ball = worker.network.receive(Ball, source=1 - worker.rank)
        assert (source, ball.number) == (1 - worker.rank, worker.step)
        worker.note("caught", ball.number)


@dataclass
class Shelf:
    shared: Tensor
    answered: int = 0


@dataclass(frozen=True, kw_only=True)
class AskAround(Strategy[Shelf], RunsAhead):
    """Every ``every`` steps ask the next rank for its model; its handler answers while it computes."""

    every: int = 3
    handles: ClassVar[tuple[type[Message], ...]] = (Question,)

    def init(self, worker: Worker) -> Shelf:
        return Shelf(worker.parameters.clone())

    def hook_free_steps(self, worker: Worker, state: Shelf) -> int:
        return self.every - 1 - worker.step % self.every

    def after_step(self, worker: Worker, state: Shelf) -> None:
        if worker.step % self.every:
            return
        worker.network.send((worker.rank + 1) % worker.size, Question(worker.parameters))
        _, answer = worker.network.receive(Answer)
        worker.parameters.add_(answer.model).div_(2)
        state.shared.copy_(worker.parameters)

    def on_message(self, worker: Worker, state: Shelf, source: int, message: Message) -> None:
        assert isinstance(message, Question)
        worker.network.send(source, Answer(state.shared))
        state.answered += 1
        worker.note("answered at step", worker.step)

    def finish(self, worker: Worker, state: Shelf) -> None:
        worker.parameters.copy_(worker.network.all_reduce_mean(worker.parameters))


@dataclass(frozen=True, kw_only=True)
class FirstOfAll(ServerStrategy[dict[str, Any]]):
    """A server that uses the first gradient of each update and cancels the others: K-sync with k = 1."""

    handles: ClassVar[tuple[type[Message], ...]] = (NewModel,)
    cancels: ClassVar[bool] = True

    def init(self, worker: Worker) -> dict[str, Any]:
        return {"model": worker.parameters.clone(), "is_new": False, "updates": 0}

    def before_step(self, worker: Worker, state: dict[str, Any]) -> None:
        worker.network.send(SERVER, Gradient(worker.gradient))
        worker.skip_update()

    def after_step(self, worker: Worker, state: dict[str, Any]) -> None:
        if state["is_new"]:
            worker.parameters.copy_(state["model"])
            worker.set_model_version(state["updates"])
            state["is_new"] = False

    def on_message(self, worker: Worker, state: dict[str, Any], source: int, message: Message) -> None:
        assert isinstance(message, NewModel)
        state["model"], state["is_new"], state["updates"] = message.value, True, state["updates"] + 1
        worker.abandon_step()

    def init_server(self, server: Server) -> dict[str, Any]:
        return {}

    def serve(self, server: Server, state: dict[str, Any]) -> None:
        assert server.steps is not None
        for _ in range(server.steps):
            _, gradient = server.network.receive(Gradient)
            server.update(gradient.value)
            for rank in range(server.size):
                server.network.send(rank, NewModel(server.parameters))


@dataclass(frozen=True, kw_only=True)
class Gathering(Strategy[None]):
    """Gather all gradients, average them, and broadcast a number from rank 1."""

    def before_step(self, worker: Worker, state: None) -> None:
        gathered = worker.network.all_gather(Gradient(worker.gradient))
        worker.gradient = torch.stack([message.value for message in gathered]).mean(0)
        number = worker.network.broadcast(torch.tensor([float(worker.rank)]), source=1)
        assert number.item() == 1.0


@dataclass(frozen=True, kw_only=True)
class Handing(Strategy[None]):
    """Send another message to each rank: to rank j, j + 1 times the own rank; then gather all ranks."""

    def before_step(self, worker: Worker, state: None) -> None:
        given = [TensorMessage(torch.full((place + 1,), float(worker.rank))) for place in range(worker.size)]
        got = [message.tensor.tolist() for message in worker.network.all_to_all(given)]
        assert got == [[float(rank)] * (worker.rank + 1) for rank in range(worker.size)]
        ranks = worker.network.all_gather(TensorMessage(torch.tensor([float(worker.rank)])), continues=True)
        assert [message.tensor.item() for message in ranks] == list(range(worker.size))
