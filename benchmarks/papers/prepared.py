"""Data sets of the papers' size as problems of the library: a set of epsilon's shape, a9a, MNIST.

Gradients are those of the library's own workloads; what differs is which samples an evaluation in a run uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tacit.core.randomness import Streams
from tacit.workloads.array_problem import ACCURACY, ArrayProblem, LossModule
from tacit.workloads.data.image_files import read_mnist
from tacit.workloads.data.libsvm import read_libsvm
from tacit.workloads.data.samples import TensorSamples, label_array
from tacit.workloads.data.splits import split_samples
from tacit.workloads.linear import LinearLoss, LinearModel
from tacit.workloads.regression import logistic_loss
from tacit.workloads.workload import Problem, Workload

CHUNK = 10_000
EVALUATED = 40_000  # samples of an evaluation in a run; the final loss is taken on all


@dataclass(frozen=True, eq=False)
class Regression(Workload):
    """L2-regularised logistic regression: labels ±1, no bias, started at zero."""

    title: str
    x: Tensor
    y: Tensor
    strength: float  # μ
    batch_size: int
    split: str = "shuffled"
    evaluated: int = EVALUATED

    @property
    def name(self) -> str:
        return "regression"

    def open(self, workers: int, streams: Streams) -> Problem:
        strength, count = self.strength, len(self.y)
        return ArrayProblem(
            LinearLoss(
                LinearModel(self.x.shape[1], self.x.dtype), logistic_loss, lambda w: 0.5 * strength * w.square().sum()
            ),
            TensorSamples(self.x, self.y),
            split_samples(count, workers, self.split, streams.numpy("split"), label_array(self.y)),
            batch_size=self.batch_size,
            streams=streams,
            evaluated=TensorSamples(self.x[: self.evaluated], self.y[: self.evaluated]),
        )

    def loss(self, w: Tensor, samples: int | None = None) -> float:
        """Return F at ``w``, over the first ``samples`` or all."""
        count = len(self.y) if samples is None else min(samples, len(self.y))
        total = 0.0
        for start in range(0, count, CHUNK):
            rows = slice(start, min(start + CHUNK, count))
            total += float(-nn.functional.logsigmoid((self.y[rows] * (self.x[rows] @ w)).double()).sum())
        return total / count + 0.5 * self.strength * float(w.double().square().sum())

    def gradient(self, w: Tensor) -> Tensor:
        """Return ∇F at ``w`` in float64."""
        total = torch.zeros(self.x.shape[1], dtype=torch.float64)
        for start in range(0, len(self.y), CHUNK):
            x, y = self.x[start : start + CHUNK], self.y[start : start + CHUNK]
            total -= (x.T @ (y * torch.sigmoid(-y * (x @ w)))).double()
        return total / len(self.y) + self.strength * w.double()

    def minimum(self) -> Tensor:
        """Return the minimiser by Newton's method, with the curvature of at most 40,000 samples."""
        w = torch.zeros(self.x.shape[1], dtype=torch.float64)
        dimension, factor = len(w), torch.zeros(0)
        for step in range(60):
            gradient = self.gradient(w.to(self.x.dtype))
            if step < 4:  # curvature of few samples while w moves far, then of more
                factor = self._curvature(
                    w.to(self.x.dtype), min(len(self.y), (2, 4, 8, 16)[step] * max(dimension, 2500))
                )
            move = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
            w = w - move
            if float(gradient @ move) < 1e-12:  # twice the distance to F*, by the model
                return w
        raise RuntimeError(f"{self.title}: Newton's method did not settle in 60 steps.")

    def smoothness(self) -> float:
        """Return L = λmax(XᵀX)/(4 N) + μ, by the power method."""
        v = torch.ones(self.x.shape[1], dtype=self.x.dtype) / math.sqrt(self.x.shape[1])
        value = 0.0
        for _ in range(100):
            product = torch.zeros(len(v), dtype=torch.float64)
            for start in range(0, len(self.y), CHUNK):
                rows = self.x[start : start + CHUNK]
                product += (rows.T @ (rows @ v)).double()
            before, value = value, float(product.norm()) / len(self.y)
            v = (product / product.norm()).to(self.x.dtype)
            if abs(value - before) < 1e-4 * value:
                break
        return 0.25 * value + self.strength

    def _curvature(self, w: Tensor, samples: int) -> Tensor:
        total = self.strength * torch.eye(self.x.shape[1], dtype=torch.float64)
        for start in range(0, samples, CHUNK):
            rows = slice(start, min(start + CHUNK, samples))
            share = torch.sigmoid(self.x[rows] @ w)
            scaled = self.x[rows] * (share * (1 - share)).sqrt()[:, None]
            total += (scaled.T @ scaled).double() / samples
        factor: Tensor = torch.linalg.cholesky(total)
        return factor


def epsilon_like(
    samples: int = 400_000, features: int = 2000, decay: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return rows of unit length, features of variance proportional to 1/i^decay, and labels of a logistic model.

    In float32 and in place: 3.2 GB for epsilon's 400,000 × 2,000.
    """
    random = torch.Generator().manual_seed(seed)
    scale = torch.arange(1, features + 1, dtype=torch.float32) ** (-decay / 2)
    truth = torch.randn(features, generator=random)
    x, y = torch.empty(samples, features), torch.empty(samples)
    for start in range(0, samples, CHUNK):
        rows = x[start : start + CHUNK]
        rows.normal_(generator=random).mul_(scale)
        rows.div_(rows.norm(dim=1, keepdim=True))
        margins = rows @ truth
        # Noise of the model: a margin of deviation 4 before the logistic function.
        margins *= 4 / float(scale.norm() ** -1 * (scale * truth).norm())
        y[start : start + CHUNK] = torch.where(torch.rand(len(rows), generator=random) < margins.sigmoid(), 1.0, -1.0)
    return x, y


def unit_rows(x: Tensor) -> Tensor:
    norms: Tensor = x.norm(dim=1, keepdim=True)
    return x / norms.clamp(min=1e-12)


def read_adult(path: Path) -> tuple[Tensor, Tensor]:
    x, y = read_libsvm(path, np.float32)
    return torch.from_numpy(x), torch.from_numpy(np.where(y == y.max(), 1.0, -1.0)).float()


def read_pictures(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return MNIST's pixels from 0 to 1 as rows, and labels: training and testing."""
    x, y, test_x, test_y = read_mnist(folder)
    flat = [torch.from_numpy(part.reshape(len(part), -1).astype(np.float32) / 255) for part in (x, test_x)]
    return flat[0], torch.from_numpy(y), flat[1], torch.from_numpy(test_y)


@dataclass(frozen=True, eq=False)
class Softmax(Workload):
    """Logistic regression with ten classes on rows of pixels; evaluations use the first ``evaluated`` samples."""

    data: tuple[Tensor, Tensor, Tensor, Tensor] = field(repr=False)
    batch_size: int
    evaluated: int = 10_000

    @property
    def name(self) -> str:
        return "softmax"

    def open(self, workers: int, streams: Streams) -> Problem:
        x, y, test_x, test_y = self.data
        linear = nn.Linear(x.shape[1], 10)
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        return ArrayProblem(
            LossModule(linear, cross_entropy),
            TensorSamples(x, y),
            split_samples(len(y), workers, "shuffled", streams.numpy("split")),
            batch_size=self.batch_size,
            streams=streams,
            held_out=TensorSamples(test_x, test_y),
            metric=ACCURACY,
            evaluated=TensorSamples(x[: self.evaluated], y[: self.evaluated]),
        )


Loader = Callable[[], Regression]
