"""Noisy quadratics: the smallest problem on which every quantity of the papers is known exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.core.randomness import Streams
from tacit.errors import require
from tacit.workloads.workload import Evaluation, Problem, Workload

Vector = NDArray[np.float64]
Vectors = NDArray[np.float64]  # one per row

_BLOCK = 4096  # random numbers drawn at a time, so that one more batch is a slice


@dataclass(frozen=True, kw_only=True)
class Quadratic(Workload):
    """Worker i holds f_i(x) = ½ (x − b_i)ᵀ A (x − b_i); see ``quadratic``."""

    dimension: int = 100
    condition: float = 50.0
    noise: float = 0.1
    heterogeneity: float = 0.0

    def __post_init__(self) -> None:
        require(self.dimension >= 1, f"dimension={self.dimension} must be at least 1.")
        require(
            math.isfinite(self.condition) and self.condition >= 1,
            f"condition={self.condition} must be at least 1: it is L/mu, the largest over the smallest eigenvalue.",
        )
        for name in ("noise", "heterogeneity"):
            value = getattr(self, name)
            require(math.isfinite(value) and value >= 0, f"{name}={value} must be at least 0; 0 turns it off.")

    @property
    def name(self) -> str:
        return "quadratic"

    @property
    def is_shuffled(self) -> bool:
        return self.heterogeneity == 0

    def open(self, workers: int, streams: Streams) -> QuadraticProblem:
        eigenvalues = np.geomspace(1 / self.condition, 1.0, self.dimension)
        eigenvalues[-1] = 1.0  # also in one dimension, where geomspace returns its start
        centers = self.heterogeneity * streams.numpy("centers").standard_normal((workers, self.dimension))
        centers -= centers.mean(axis=0)
        start = streams.numpy("start").standard_normal(self.dimension)
        samplers = [NoiseSampler(self.dimension, self.noise, streams.numpy("noise", rank)) for rank in range(workers)]
        return QuadraticProblem(QuadraticLoss(eigenvalues, start), torch.from_numpy(centers), samplers)


class QuadraticLoss(nn.Module):
    """``module(noise, center)``: ½ (x − center)ᵀ A (x − center) + ⟨noise, x⟩, so ``noise`` adds to the gradient."""

    def __init__(self, eigenvalues: Vector, start: Vector) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.from_numpy(start))
        self.eigenvalues = torch.from_numpy(
            eigenvalues
        )  # no buffer: it is part of the function, not of the model's state

    def forward(self, noise: Tensor, center: Tensor) -> Tensor:
        away = self.x - center
        return 0.5 * (self.eigenvalues * away * away).sum() + (noise * self.x).sum()


class NoiseSampler:
    """Gradient noise: vectors from N(0, noise² I), drawn in blocks."""

    batch_size = 1

    def __init__(self, dimension: int, noise: float, rng: np.random.Generator) -> None:
        self._noise, self._rng = noise, rng
        self._block: Vector = np.zeros((max(1, _BLOCK // dimension), dimension))
        self._used = 0 if noise == 0 else len(self._block)

    def take(self, count: int) -> Vectors:
        if self._noise == 0 and count <= len(self._block):
            return self._block[:count]
        if self._noise == 0:
            return np.broadcast_to(self._block[0], (count, self._block.shape[1]))
        parts: list[Vectors] = [self._block[self._used : self._used + count]]
        taken = len(parts[0])
        self._used += taken
        while taken < count:
            self._block = self._noise * self._rng.standard_normal(self._block.shape)
            parts.append(self._block[: count - taken])
            self._used = len(parts[-1])
            taken += self._used
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class QuadraticProblem(Problem):
    """The mean of the workers' quadratics is ½ xᵀAx plus a constant, so its optimum is 0 and its measures are exact."""

    module: QuadraticLoss
    batch_size = 1

    def __init__(self, module: QuadraticLoss, centers: Tensor, samplers: Sequence[NoiseSampler]) -> None:
        self.module, self.samplers = module, samplers
        self.centers = centers
        self.smoothness = float(module.eigenvalues.max())
        self.strong_convexity = float(module.eigenvalues.min())
        self.optimal_loss = float(0.5 * (centers.square() @ module.eigenvalues).mean())

    @property
    def optimum(self) -> Tensor:
        return torch.zeros_like(self.module.eigenvalues)

    def collate(self, ranks: Sequence[int], tokens: Sequence[Vector]) -> tuple[Tensor, ...]:
        return self.gather(torch.from_numpy(self.indices(ranks, tokens)).to(self.centers.device))

    def indices(self, ranks: Sequence[int], tokens: Sequence[Vector]) -> NDArray[np.int64]:
        """Return the bits of the noise vectors, followed by their ranks in a last column."""
        noise = np.concatenate(tokens).reshape(len(tokens), *tokens[0].shape)
        bits = np.empty((*noise.shape[:-1], noise.shape[-1] + 1), np.int64)
        bits[..., :-1] = noise.view(np.int64)
        bits[..., -1].T[...] = ranks  # the ranks are the first dimension, also before several vectors each
        return bits

    def gather(self, indices: Tensor) -> tuple[Tensor, ...]:
        return indices[:, :-1].view(torch.float64), self.centers.index_select(0, indices[:, -1])

    def evaluate(self, parameters: Tensor, buffers: dict[str, Tensor] | None = None) -> Evaluation:
        """Return the exact mean of the workers' losses and the squared norm of its gradient, without noise."""
        x = parameters.detach()
        gradient = self.module.eigenvalues * x
        return Evaluation(0.5 * float(gradient @ x) + self.optimal_loss, float(gradient @ gradient), None)

    def to(self, device: torch.device) -> None:
        super().to(device)
        self.module.eigenvalues = self.module.eigenvalues.to(device)
        self.centers = self.centers.to(device)


def quadratic(
    dimension: int = 100, condition: float = 50.0, noise: float = 0.1, heterogeneity: float = 0.0
) -> Quadratic:
    """A quadratic with curvature from 1/condition to 1 and optimum 0, started at N(0, I), in float64.

    A is diagonal with log-spaced eigenvalues, so L = 1 and mu = 1/condition. A worker's stochastic gradient is
    ∇f_i(x) + noise·ξ with ξ ~ N(0, I): its variance E‖noise·ξ‖² is noise²·dimension. Each worker's own minimum b_i is
    drawn from heterogeneity·N(0, I), and all are shifted together so that the minimum of their mean is 0.
    """
    return Quadratic(dimension=dimension, condition=condition, noise=noise, heterogeneity=heterogeneity)
