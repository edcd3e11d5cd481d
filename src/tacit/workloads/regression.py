"""Logistic regression, convex or not, and least squares, on LIBSVM files or arrays."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from tacit.core.randomness import Streams
from tacit.errors import BadData, nearest, require
from tacit.workloads.array_problem import Metric
from tacit.workloads.data.files import remembered
from tacit.workloads.data.libsvm import read_libsvm
from tacit.workloads.data.samples import Arrays, Source, TensorSamples, label_array, source_of, standardize
from tacit.workloads.data.sampling import check_batch_size
from tacit.workloads.data.splits import Indices, check_split, split_samples
from tacit.workloads.linear import LeastSquaresProblem, LinearLoss, LinearModel, LogisticProblem, Penalty
from tacit.workloads.workload import Workload

REGULARIZERS = ("l2", "nonconvex")


@dataclass(frozen=True)
class LinearWorkload(Workload):
    """Base class of logistic regression and least squares: features, targets and their split."""

    data: str | Arrays
    _: KW_ONLY
    split: str = "shuffled"
    batch_size: int | None = 32
    dtype: torch.dtype = torch.float64
    alpha: float = 0.5
    standardize: bool = False

    def __post_init__(self) -> None:
        check_split(self.split, self.alpha)
        check_batch_size(self.batch_size)
        require(
            self.dtype.is_floating_point, f"dtype={self.dtype} must be a floating-point type such as torch.float64."
        )
        if isinstance(self.data, Arrays):
            x, y = self.data.x, self.data.y
            require(x.dim() == 2, f"X has shape {tuple(x.shape)} and must have two dimensions, samples and features.")
            require(y.dim() == 1, f"y has shape {tuple(y.shape)} and must have one dimension, one target per sample.")

    def load(self) -> tuple[Tensor, Tensor]:
        """Return features and raw targets."""
        if isinstance(self.data, str):
            x, y = _read(self.data)
        else:
            x, y = self.data.x, self.data.y
            if not (bool(x.isfinite().all()) and bool(y.isfinite().all())):
                raise BadData(f"{self.data!r}: X and y must be finite; remove or fill samples with NaN or infinity.")
        x, y = x.to("cpu", self.dtype), y.to("cpu", self.dtype)
        return (standardize(x, (), (0,))[0] if self.standardize else x), y

    def divide(self, y: Tensor, workers: int, streams: Streams) -> list[Indices]:
        """Return each worker's sample numbers."""
        return split_samples(len(y), workers, self.split, streams.numpy("split"), label_array(y), self.alpha)


@dataclass(frozen=True)
class Logistic(LinearWorkload):
    """Mean log(1 + exp(−y aᵀx)) plus a regularizer; see ``logistic``."""

    _: KW_ONLY
    regularizer: str | None = "l2"
    strength: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.regularizer is None or self.regularizer in REGULARIZERS,
            f"regularizer={self.regularizer!r} is unknown{nearest(str(self.regularizer), REGULARIZERS)}",
        )
        require(
            math.isfinite(self.strength) and self.strength >= 0,
            f"strength={self.strength} must be at least 0; for no regularizer use regularizer=None.",
        )

    @property
    def name(self) -> str:
        return "logistic"

    def open(self, workers: int, streams: Streams) -> LogisticProblem:
        x, raw = self.load()
        y = _signs(raw, self.data)
        penalty, penalty_curvature = self._penalty()
        problem = LogisticProblem(
            LinearLoss(LinearModel(x.shape[1], self.dtype), logistic_loss, penalty),
            TensorSamples(x, y),
            self.divide(y, workers, streams),
            batch_size=self.batch_size,
            streams=streams,
            curvature=0.25,
            penalty_curvature=penalty_curvature,
            metric=Metric("accuracy", _sign_accuracy),
        )
        problem.strong_convexity = self.strength if self.regularizer == "l2" else None
        return problem

    def _penalty(self) -> tuple[Penalty | None, float]:
        """Return the penalty and the largest second derivative it has in any weight."""
        strength = self.strength
        if self.regularizer == "l2":
            return lambda w: 0.5 * strength * w.square().sum(), strength
        if self.regularizer == "nonconvex":
            # EF21's: strength · Σ w²/(1+w²), with second derivative at most 2·strength, taken at w = 0
            return lambda w: strength * (w.square() / (1 + w.square())).sum(), 2 * strength
        return None, 0.0


@dataclass(frozen=True)
class LeastSquares(LinearWorkload):
    """½ mean (aᵀx − y)²; see ``least_squares``."""

    @property
    def name(self) -> str:
        return "least_squares"

    def open(self, workers: int, streams: Streams) -> LeastSquaresProblem:
        x, y = self.load()
        return LeastSquaresProblem(
            LinearLoss(LinearModel(x.shape[1], self.dtype), half_squares),
            TensorSamples(x, y),
            self.divide(y, workers, streams),
            batch_size=self.batch_size,
            streams=streams,
            curvature=1.0,
        )


def logistic_loss(prediction: Tensor, sign: Tensor) -> Tensor:
    """Mean log(1 + exp(−sign · prediction))."""
    # softplus would switch to the identity at 20, an error of 2e-9 that float64 runs would see
    return -logsigmoid(sign * prediction).mean()


def half_squares(prediction: Tensor, target: Tensor) -> Tensor:
    """½ mean (prediction − target)²."""
    return 0.5 * (prediction - target).square().mean()


def logistic(
    data: Source,
    *,
    regularizer: str | None = "l2",
    strength: float = 0.1,
    split: str = "shuffled",
    batch_size: int | None = 32,
    dtype: torch.dtype = torch.float64,
    alpha: float = 0.5,
    standardize: bool = False,
) -> Logistic:
    """Binary logistic regression without a bias, started at zero: mean log(1 + exp(−y aᵀx)) plus a regularizer.

    data: path to LIBSVM text (plain, .gz, .bz2, .xz) or a pair (X, y). Two labels of any value; the smaller becomes −1.
    regularizer: "l2" is strength/2 ‖x‖²; "nonconvex" is strength Σ x_j²/(1 + x_j²), EF21's experiments; or None.
    batch_size: None = every gradient is the worker's full gradient.
    alpha: of split="dirichlet"; smaller = more uneven.
    standardize: shift and scale every feature to mean 0 and deviation 1.

    The problem offers ``smoothness``, ``mean_smoothness``, ``worker_smoothness`` and ``strong_convexity``.
    """
    return Logistic(
        source_of(data),
        regularizer=regularizer,
        strength=strength,
        split=split,
        batch_size=batch_size,
        dtype=dtype,
        alpha=alpha,
        standardize=standardize,
    )


def least_squares(
    data: Source,
    *,
    split: str = "shuffled",
    batch_size: int | None = 32,
    dtype: torch.dtype = torch.float64,
    alpha: float = 0.5,
    standardize: bool = False,
) -> LeastSquares:
    """Linear least squares without a bias, from zero: ½ mean (aᵀx − y)², with data and options as in ``logistic``.

    So the gradient is Aᵀ(Ax − y)/N, L = λmax(AᵀA)/N and mu = λmin(AᵀA)/N, which belong together. EF21's published
    code has this gradient and L with a loss without the ½ and a mu not divided by N: its losses are twice ours.

    The problem offers ``smoothness``, ``mean_smoothness``, ``worker_smoothness``, ``strong_convexity`` and ``optimum``.
    """
    return LeastSquares(
        source_of(data), split=split, batch_size=batch_size, dtype=dtype, alpha=alpha, standardize=standardize
    )


def _signs(labels: Tensor, source: str | Arrays) -> Tensor:
    values = torch.from_numpy(np.unique(labels.numpy()))
    if len(values) != 2:
        shown = ", ".join(f"{value:g}" for value in values[:5].tolist()) + (", …" if len(values) > 5 else "")
        name = source if isinstance(source, str) else repr(source)
        raise BadData(
            f"{name}: logistic regression needs exactly two labels and found {len(values)} ({shown}); "
            f"map them to two, or use least_squares for real-valued targets."
        )
    return torch.where(labels == values[1], 1.0, -1.0).to(labels.dtype)


def _sign_accuracy(prediction: Tensor, sign: Tensor) -> float:
    return float(((prediction > 0) == (sign > 0)).double().mean())


@remembered
def _read(path: str | Path) -> tuple[Tensor, Tensor]:
    x, y = read_libsvm(path)
    return torch.from_numpy(x), torch.from_numpy(y)
