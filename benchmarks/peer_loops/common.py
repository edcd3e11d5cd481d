"""One rank of a benchmark: the models, the training loop that is the same for everybody, and the conversation with
benchmarks/peers.py.

A rank reads one JSON command a line and answers each with one:

    {"do": "open", "method": "DDP", "model": "mlp", "period": 8, …}     make model, optimizer and whatever the method adds, and keep them
    {"do": "run", "method": "DDP", "steps": 16}                         take steps; answers times and a checksum of the model
    {"do": "quit"}

Methods stay open beside each other, so that repetitions can take turns without warming up again. Needs torch alone:
every peer's environment runs it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.nn import functional

LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Setting:
    """Who this process is, and what it was asked to open."""

    rank: int
    size: int
    address: str  # of this host
    master: str  # of rank 0's host
    port: int  # the first of ten that are free on every host
    model: str
    period: int
    overlap_steps: int


@dataclass
class Loop:
    """An ordinary training loop; ``after`` is what a method wants called after each step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    after: Callable[[], None] | None = None
    backward: Callable[[Tensor], None] = Tensor.backward

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        self.backward(functional.cross_entropy(self.model(x), y))
        self.optimizer.step()
        if self.after is not None:
            self.after()


Opener = Callable[[Setting], Loop]


class Block(nn.Module):
    """A residual block of ResNet-18; GroupNorm, since BatchNorm at batches of a few images is nobody's practice and
    would add buffers to average.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        last = nn.GroupNorm(8, outputs)
        self.norms = nn.ModuleList([nn.GroupNorm(8, outputs), last])
        nn.init.zeros_(
            last.weight
        )  # a block begins without its branch: else the first steps at usual rates throw the loss from 2.4 to 6
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(inner)) + self.shortcut(x))


def build(name: str) -> nn.Module:
    """Return the model, the same on every rank."""
    torch.manual_seed(0)
    if name == "mlp":  # 992k parameters
        return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 704), nn.ReLU(), nn.Linear(704, 10))
    if name == "tiny":  # 15k parameters, for a look whether everything runs
        return nn.Sequential(nn.Conv2d(3, 24, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 64, 10))
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 3, 2, 1, bias=False),
        nn.GroupNorm(8, 64),
        nn.ReLU(),
    ]  # 11.2M parameters
    for inputs, outputs, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)


def batch(name: str, rank: int) -> tuple[Tensor, Tensor]:
    """Return a rank's data: random, its own, the same in every step."""
    random = torch.Generator().manual_seed(1000 + rank)
    shape = (64, 256) if name == "mlp" else (4, 3, 32, 32)
    return torch.randn(shape, generator=random), torch.randint(0, 10, shape[:1], generator=random)


class Rank:
    """The methods this process has opened."""

    def __init__(self, openers: dict[str, Opener]) -> None:
        self._openers = openers
        self._loops: dict[str, tuple[Loop, tuple[Tensor, Tensor]]] = {}
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._master, self._port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._barrier = TCPStore(self._master, self._port + 1, self.size, self.rank == 0, timedelta(seconds=60))
        self._runs = 0

    def open(self, method: str, model: str, period: int, overlap_steps: int) -> dict[str, Any]:
        setting = Setting(
            self.rank, self.size, os.environ["OWN_ADDRESS"], self._master, self._port, model, period, overlap_steps
        )
        loop = self._openers[method](setting)
        self._loops[method] = loop, batch(model, self.rank)
        return {"parameters": sum(p.numel() for p in loop.model.parameters())}

    def run(self, method: str, steps: int) -> dict[str, Any]:
        loop, (x, y) = self._loops[method]
        self._meet()
        times_s, last_s, cpu_s = [], time.perf_counter(), time.process_time()
        for _ in range(steps):
            loop.step(x, y)
            now_s = time.perf_counter()
            times_s.append(now_s - last_s)
            last_s = now_s
        cpu_s = time.process_time() - cpu_s  # of all threads
        with torch.no_grad():
            checksum = float(sum(p.double().sum() for p in loop.model.parameters()))
        return {"times_s": times_s, "cpu_s": cpu_s, "checksum": checksum}

    def _meet(self) -> None:
        """Begin together."""
        self._runs += 1
        key = f"run {self._runs}"
        if self._barrier.add(key, 1) == self.size:
            self._barrier.set(f"{key} begins", "")
        self._barrier.wait([f"{key} begins"])


def serve(openers: dict[str, Opener], kind: type[Rank] = Rank) -> None:
    """Carry out commands until told to quit."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    torch.set_num_threads(1)
    me = kind(openers)
    for line in sys.stdin:
        command = json.loads(line)
        do = command.pop("do")
        if do == "quit":
            break
        try:
            answer = getattr(me, do)(**command)
        except BaseException as error:  # noqa: BLE001 - told to the driver
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)  # no last rounds and no good-byes: others may be gone
