"""Linear models as problems, with the constants that the papers' step sizes need."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from tacit.core.randomness import Streams
from tacit.workloads.array_problem import ArrayProblem, LossFunction, LossModule, Metric
from tacit.workloads.data.samples import TensorSamples
from tacit.workloads.data.splits import Indices

Penalty = Callable[[Tensor], Tensor]


class LinearModel(nn.Module):
    """Predictions ``x @ weight``, without a bias; starts at zero."""

    def __init__(self, dimension: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dimension, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class LinearLoss(LossModule):
    """The mean loss of a linear model plus a penalty on its weights, which is part of every worker's function."""

    model: LinearModel

    def __init__(self, model: LinearModel, loss: LossFunction, penalty: Penalty | None = None) -> None:
        super().__init__(model, loss)
        self.penalty = penalty

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x, y)
        return loss if self.penalty is None else loss + self.penalty(self.model.weight)


class LinearProblem(ArrayProblem):
    """A linear model split over workers; its constants are computed when first read.

    ``curvature`` bounds the second derivative of the loss in the prediction (1/4 for logistic, 1 for half squares),
    ``penalty_curvature`` that of the penalty in any weight.
    """

    def __init__(
        self,
        module: LinearLoss,
        training: TensorSamples,
        shards: Sequence[Indices],
        *,
        batch_size: int | None,
        streams: Streams,
        curvature: float,
        penalty_curvature: float = 0.0,
        metric: Metric | None = None,
    ) -> None:
        super().__init__(module, training, shards, batch_size=batch_size, streams=streams, metric=metric)
        self.curvature, self.penalty_curvature = curvature, penalty_curvature
        self._x, self._y = training.x, training.y

    @cached_property
    def smoothness(self) -> float:
        """L of the evaluated loss, the mean over all samples."""
        return self._smoothness(self._x)

    @cached_property
    def worker_smoothness(self) -> list[float]:
        """L_i of each worker's loss: curvature · λmax(A_iᵀA_i)/N_i, plus the penalty's."""
        return [self._smoothness(self._x[torch.from_numpy(shard)]) for shard in self.shards]

    @cached_property
    def mean_smoothness(self) -> float:
        """L̃ = sqrt(mean L_i²), the constant in EF21's step size."""
        return math.sqrt(sum(constant**2 for constant in self.worker_smoothness) / len(self.shards))

    def _smoothness(self, rows: Tensor) -> float:
        return self.curvature * float(_gram_eigenvalues(rows)[-1]) / len(rows) + self.penalty_curvature


class LogisticProblem(LinearProblem):
    """Logistic regression. ``strong_convexity`` is the L2 penalty's strength, None without one."""

    strong_convexity: float | None = None


class LeastSquaresProblem(LinearProblem):
    """Least squares, whose optimum is known."""

    @cached_property
    def strong_convexity(self) -> float:
        """λmin(AᵀA)/N, which is 0 for features that depend on each other."""
        rows, dimension = self._x.shape
        return max(0.0, float(_gram_eigenvalues(self._x)[0])) / rows if rows >= dimension else 0.0

    @cached_property
    def optimum(self) -> Tensor:
        """The solution of least norm."""
        solution: Tensor = torch.linalg.lstsq(self._x.double(), self._y.double()[:, None], driver="gelsd").solution
        return solution[:, 0].to(self._x.dtype)

    @cached_property
    def optimal_loss(self) -> float:
        """The mean loss at the optimum, over all samples."""
        residual = self._x.double() @ self.optimum.double() - self._y.double()
        return 0.5 * float(residual.square().mean())


def _gram_eigenvalues(rows: Tensor) -> Tensor:
    """Return the eigenvalues of AᵀA in increasing order, without the zeros that a wide A implies."""
    rows = rows.double()
    eigenvalues: Tensor = torch.linalg.eigvalsh(rows.T @ rows if rows.shape[1] <= rows.shape[0] else rows @ rows.T)
    return eigenvalues
