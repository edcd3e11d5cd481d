"""Workloads with a model, loss and data of the user."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tacit.core.randomness import Streams
from tacit.core.specs import spell
from tacit.errors import require
from tacit.workloads.array_problem import ACCURACY, ArrayProblem, LossFunction, LossModule, Metric
from tacit.workloads.data.samples import Arrays, TensorSamples, label_array
from tacit.workloads.data.sampling import check_batch_size
from tacit.workloads.data.splits import check_split, split_samples
from tacit.workloads.workload import Workload

DataSource = Arrays | Dataset[Any]


@dataclass(frozen=True, eq=False)
class Custom(Workload):
    """Any module and loss on any samples that fit in memory; see ``custom``."""

    model: nn.Module
    loss: LossFunction
    _: KW_ONLY
    data: DataSource
    test: DataSource | None = None
    split: str = "shuffled"
    batch_size: int | None = 32
    metric: tuple[str, Callable[[Tensor, Tensor], float]] | None = None
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {type(self.model).__name__}.")
        if not callable(self.loss):
            raise TypeError(
                f"loss must be a function (prediction, target) -> mean loss, not {type(self.loss).__name__}."
            )
        require(
            any(p.requires_grad for p in self.model.parameters()),
            "model has no parameter that requires a gradient; set requires_grad=True on the parameters to train.",
        )
        check_split(self.split, self.alpha)
        check_batch_size(self.batch_size)

    @property
    def name(self) -> str:
        return "custom"

    def __str__(self) -> str:
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                parts.append(f"{field.name}={_spell(value)}" if field.kw_only else _spell(value))
        return f"custom({', '.join(parts)})"

    def open(self, workers: int, streams: Streams) -> ArrayProblem:
        module = LossModule(copy.deepcopy(self.model).cpu(), copy.deepcopy(self.loss))
        dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
        training = _samples(self.data, "data", dtype)
        held_out = None if self.test is None else _samples(self.test, "test", dtype)
        labels = label_array(training.y)
        return ArrayProblem(
            module,
            training,
            split_samples(len(training), workers, self.split, streams.numpy("split"), labels, self.alpha),
            batch_size=self.batch_size,
            streams=streams,
            held_out=held_out,
            metric=self._metric(module, training),
        )

    def _metric(self, module: LossModule, training: TensorSamples) -> Metric | None:
        """Run the model on two samples: check that its loss is a scalar, and whether accuracy applies."""
        x, y = training.span(0, 2)
        with torch.no_grad():
            prediction = copy.deepcopy(module.model).eval()(x)
            loss = module.loss(prediction, y)
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                f'loss returned {found} and must return the mean over the batch, a scalar (reduction="mean").'
            )
        if self.metric is not None:
            return Metric(*self.metric)
        is_classification = not y.is_floating_point() and y.dim() == 1 and prediction.dim() == 2
        return ACCURACY if is_classification else None


def custom(
    model: nn.Module,
    loss: LossFunction,
    *,
    data: object,
    test: object = None,
    split: str = "shuffled",
    batch_size: int | None = 32,
    metric: tuple[str, Callable[[Tensor, Tensor], float]] | None = None,
    alpha: float = 0.5,
) -> Custom:
    """Any torch.nn.Module, with loss(prediction, target) -> mean over the batch; all workers start from its weights.

    data, test: a pair (X, y) or a map-style Dataset of such pairs, read once into memory; floating-point values take
    the type of the model's parameters. The model itself is never changed: a run trains copies.
    metric: (name, function(prediction, target) -> float), by default accuracy where targets are classes; measured on
    ``test``, or without it on the training samples.
    """
    return Custom(
        model,
        loss,
        data=_source(data, "data"),
        test=None if test is None else _source(test, "test"),
        split=split,
        batch_size=batch_size,
        metric=metric,
        alpha=alpha,
    )


def _source(given: object, name: str) -> DataSource:
    if not isinstance(given, Dataset):
        return Arrays.of(given, name)
    if not hasattr(given, "__len__"):
        raise TypeError(
            f"{name}: {type(given).__name__} has no length; use a map-style Dataset, with __len__ and __getitem__."
        )
    return given


def _samples(source: DataSource, name: str, dtype: torch.dtype) -> TensorSamples:
    arrays = source if isinstance(source, Arrays) else _read_dataset(source, name)
    x, y = (part.to("cpu", dtype if part.is_floating_point() else part.dtype) for part in (arrays.x, arrays.y))
    return TensorSamples(x, y)


def _read_dataset(dataset: Dataset[Any], name: str) -> Arrays:
    count = len(dataset)  # type: ignore[arg-type]
    items = [dataset[number] for number in range(count)]
    for number, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(f"{name}[{number}] is {type(item).__name__} and must be a pair (x, y).")
    require(count > 0, f"{name} is empty; at least one sample is needed.")
    return Arrays(_stack([x for x, _ in items], f"{name}[i][0]"), _stack([y for _, y in items], f"{name}[i][1]"))


def _stack(values: list[Any], name: str) -> Tensor:
    try:
        return torch.stack([torch.as_tensor(value) for value in values])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} cannot be stacked into one tensor ({error}); all items must be numbers of one shape."
        ) from None


def _spell(value: object) -> str:
    if isinstance(value, nn.Module | Dataset):
        return type(value).__name__
    if isinstance(value, tuple):
        return f"({', '.join(_spell(part) for part in value)})"
    return getattr(value, "__name__", "function") if callable(value) else spell(value)
