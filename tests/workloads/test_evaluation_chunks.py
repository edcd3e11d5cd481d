"""Evaluations pass the data through the model in chunks whose length the device decides, and read results once."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tacit
from tacit import workloads
from tacit.core.randomness import Streams
from tacit.record.trace import Trace
from tacit.simulation.evaluation import Evaluator
from tacit.workloads import array_problem
from tacit.workloads.data import samples
from tacit.workloads.data.samples import TensorSamples, chunk_length


class Reads(TorchDispatchMode):
    """Counts calls that wait for a number from the device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("hidden", "reads"), [(8, 3), (600, 2)])  # with and without the norm of the gradient
def test_an_evaluation_reads_each_result_once(hidden: int, reads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = workloads.digits(hidden=hidden).open(2, Streams(0))
    flat = torch.cat([parameter.detach().flatten() for parameter in problem.module.parameters()])
    whole = problem.evaluate(flat)
    monkeypatch.setattr(samples, "_CHUNK", 100)
    assert chunk_length(problem.training) == 100
    with Reads() as counted:
        parts = problem.evaluate(flat)
    assert counted.count == reads
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5) and parts.metric == whole.metric
    norms = parts.gradient_norm_squared, whole.gradient_norm_squared
    assert norms == (None, None) if hidden == 600 else norms[0] == pytest.approx(norms[1], rel=1e-4)


@pytest.mark.parametrize(("memory_bytes", "chunks"), [(139 << 30, 1), (80 << 30, 2), (4 << 30, 15)])
def test_a_large_gpu_takes_20_000_cifar_pictures_in_few_chunks(
    memory_bytes: int, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=memory_bytes))
    most, numbers = samples._chunk_limits(torch.device("cuda"))
    assert math.ceil(20_000 / min(most, numbers // (3 * 32 * 32 + 1))) == chunks


def test_small_samples_are_limited_by_their_number() -> None:
    assert chunk_length(TensorSamples(torch.zeros(5, 2), torch.from_numpy(np.zeros(5)))) == 4096


@pytest.mark.parametrize("is_batched", [False, True])
@pytest.mark.parametrize(
    "workload", [workloads.digits(), workloads.quadratic(dimension=4)], ids=["digits", "quadratic"]
)
def test_losses_of_several_models_are_those_of_evaluations(
    workload: tacit.Workload, is_batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "_CHUNK", 1000)  # the last chunk is shorter
    monkeypatch.setattr(array_problem, "_NUMBERS_AT_ONCE", 3 * 1000 * 64)  # the last call has fewer models
    problem = workload.open(2, Streams(0))
    flat = torch.cat([parameter.detach().flatten() for parameter in problem.module.parameters()])
    models = flat + 0.1 * torch.arange(7)[:, None] * torch.ones_like(flat)
    expected = [problem.evaluate(model).loss for model in models]
    assert problem.losses(models, is_batched=is_batched) == pytest.approx(expected, rel=1e-5)


class Branching(torch.nn.Linear):
    """A model whose evaluation ``vmap`` cannot run, because it depends on a number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if self.training or self.bias.sum() > 0 else super().forward(-x)


def test_models_that_vmap_cannot_evaluate_are_evaluated_one_by_one() -> None:
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 3, generator=random), torch.arange(8) % 2
    workload = workloads.custom(Branching(3, 2), torch.nn.functional.cross_entropy, data=(x, y))
    problem = workload.open(1, Streams(0))
    models = torch.randn(4, 8, generator=random)
    expected = [problem.evaluate(model).loss for model in models]
    assert problem.losses(models, is_batched=True) == pytest.approx(expected)
    assert len(set(expected)) == 4


def test_the_evaluator_reports_the_evaluation_of_the_worst_model() -> None:
    problem = workloads.digits().open(2, Streams(0))
    flat = torch.cat([parameter.detach().flatten() for parameter in problem.module.parameters()])
    models = torch.stack([flat, 1.1 * flat, -2.0 * flat, 0.0 * flat])
    evaluator = Evaluator(problem, models, steps=1, every=1, progress=None)
    evaluator.evaluates_each_worker, evaluator.uses_vmap = True, lambda: True
    for rank, model in enumerate(models):
        evaluator.both(rank, 1, model)
    evaluator.measure(1, 0.0, flat)
    row = evaluator.rows(Trace(), 1.0)[-1]
    worst = max((problem.evaluate(model) for model in models), key=lambda evaluation: evaluation.loss)
    assert (row["worst_loss"], row["worst_metric"]) == (worst.loss, worst.metric)


@pytest.mark.parametrize("every", [1, 3, 4, 10, 50])
def test_the_next_evaluation_is_the_first_of_those_that_are_due(every: int):
    evaluator = Evaluator(None, torch.zeros(1, 1), steps=10, every=every, progress=None)
    for step in range(10):
        assert evaluator.next_due(step) == evaluator.due_between(step + 1, 10)[0]
