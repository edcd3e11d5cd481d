"""One rank of benchmarks/time_to_accuracy: an ordinary training loop, the same for all methods. Needs torch alone.

{"do": "prepare"}       answers the priority that the process got
{"do": "train", "method": "DDP", "task": {…}, "rule": {…}, "value": 4, "strategy": "", "scratch": "…", "folder": null}
                        trains; every rank writes what it noted into the folder ``scratch``: for each step, when it
                        ended, the bytes sent and the processor seconds until then; and copies of its model

The forward pass is stretched by a sleep. Nothing is evaluated: the models are evaluated after the run. All methods
start from the same model and have the same batches in the same order, which the driver has written.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peer_loops.common import Rank, serve
from benchmarks.peer_loops.priority import asked_priority
from benchmarks.time_to_accuracy.ranks.models import build, flat, load

__all__ = ["AccuracyRank", "Loop", "Order", "Training", "serve"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How long a run is, and when models are copied: at multiples of ``every`` steps, or of ``every_s`` seconds."""

    steps: int
    every: int
    every_s: float | None = None
    deadline_s: float | None = None  # ranks leave the loop then; only for methods whose ranks do not wait for others
    all_ranks: bool = False  # whether every rank copies its model; otherwise rank 0, since all hold the same model


@dataclass(frozen=True, kw_only=True)
class Order:
    """One run, as the driver asks for it."""

    method: str
    rule: Rule
    value: float | None  # of the structural parameter
    strategy: str  # of tacit's methods
    seed: int
    lr: float
    momentum: float
    folder: str | None  # where a run of tacit is kept, for calibration


@dataclass
class Loop:
    """What a method makes of model and optimizer. after: called after each step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    after: Callable[[], None] | None = None
    backward: Callable[[Tensor], None] = Tensor.backward
    observe: Callable[[Tensor], None] | None = None
    is_done: Callable[[], bool] | None = None  # None: after the steps of the rule
    processor_s: Callable[[], float] = time.process_time
    kept: list[tuple[int, float, Tensor]] | None = None
    """The models of a server, by updates and seconds of ``clock``, instead of copies of this rank's."""
    clock: Callable[[], float] = time.perf_counter


class Training:
    """Model, data and optimizer of one rank."""

    def __init__(self, rank: int, *, name: str, folder: str, start: str, sleeps_s: list[float], order: Order) -> None:
        data = torch.load(Path(folder, "data.pt"), mmap=True)
        self._x, self._y, self._mean, self._deviation = (data[part] for part in ("x", "y", "mean", "deviation"))
        begin = torch.load(Path(folder, start), mmap=True)
        self._batches = begin["batches"][rank]
        self.module = build(name)
        load(self.module, begin["start"])
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=order.lr, momentum=order.momentum)
        self._sleep_s, self._step = sleeps_s[rank], 0
        self._warm_up(build(name))

    def _warm_up(self, other: nn.Module) -> None:
        """Compute gradients of another model: first calls choose kernels."""
        for step in range(3):
            x, y = self._batch(step)
            functional.cross_entropy(other(x), y).backward()  # type: ignore[no-untyped-call]

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        indices = self._batches[step % len(self._batches)].long()
        return (self._x[indices].float() - self._mean) / self._deviation, self._y[indices]

    def gradient(self, model: nn.Module, backward: Callable[[Tensor], None]) -> Tensor:
        """Compute the gradient of the next batch; forward pass and sleep take the sleep's time, or longer."""
        begun_s = time.perf_counter()
        x, y = self._batch(self._step)
        self._step += 1
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        left_s = begun_s + self._sleep_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        backward(loss)
        return loss.detach()


@dataclass
class Notes:
    """What is noted during a run. Times are those of the machine's monotonic clock, which all ranks share."""

    module: nn.Module
    rule: Rule
    copies: bool
    interface: str
    processor_s: Callable[[], float]
    ends_s: list[float] = field(default_factory=list)
    sent_bytes: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    models: dict[int, Tensor] = field(default_factory=dict)
    marked_s: dict[int, float] = field(default_factory=dict)  # when the step before each copy had ended
    sums: dict[int, float] = field(default_factory=dict)

    def begin(self, clock: Callable[[], float]) -> None:
        self.clock_s = clock()
        self.began_s, self._due_s = time.perf_counter(), self.rule.every_s or math.inf
        self._first_bytes, self._first_cpu_s = sent_bytes(self.interface), self.processor_s()

    @torch.no_grad()
    def step(self) -> None:
        """Note the end of a step. A copy of 4 MB takes about a millisecond."""
        now_s = time.perf_counter()
        self.ends_s.append(now_s)
        self.sent_bytes.append(sent_bytes(self.interface) - self._first_bytes)
        self.cpu_s.append(self.processor_s() - self._first_cpu_s)
        step, every_s = len(self.ends_s), self.rule.every_s
        if every_s is None:
            mark = step if step % self.rule.every == 0 else None
        else:
            mark = math.floor((now_s - self.began_s) / every_s) if now_s >= self.began_s + self._due_s else None
            self._due_s = self._due_s if mark is None else (mark + 1) * every_s
        if mark is None:
            return
        self.marked_s[mark] = now_s
        self.sums[mark] = float(sum(parameter.double().sum() for parameter in self.module.parameters()))
        if self.copies:
            self.models[mark] = flat(self.module)

    def table(self, loop: Loop) -> dict[str, Any]:
        names = ("began_s", "clock_s", "ends_s", "sent_bytes", "cpu_s", "models", "marked_s", "sums")
        return {name: getattr(self, name) for name in names} | {"kept": loop.kept}


def sent_bytes(interface: str) -> int:
    """Return the bytes that the interface of this network namespace has sent, headers included."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == interface:
            return int(rest.split()[8])
    raise OSError(f"there is no interface {interface} here")


Opener = Callable[["AccuracyRank", Training, Order], AbstractContextManager[Loop]]


class AccuracyRank(Rank):
    """A rank that trains with one method after the other."""

    interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")

    def __init__(self, openers: dict[str, Any]) -> None:
        super().__init__(openers)
        self.barrier, self.runs = self._barrier, 0

    @property
    def master(self) -> str:
        return self._master

    def free_port(self, number: int) -> int:
        """Return a port that no earlier run of this process used, the same on all ranks."""
        return self._port + 20 + 10 * self.runs + number

    def meet(self) -> None:
        self._meet()

    def prepare(self) -> dict[str, Any]:
        return {"priority": asked_priority()}

    def train(self, task: dict[str, Any], rule: dict[str, Any], scratch: str, **rest: Any) -> dict[str, Any]:
        order = Order(rule=Rule(**rule), **rest)
        self.runs += 1
        training = Training(self.rank, order=order, **task)
        opener: Any = self._openers[order.method]
        with opener(self, training, order) as loop:
            copies = loop.kept is None and (order.rule.all_ranks or self.rank == 0)
            notes = Notes(training.module, order.rule, copies, self.interface, loop.processor_s)
            self._meet()
            notes.begin(loop.clock)
            while not self._is_over(loop, notes):
                loss = training.gradient(loop.model, loop.backward)
                if loop.observe is not None:
                    loop.observe(loss)
                loop.optimizer.step()
                if loop.after is not None:
                    loop.after()
                notes.step()
        torch.save(notes.table(loop), Path(scratch, f"{self.rank}.pt"))
        return {"steps": len(notes.ends_s)}

    @staticmethod
    def _is_over(loop: Loop, notes: Notes) -> bool:
        deadline_s = notes.rule.deadline_s
        if deadline_s is not None and time.perf_counter() >= notes.began_s + deadline_s:
            return True
        return loop.is_done() if loop.is_done is not None else len(notes.ends_s) >= notes.rule.steps
