"""A problem over samples in memory: the loss as a module, batches for many workers at once, evaluation on all data."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from tacit.core.randomness import Streams
from tacit.workloads.data.augmentation import Augmentation, AugmentedPictures
from tacit.workloads.data.samples import Samples, chunk_length
from tacit.workloads.data.sampling import EpochSampler, ShardSampler, batch_sizes
from tacit.workloads.data.splits import Indices
from tacit.workloads.workload import GRADIENT_BUDGET, Evaluation, Problem, Sampler

LossFunction = Callable[[Tensor, Tensor], Tensor]

_CACHED_COPIES = 4  # copies of the training set that cached full-shard batches may fill
_NUMBERS_AT_ONCE = 1 << 20  # in the inputs of all models of a call
_MANY_NUMBERS = 1 << 16  # in the inputs of one model, from which on calls of one model are faster


class LossModule(nn.Module):
    """``module(x, y)``: the mean loss of ``model`` on a mini-batch."""

    def __init__(self, model: nn.Module, loss: LossFunction) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.model(x), y)

    def predict(self, x: Tensor, values: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the model's prediction, with ``values`` in place of parameters and buffers of this module by name."""
        own = {
            name.removeprefix("model."): value for name, value in (values or {}).items() if name.startswith("model.")
        }
        prediction: Tensor = functional_call(self.model, own, (x,))
        return prediction


@dataclass(frozen=True)
class Metric:
    """A named measure of predictions against targets."""

    name: str
    function: Callable[[Tensor, Tensor], float]


def _accuracy(prediction: Tensor, target: Tensor) -> float:
    return float((prediction.argmax(-1) == target).double().mean())


ACCURACY = Metric("accuracy", _accuracy)


class ArrayProblem(Problem):
    """Training samples divided into ``shards``, one per worker.

    The evaluated loss is the mean over all of ``evaluated`` (by default all training samples), a penalty counted once.
    The metric is taken on ``held_out``; where there is none, on the training samples, and its name says so.
    ``augmentation`` changes the mini-batches alone, not the samples that an evaluation uses.
    """

    module: LossModule
    model_path = "model"

    def __init__(
        self,
        module: LossModule,
        training: Samples,
        shards: Sequence[Indices],
        *,
        batch_size: int | None,
        streams: Streams,
        held_out: Samples | None = None,
        metric: Metric | None = None,
        evaluated: Samples | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.module = module
        self.training = training if augmentation is None else AugmentedPictures(training, augmentation.crop_padding)
        self.held_out = held_out
        self.evaluated = self.training if evaluated is None else evaluated
        self.shards = tuple(shards)
        self.sample_numbers = training.span(0, 1)[0].numel()
        self.is_full_gradient = batch_size is None
        self.samplers: Sequence[Sampler]
        if batch_size is None:
            self.batch_size = max(1, len(training) // len(shards))
            self.samplers = [ShardSampler(shard) for shard in shards]
        else:
            sizes = batch_sizes(shards, batch_size)
            self.batch_size = max(sizes)
            self.samplers = [
                EpochSampler(shard, size, streams.numpy("batches", rank))
                if augmentation is None
                else augmentation.sampler(shard, size, streams, rank)
                for rank, (shard, size) in enumerate(zip(shards, sizes, strict=True))
            ]
        self.metric = metric
        if metric is not None:
            self.metric_name = metric.name if held_out is not None else f"training {metric.name}"
        self._device = torch.device("cpu")
        self._cache: OrderedDict[tuple[int, ...], tuple[Tensor, ...]] = OrderedDict()

    def collate(self, ranks: Sequence[int], tokens: Sequence[Indices]) -> tuple[Tensor, ...]:
        if not self.is_full_gradient:
            return self.gather(torch.from_numpy(_stacked(tokens)).to(self._device))
        key = tuple(ranks)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        batch = self._cache[key] = self.gather(torch.from_numpy(_stacked(tokens)).to(self._device))
        while len(self._cache) > 1 and self._cached_samples() > _CACHED_COPIES * len(self.training):
            self._cache.popitem(last=False)
        return batch

    def indices(self, ranks: Sequence[int], tokens: Sequence[Indices]) -> Indices | None:
        return None if self.is_full_gradient else _stacked(tokens)  # full gradients are cached by ``collate``

    def gather(self, indices: Tensor) -> tuple[Tensor, ...]:
        stacked = indices.shape[:2]
        return tuple(part.view(*stacked, *part.shape[1:]) for part in self.training.take(indices.flatten(0, 1)))

    def evaluate(self, parameters: Tensor, buffers: dict[str, Tensor] | None = None) -> Evaluation:
        layout, buffers, flat = self.layout, buffers or {}, parameters.detach()
        is_cheap = len(self.training) * layout.dimension <= GRADIENT_BUDGET and self.evaluated is self.training
        loss, gradient = flat.new_zeros((), dtype=torch.float64), torch.zeros_like(flat)
        with _evaluating(self.module), torch.set_grad_enabled(is_cheap):
            for x, y in _chunks(self.evaluated):
                point = flat.clone().requires_grad_(is_cheap)
                values = {**buffers, **layout.split(point)}
                part = functional_call(self.module, values, (x, y)) * (len(x) / len(self.evaluated))
                loss += part.detach()  # read after the last chunk: reading waits for the device
                if is_cheap:
                    gradient += torch.autograd.grad(part, point)[0]
            squared = float(gradient.double().square().sum()) if is_cheap else None
            metric = self._measure({**buffers, **layout.split(flat)})
        return Evaluation(float(loss), squared, metric)

    def losses(
        self, models: Tensor, buffers: dict[str, Tensor] | None = None, *, is_batched: bool = False
    ) -> list[float]:
        try:
            return self._losses(models, buffers or {}, _NUMBERS_AT_ONCE if is_batched else 0)
        except (RuntimeError, NotImplementedError):
            if not is_batched:
                raise
            return self._losses(models, buffers or {}, 0)

    def to(self, device: torch.device) -> None:
        super().to(device)
        is_all = self.evaluated is self.training
        self.training = self.training.to(device)
        self.evaluated = self.training if is_all else self.evaluated.to(device)
        self.held_out = None if self.held_out is None else self.held_out.to(device)
        self._device = device
        self._cache.clear()

    @torch.no_grad()
    def _measure(self, values: Mapping[str, Tensor]) -> float | None:
        if self.metric is None:
            return None
        samples = self.evaluated if self.held_out is None else self.held_out
        pairs = [(self.module.predict(x, values), y) for x, y in _chunks(samples)]
        return self.metric.function(torch.cat([p for p, _ in pairs]), torch.cat([y for _, y in pairs]))

    @torch.no_grad()
    def _losses(self, models: Tensor, buffers: dict[str, Tensor], numbers_at_once: int) -> list[float]:
        """Return the loss of each row of ``models``; a call has inputs of ``numbers_at_once``, or one model."""

        def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return functional_call(self.module, {**buffers, **values}, (x, y))  # type: ignore[no-any-return]

        split, several = self.layout.split, vmap(loss, (0, None, None))
        found = models.new_zeros(len(models), dtype=torch.float64)
        with _evaluating(self.module):
            for x, y in _chunks(self.evaluated):
                at_once = 1 if x.numel() >= _MANY_NUMBERS else max(1, numbers_at_once // x.numel())
                for start in range(0, len(models), at_once):
                    some = models[start : start + at_once]
                    part = several(split(some), x, y) if len(some) > 1 else loss(split(some[0]), x, y)
                    found[start : start + at_once] += part * (len(x) / len(self.evaluated))
        numbers: list[float] = found.tolist()
        return numbers

    def _cached_samples(self) -> int:
        return sum(batch[0].shape[0] * batch[0].shape[1] for batch in self._cache.values())


def build_model(build: Callable[[], nn.Module], streams: Streams) -> nn.Module:
    """Call ``build`` with torch's generator seeded from the run's streams; restore the generator after it."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(streams.integer("model"))
        return build()


def _stacked(tokens: Sequence[Indices]) -> Indices:
    """Return tokens of one shape as one array; ``np.stack`` takes three times as long."""
    return np.concatenate(tokens).reshape(len(tokens), *tokens[0].shape)


def _chunks(samples: Samples) -> Iterator[tuple[Tensor, ...]]:
    length = chunk_length(samples)
    for start in range(0, len(samples), length):
        yield samples.span(start, start + length)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Set ``module`` to evaluation mode; restore the mode of each of its parts after it."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
