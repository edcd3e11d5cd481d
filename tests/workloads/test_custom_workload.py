"""The user's own model: copied, never changed, measured in evaluation mode."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from tacit import workloads
from tacit.core.randomness import Streams

X = np.random.default_rng(0).standard_normal((30, 4))
CLASSES = np.arange(30) % 3


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


class Pairs(Dataset):
    def __init__(self, items: list[object]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> object:
        return self.items[number]


def test_the_run_starts_from_a_copy_of_the_models_weights() -> None:
    model = nn.Linear(4, 3)
    problem = workloads.custom(model, cross_entropy, data=(X, CLASSES)).open(2, Streams(0))
    assert torch.equal(flat(problem.module), flat(model))
    with torch.no_grad():
        problem.module.model.weight.zero_()
    assert float(model.weight.detach().abs().sum()) > 0


def test_arrays_take_the_type_of_the_model() -> None:
    problem = workloads.custom(nn.Linear(4, 1), mse_loss, data=(X, X[:, :1])).open(1, Streams(0))
    assert problem.training.x.dtype == problem.training.y.dtype == torch.float32
    double = workloads.custom(nn.Linear(4, 3).double(), cross_entropy, data=(X, CLASSES)).open(1, Streams(0))
    assert double.training.x.dtype == torch.float64 and double.training.y.dtype == torch.int64


def test_accuracy_is_measured_where_targets_are_classes() -> None:
    model = nn.Linear(4, 3)
    unheld = workloads.custom(model, cross_entropy, data=(X, CLASSES)).open(1, Streams(0))
    held = workloads.custom(model, cross_entropy, data=(X, CLASSES), test=(X[:7], CLASSES[:7])).open(1, Streams(0))
    regression = workloads.custom(nn.Linear(4, 1), mse_loss, data=(X, X[:, :1])).open(1, Streams(0))
    assert (unheld.metric_name, held.metric_name, regression.metric_name) == ("training accuracy", "accuracy", None)
    prediction = model(torch.from_numpy(X[:7]).float()).argmax(1).numpy()
    assert held.evaluate(flat(model)).metric == pytest.approx(np.mean(prediction == CLASSES[:7]))
    assert regression.evaluate(flat(regression.module)).metric is None


def test_a_metric_of_ones_own_has_its_name() -> None:
    largest_error = ("largest error", lambda prediction, target: float((prediction - target).abs().max()))
    workload = workloads.custom(nn.Linear(4, 1), mse_loss, data=(X, X[:, :1]), test=(X, X[:, :1]), metric=largest_error)
    problem = workload.open(1, Streams(0))
    assert problem.metric_name == "largest error"
    expected = (problem.module.predict(problem.training.x) - problem.training.y).abs().max().item()
    assert problem.evaluate(flat(problem.module)).metric == pytest.approx(expected)


def test_a_dataset_is_read_into_tensors() -> None:
    tensors = torch.from_numpy(X).float(), torch.from_numpy(CLASSES)
    model = nn.Linear(4, 3)
    from_dataset = workloads.custom(model, cross_entropy, data=TensorDataset(*tensors)).open(2, Streams(0))
    from_items = workloads.custom(model, cross_entropy, data=Pairs(list(zip(X, CLASSES, strict=True)))).open(
        2, Streams(0)
    )
    from_arrays = workloads.custom(model, cross_entropy, data=tensors).open(2, Streams(0))
    for problem in (from_dataset, from_items):
        assert torch.equal(problem.training.x, from_arrays.training.x)
        assert torch.equal(problem.training.y, from_arrays.training.y)


@pytest.mark.parametrize(
    ("items", "complaint"),
    [
        ([(torch.zeros(2), 0), (torch.zeros(3), 1)], r"data\[i\]\[0\] cannot be stacked into one tensor"),
        ([(torch.zeros(2), "cat"), (torch.zeros(2), "dog")], r"data\[i\]\[1\] cannot be stacked into one tensor"),
        ([torch.zeros(2)], r"data\[0\] is Tensor and must be a pair \(x, y\)"),
        ([], "data is empty"),
    ],
)
def test_a_dataset_that_cannot_be_stacked_is_told(items: list[object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        workloads.custom(nn.Linear(2, 2), cross_entropy, data=Pairs(items)).open(1, Streams(0))


def test_an_iterable_dataset_is_refused() -> None:
    class Endless(IterableDataset):
        def __iter__(self) -> Iterator[object]:
            return iter(())

    with pytest.raises(TypeError, match="data: Endless has no length; use a map-style Dataset"):
        workloads.custom(nn.Linear(2, 2), cross_entropy, data=Endless())


def test_evaluation_uses_the_buffers_given_and_restores_every_mode() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
    model[1].eval()
    problem = workloads.custom(model, cross_entropy, data=(X, CLASSES)).open(2, Streams(0))
    start = flat(problem.module)
    own = problem.evaluate(start)
    assert problem.evaluate(start) == own  # no dropout, no update of statistics
    shifted = {name: buffer + 3 for name, buffer in problem.module.named_buffers()}
    other = problem.evaluate(start, shifted)
    assert other.loss != own.loss
    with torch.no_grad():
        problem.module.model[0].running_mean += 3
        problem.module.model[0].running_var += 3
    assert problem.evaluate(start) == other
    assert [part.training for part in problem.module.model] == [True, False, True]


def test_frozen_parameters_keep_their_values() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    problem = workloads.custom(model, cross_entropy, data=(X, CLASSES)).open(1, Streams(0))
    assert problem.layout.dimension == 5 * 3 + 3
    start = torch.cat([p.detach().flatten() for p in problem.module.parameters() if p.requires_grad])
    loss = cross_entropy(model(torch.from_numpy(X).float()), torch.from_numpy(CLASSES))
    assert problem.evaluate(start).loss == pytest.approx(loss.item(), rel=1e-5)


def test_large_data_is_evaluated_in_chunks_as_one_mean() -> None:
    x = np.random.default_rng(1).standard_normal((9001, 2))
    problem = workloads.custom(nn.Linear(2, 1).double(), mse_loss, data=(x, x[:, :1])).open(1, Streams(0))
    measured = problem.evaluate(flat(problem.module))
    loss = problem.module(problem.training.x, problem.training.y)
    gradient = torch.autograd.grad(loss, list(problem.module.parameters()))
    assert measured.loss == pytest.approx(loss.item(), rel=1e-12)
    assert measured.gradient_norm_squared == pytest.approx(sum(float(g.square().sum()) for g in gradient), rel=1e-12)


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, not function"):
        workloads.custom(cross_entropy, cross_entropy, data=(X, CLASSES))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="loss must be a function"):
        workloads.custom(nn.Linear(4, 3), "mse", data=(X, CLASSES))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="set requires_grad=True on the parameters"):
        workloads.custom(nn.ReLU(), mse_loss, data=(X, X))
    each = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(ValueError, match=r"loss returned shape \(2,\) and must return the mean over the batch"):
        workloads.custom(nn.Linear(4, 3), each, data=(X, CLASSES)).open(1, Streams(0))
