"""What is trained: model, data, batch and target; as a workload for the simulator, and as files for the ranks.

A simulated run and a real one with equal seeds have the same start and the same batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.time_to_accuracy.ranks.models import build, flat, load
from tacit.core.randomness import Streams
from tacit.workloads import cifar10, digits, mnist
from tacit.workloads.array_problem import ACCURACY, ArrayProblem, LossModule, build_model
from tacit.workloads.data.samples import label_array
from tacit.workloads.data.splits import split_samples
from tacit.workloads.workload import Evaluation, Workload

MOMENTUM: Final = 0.9
_BATCHES: Final = 3000
"""Batches of each rank that are written for the real runs; a longer run has them again."""
_CHUNK: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task: how accurate the model must be on held-out pictures, and how long steps are."""

    name: str
    target: float
    batch: int  # of each worker
    sleep_s: float
    rates: tuple[float, ...]  # six learning rates; fewer for a quick run
    held_out: int  # pictures that decide when the target is reached
    every: int = 10  # steps between two evaluations
    search_steps: int = 700
    file: str = ""  # that DATA must hold

    def __str__(self) -> str:
        return self.name


TASKS: Final = {
    task.name: task
    for task in (
        Task(
            name="mnist",
            target=0.96,
            batch=32,
            sleep_s=0.02,
            rates=(0.0125, 0.025, 0.035, 0.05, 0.07, 0.1),
            held_out=5000,
            file="mnist/train-images-idx3-ubyte.xz",
        ),
        Task(
            name="cifar10",
            target=0.5,
            batch=16,
            sleep_s=0.03,
            rates=(0.005, 0.01, 0.015, 0.02, 0.03, 0.04),
            held_out=5000,
            search_steps=1500,
            file="cifar10-train20000.xz",
        ),
        Task(
            name="digits",
            target=0.8,
            batch=16,
            sleep_s=0.002,
            rates=(0.05, 0.1),
            held_out=359,
            every=4,
            search_steps=60,
        ),
    )
}


class HeldOut(ArrayProblem):
    """A problem whose loss is the share of held-out pictures that the model gets wrong."""

    def evaluate(self, parameters: Tensor, buffers: dict[str, Tensor] | None = None) -> Evaluation:
        module = copy.deepcopy(self.module.model)
        load(module, parameters)
        found = accuracy(module, self.held_out)
        return Evaluation(1.0 - found, None, found)

    def losses(
        self, models: Tensor, buffers: dict[str, Tensor] | None = None, *, is_batched: bool = False
    ) -> list[float]:
        return [self.evaluate(model).loss for model in models]


@torch.no_grad()
def accuracy(module: nn.Module, held_out: Any) -> float:
    """Return the share of held-out pictures that a module gets right."""
    count, right = len(held_out), 0
    for start in range(0, count, _CHUNK):
        x, y = held_out.span(start, min(count, start + _CHUNK))
        right += int((module(x).argmax(-1) == y).sum())
    return right / count


@dataclass(frozen=True, kw_only=True)
class HeldOutError(Workload):
    """A task as a workload; the loss is the held-out error."""

    task: str
    data: str

    @property
    def name(self) -> str:
        return f"{self.task}_error"

    @property
    def is_shuffled(self) -> bool | None:
        return True

    def open(self, workers: int, streams: Streams) -> ArrayProblem:
        task, (training, held_out) = TASKS[self.task], pictures(self.task, self.data)
        splits = split_samples(len(training), workers, "shuffled", streams.numpy("split"), label_array(training.y))
        return HeldOut(
            LossModule(build_model(lambda: build(self.task), streams), cross_entropy),
            training,
            splits,
            batch_size=task.batch,
            streams=streams,
            held_out=first(held_out, task.held_out),
            metric=ACCURACY,
        )


@cache
def pictures(name: str, data: str) -> tuple[Any, Any]:
    """Return training and held-out pictures."""
    loaders: dict[str, Callable[[], Any]] = {
        "mnist": lambda: mnist(data),
        "cifar10": lambda: cifar10(data),
        "digits": digits,
    }
    training, held_out = loaders[name]().load()
    return training, held_out


def first(held_out: Any, count: int) -> Any:
    """Return every k-th of the held-out pictures, ``count`` of them: the first half of MNIST's is the harder one."""
    kept = torch.arange(0, len(held_out), max(1, len(held_out) // count))[:count]
    x, y = held_out.x[kept], held_out.y[kept]
    return type(held_out)(x, y, *((held_out.mean, held_out.deviation) if hasattr(held_out, "mean") else ()))


def write_data(task: Task, data: str, folder: Path) -> None:
    """Write the training pictures for the ranks, unless they are there."""
    file = folder / "data.pt"
    if file.is_file():
        return
    training, _ = pictures(task.name, data)
    mean, deviation = (
        (training.mean, training.deviation) if hasattr(training, "mean") else (torch.zeros(()), torch.ones(()))
    )
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"x": training.x, "y": training.y, "mean": mean, "deviation": deviation}, file)


def write_start(task: Task, data: str, folder: Path, workers: int, seed: int) -> str:
    """Write start and batches of a seed for the ranks, unless they are there, and return the name of the file."""
    name = f"start-{seed}-{workers}.pt"
    if not (folder / name).is_file():
        problem = HeldOutError(task=task.name, data=data).open(workers, Streams(seed))
        batches = torch.stack([torch.as_tensor(_taken(sampler)) for sampler in problem.samplers]).to(torch.int32)
        torch.save({"start": flat(problem.module), "batches": batches}, folder / name)
    return name


def _taken(sampler: Any) -> Any:
    return np.stack([np.asarray(one) for one in sampler.take(_BATCHES)])
