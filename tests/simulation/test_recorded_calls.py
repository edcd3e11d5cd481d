"""Recorded calls of the engine return what ``vmap`` returns, to the bit, for any number of replicas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from tacit import workloads
from tacit.core.randomness import Streams
from tacit.simulation.engine.calls.recorded_calls import (
    CALLS_BEFORE_RECORDING,
    GradientCall,
    RecordedCalls,
    is_recordable,
)
from tacit.workloads.array_problem import LossModule
from tacit.workloads.workload import Problem


class Counted:
    """A call that counts how often it is made."""

    def __init__(self, call: GradientCall) -> None:
        self._call, self.calls = call, 0

    def __call__(self, *arguments: object) -> tuple[dict[str, Tensor], Tensor]:
        self.calls += 1
        return self._call(*arguments)


def gradient_of(problem: Problem) -> Counted:
    return Counted(vmap(grad_and_value(lambda values, *batch: functional_call(problem.module, values, batch))))


def inputs(problem: Problem, replicas: int) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    rows = torch.randn(replicas, problem.layout.dimension, generator=torch.Generator().manual_seed(replicas))
    ranks = list(range(replicas))
    return problem.layout.split(rows), problem.collate(ranks, [problem.samplers[rank].take(1)[0] for rank in ranks])


@pytest.mark.parametrize(
    "workload",
    [workloads.digits(batch_size=8), workloads.digits(model="cnn", batch_size=3), workloads.quadratic(dimension=5)],
    ids=["mlp", "cnn", "quadratic"],
)
def test_recorded_calls_equal_vmap_to_the_bit(workload: workloads.Workload):
    problem = workload.open(40, Streams(0))
    plain, counted = gradient_of(problem), gradient_of(problem)
    recorded = RecordedCalls(counted, problem.module)
    sizes = [*[5] * CALLS_BEFORE_RECORDING, 40, 2, 6, 7, 3, 33, 5]
    with torch.no_grad():
        for replicas in sizes:
            values, batch = inputs(problem, replicas)
            gradients, losses = recorded(values, *batch)
            expected, their_losses = plain(values, *batch)
            assert torch.equal(losses, their_losses)
            for name, part in expected.items():
                assert torch.equal(gradients[name], part)
    assert counted.calls < len(sizes) + 4  # two recordings and the checks; the other calls are recorded ones


def test_short_runs_are_not_recorded():
    problem = workloads.quadratic(dimension=2).open(4, Streams(0))
    counted = gradient_of(problem)
    recorded = RecordedCalls(counted, problem.module)
    for _ in range(CALLS_BEFORE_RECORDING - 1):
        values, batch = inputs(problem, 4)
        recorded(values, *batch)
    assert counted.calls == CALLS_BEFORE_RECORDING - 1


class OwnModule(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def test_modules_of_users_are_not_recorded():
    assert is_recordable(LossModule(nn.Linear(2, 2), cross_entropy))
    assert not is_recordable(LossModule(nn.Sequential(nn.Linear(2, 2), OwnModule()), cross_entropy))
    assert not is_recordable(LossModule(nn.Linear(2, 2), lambda prediction, target: prediction.sum()))
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *_: None)
    assert not is_recordable(LossModule(hooked, cross_entropy))


def mean_over_replicas(values: dict[str, Tensor], x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    return {"a": values["a"] * (1 / len(x))}, x.sum(1)


def other_above_ten(values: dict[str, Tensor], x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    return {"a": values["a"] * (2.0 if len(x) <= 20 else 3.0)}, x.sum(1)


@pytest.mark.parametrize("call", [mean_over_replicas, other_above_ten])
def test_operations_that_depend_on_the_number_of_replicas_are_not_replaced(call):
    recorded = RecordedCalls(call, nn.Linear(1, 1))
    for replicas in [*[3] * 20, 30, 31, 3, 30]:
        values, x = {"a": torch.randn(replicas, 2)}, torch.randn(replicas, 4)
        gradients, losses = recorded(values, x)
        expected, their_losses = call(values, x)
        assert torch.equal(gradients["a"], expected["a"]) and torch.equal(losses, their_losses)
