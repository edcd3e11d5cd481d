"""Logistic regression and least squares: gradients, constants and evaluation against their formulas."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad

from tacit import workloads
from tacit.core.randomness import Streams
from tacit.errors import BadData

RNG = np.random.default_rng(5)
X = RNG.standard_normal((43, 4)) + np.array([1.0, 0.0, 0.0, -1.0])
LABELS = np.where(RNG.random(43) < 0.4, 7, 3)
SIGNS = np.where(LABELS == 7, 1.0, -1.0)
POINT = RNG.standard_normal(4)


def worker_gradient(problem: workloads.Problem, rank: int) -> torch.Tensor:
    batch = problem.collate([rank], [problem.samplers[rank].take(1)[0]])
    layout = problem.layout
    loss = lambda flat: functional_call(problem.module, layout.split(flat), tuple(part[0] for part in batch))  # noqa: E731
    return grad(loss)(torch.from_numpy(POINT))


def logistic_gradient(x: np.ndarray, signs: np.ndarray) -> np.ndarray:
    return -(x.T @ (signs / (1 + np.exp(signs * (x @ POINT))))) / len(x)


@pytest.mark.parametrize(
    ("regularizer", "penalty", "penalty_gradient"),
    [
        (None, 0.0, np.zeros(4)),
        ("l2", 0.15 * np.sum(POINT**2), 0.3 * POINT),
        ("nonconvex", 0.3 * np.sum(POINT**2 / (1 + POINT**2)), 0.6 * POINT / (1 + POINT**2) ** 2),
    ],
)
def test_logistic_loss_and_gradients_follow_the_formulas(
    regularizer: str | None, penalty: float, penalty_gradient: np.ndarray
) -> None:
    workload = workloads.logistic(
        (X, LABELS), regularizer=regularizer, strength=0.3, split="contiguous", batch_size=None
    )
    problem = workload.open(4, Streams(0))
    measured = problem.evaluate(torch.from_numpy(POINT))
    expected = logistic_gradient(X, SIGNS) + penalty_gradient
    assert measured.loss == pytest.approx(np.mean(np.log1p(np.exp(-SIGNS * (X @ POINT)))) + penalty)
    assert measured.gradient_norm_squared == pytest.approx(np.sum(expected**2))
    assert measured.metric == pytest.approx(np.mean((X @ POINT > 0) == (SIGNS > 0)))
    assert problem.metric_name == "training accuracy"
    last = logistic_gradient(X[30:], SIGNS[30:]) + penalty_gradient
    assert np.allclose(worker_gradient(problem, 3).numpy(), last, atol=1e-14)


def test_logistic_loss_is_exact_for_large_margins() -> None:
    problem = workloads.logistic(([[1.0], [-1.0]], [1, -1]), regularizer=None).open(1, Streams(0))
    assert problem.evaluate(torch.tensor([40.0], dtype=torch.float64)).loss == pytest.approx(np.exp(-40.0), rel=1e-12)
    assert problem.evaluate(torch.tensor([-800.0], dtype=torch.float64)).loss == 800.0


def test_the_mean_of_weighted_worker_gradients_is_the_evaluated_gradient() -> None:
    problem = workloads.logistic((X, LABELS), split="contiguous", batch_size=None).open(4, Streams(0))
    weights = [sampler.batch_size / problem.batch_size for sampler in problem.samplers]
    assert weights == [1.0, 1.0, 1.0, 1.3]
    mean = sum(w * worker_gradient(problem, rank) for rank, w in enumerate(weights)) / sum(weights)
    assert problem.evaluate(torch.from_numpy(POINT)).gradient_norm_squared == pytest.approx(float(mean.square().sum()))


@pytest.mark.parametrize(
    ("regularizer", "extra", "strong"), [("l2", 0.3, 0.3), ("nonconvex", 0.6, None), (None, 0.0, None)]
)
def test_logistic_constants(regularizer: str | None, extra: float, strong: float | None) -> None:
    workload = workloads.logistic((X, LABELS), regularizer=regularizer, strength=0.3, split="contiguous")
    problem = workload.open(4, Streams(0))
    parts = [X[:10], X[10:20], X[20:30], X[30:]]
    constants = [np.linalg.norm(part, 2) ** 2 / (4 * len(part)) + extra for part in parts]
    assert problem.worker_smoothness == pytest.approx(constants)
    assert problem.mean_smoothness == pytest.approx(np.sqrt(np.mean(np.square(constants))))
    assert problem.smoothness == pytest.approx(np.linalg.norm(X, 2) ** 2 / (4 * 43) + extra)
    assert problem.strong_convexity == strong


def test_least_squares_loss_constants_and_optimum() -> None:
    targets = X @ [1.0, 2.0, 3.0, 4.0] + RNG.standard_normal(43)
    problem = workloads.least_squares((X, targets), split="sorted", batch_size=None).open(4, Streams(0))
    measured = problem.evaluate(torch.from_numpy(POINT))
    residual = X @ POINT - targets
    assert measured.loss == pytest.approx(0.5 * np.mean(residual**2))
    assert measured.gradient_norm_squared == pytest.approx(np.sum((X.T @ residual / 43) ** 2))
    assert measured.metric is None and problem.metric_name is None
    singular = np.linalg.svd(X, compute_uv=False)
    assert problem.smoothness == pytest.approx(singular[0] ** 2 / 43)
    assert problem.strong_convexity == pytest.approx(singular[-1] ** 2 / 43)
    at_optimum = problem.evaluate(problem.optimum)
    assert at_optimum.gradient_norm_squared < 1e-25
    assert at_optimum.loss == pytest.approx(problem.optimal_loss)


def test_more_features_than_samples_is_not_strongly_convex() -> None:
    problem = workloads.least_squares((X[:3], SIGNS[:3])).open(1, Streams(0))
    assert problem.strong_convexity == 0.0
    assert problem.optimal_loss == pytest.approx(0.0, abs=1e-25)
    assert problem.smoothness == pytest.approx(np.linalg.norm(X[:3], 2) ** 2 / 3)


def test_a_full_gradient_asks_for_its_batch_once() -> None:
    problem = workloads.logistic((X, LABELS), split="contiguous", batch_size=None).open(4, Streams(0))
    tokens = [sampler.take(1)[0] for sampler in problem.samplers]
    first, again = problem.collate([0, 2], [tokens[0], tokens[2]]), problem.collate((0, 2), [tokens[0], tokens[2]])
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert np.array_equal(first[0].numpy(), np.stack([X[:10], X[20:30]]))
    swapped = problem.collate([2, 0], [tokens[2], tokens[0]])
    assert np.array_equal(swapped[0].numpy(), np.stack([X[20:30], X[:10]]))


def test_reads_a_file_and_maps_two_labels_to_signs(tmp_path: Path) -> None:
    path = tmp_path / "two.txt"
    path.write_text("1 1:1\n2 2:1\n2 1:-1\n")
    problem = workloads.logistic(path, dtype=torch.float32).open(1, Streams(0))
    x, y = problem.collate([0], [np.arange(3)])
    assert x.dtype == torch.float32
    assert y.tolist() == [[-1.0, 1.0, 1.0]]
    assert problem.module.model.weight.tolist() == [0.0, 0.0]


def test_labels_that_are_not_two_are_told() -> None:
    with pytest.raises(BadData, match=r"needs exactly two labels and found 3 \(0, 1, 2\)"):
        workloads.logistic((X[:3], [0, 1, 2])).open(1, Streams(0))
    with pytest.raises(BadData, match=r"found 43 .*, …"):
        workloads.logistic((X, np.arange(43))).open(1, Streams(0))


def test_standardized_features_have_mean_zero_and_deviation_one_and_constants_vanish() -> None:
    x = np.column_stack([1e6 + RNG.standard_normal(40), np.full(40, 0.1)])
    problem = workloads.least_squares((x, x[:, 0]), standardize=True, batch_size=None).open(1, Streams(0))
    features = problem.collate([0], [problem.samplers[0].take(1)[0]])[0][0]
    assert torch.allclose(features.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(features.std(0, correction=0), torch.tensor([1.0, 0.0], dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: workloads.logistic((X, LABELS), regularizer="l1"), "regularizer='l1' is unknown; did you mean 'l2'"),
        (lambda: workloads.logistic((X, LABELS), strength=-1.0), "strength=-1.0 must be at least 0"),
        (lambda: workloads.logistic((X, LABELS[:-1])), "x has 43 rows and y has shape"),
        (lambda: workloads.logistic((X[0], LABELS[:4])), r"X has shape \(4,\) and must have two dimensions"),
        (lambda: workloads.least_squares((X, X)), r"y has shape \(43, 4\) and must have one dimension"),
        (lambda: workloads.least_squares((X, SIGNS), dtype=torch.int64), "dtype=torch.int64 must be a floating-point"),
        (lambda: workloads.least_squares((X, SIGNS), batch_size=0), "batch_size=0 must be at least 1"),
    ],
)
def test_arguments_are_checked(make: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()  # type: ignore[operator]


def test_what_is_no_data_is_refused() -> None:
    with pytest.raises(TypeError, match=r"data must be a pair \(x, y\) of arrays or tensors, not int"):
        workloads.logistic(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"data\[0\] of type list is not an array of numbers"):
        workloads.logistic(([["a"]], [1]))
    with pytest.raises(BadData, match="X and y must be finite"):
        workloads.logistic((np.array([[1.0], [np.nan]]), [0, 1])).open(1, Streams(0))
