"""Means over ranks: one reduction of the engine's matrix, and the same results row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import tacit
from tacit.errors import Disagreement
from tacit.simulation.engine.engine import Engine
from tacit.simulation.engine.means import Given, means_of

STRATEGIES = [
    tacit.LocalSGD(period=tacit.Every(3)),
    tacit.LocalSGD(period=tacit.VariancePeriod(initial=2), weights="equal"),
    tacit.LocalSGD(period=tacit.Every(4), overlap_steps=1),
    tacit.LocalSGD(period=tacit.Every(2), outer=tacit.OuterSGD(lr=0.7, momentum=0.9)),
    tacit.AllReduce(),
]
UNEQUAL = tacit.workloads.digits(model="softmax", split="dirichlet", alpha=0.5, batch_size=256)


def simulated(strategy: tacit.Strategy, host: str = "greenlet", workers: int = 5) -> tacit.Run:
    """Return a run whose workers have batches, and therefore weights, of different sizes."""
    cluster = tacit.Cluster(workers=workers, compute=tacit.Exponential(mean_s=0.02))
    return tacit.simulate(UNEQUAL, strategy, cluster=cluster, steps=6, evaluate_every=6, host=host, lr=0.1)


def matrices_found(monkeypatch: pytest.MonkeyPatch, find: Callable[..., Tensor | None]) -> list[bool]:
    """Let engines find matrices by ``find``; return a list that gets whether each all-reduce had a matrix."""
    found: list[bool] = []

    def recorded(engine: Engine, *given: object) -> Tensor | None:
        matrix = find(engine, *given)
        found.append(matrix is not None)
        return matrix

    monkeypatch.setattr(Engine, "matrix_of", recorded)
    return found


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_the_matrix_and_the_rows_give_one_result(strategy: tacit.Strategy, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        found = matrices_found(patch, Engine.matrix_of)
        together = simulated(strategy)
        assert any(found)  # overlapped rounds send copies; the last round sends rows
    with monkeypatch.context() as patch:
        found = matrices_found(patch, lambda *given: None)
        apart = simulated(strategy)
        assert found and not any(found)
    assert together.trace.digest == apart.trace.digest
    torch.testing.assert_close(together.parameters, apart.parameters, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("strategy", [STRATEGIES[0], STRATEGIES[4]], ids=str)
def test_both_hosts_have_one_digest(strategy: tacit.Strategy, monkeypatch: pytest.MonkeyPatch):
    found = matrices_found(monkeypatch, Engine.matrix_of)
    assert simulated(strategy).digest == simulated(strategy, "thread").digest
    assert all(found)


@dataclass(frozen=True, kw_only=True)
class ByHalves(tacit.Strategy[None]):
    """Average the models of the even and of the odd ranks apart, with two numbers; one rank has weight 0."""

    def after_step(self, worker: tacit.Worker, state: None) -> None:
        group, model = range(worker.rank % 2, worker.size, 2), worker.parameters
        weight = float(worker.rank != 2)
        before = model.clone()
        numbers = worker.network.all_reduce_mean((model, [worker.rank, 0.5]), weight, group=group, into=model)
        alive = [rank for rank in group if rank != 2]
        assert numbers.tolist() == [pytest.approx(sum(alive) / len(alive)), 0.5]
        numbers.zero_()  # it is the rank's own
        assert not torch.equal(model, before)


def test_groups_average_their_rows(monkeypatch: pytest.MonkeyPatch):
    found = matrices_found(monkeypatch, Engine.matrix_of)
    models: dict[int, Tensor] = {}
    keep = lambda self, worker, state: models.update({worker.rank: worker.parameters.clone()})  # noqa: E731
    monkeypatch.setattr(ByHalves, "finish", keep)
    simulated(ByHalves())
    assert all(found) and torch.equal(models[0], models[2]) and torch.equal(models[1], models[3])
    assert not torch.equal(models[0], models[1])


def test_without_weight_each_rank_keeps_its_own():
    matrix = torch.arange(6.0).view(3, 2)
    rows = list(matrix)
    given = [Given((row, [float(rank)]), row) for rank, row in enumerate(rows)]
    means = means_of(range(3), given, [0.0] * 3, lambda tensors, ranks: matrix)
    means.write(range(3))
    assert [means.take(rank, row).tolist() for rank, row in enumerate(rows)] == [[0.0], [1.0], [2.0]]
    assert matrix.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def test_only_ranks_that_leave_are_written():
    """A worker that crashed while it waited may have been replaced: its row is not that of the round."""
    matrix = torch.tensor([[0.0, 1.0], [5.0, 5.0], [4.0, 6.0]])
    given = [Given(row, row) for row in matrix]
    means = means_of(range(3), given, [1.0] * 3, lambda tensors, ranks: matrix)
    means.write([0, 2])
    assert matrix.tolist() == [[3.0, 4.0], [5.0, 5.0], [3.0, 4.0]]


@pytest.mark.parametrize("find", [None, lambda tensors, ranks: torch.zeros(2, 2)], ids=["rows", "matrix"])
def test_ranks_with_different_numbers_are_told(find: Callable[..., Tensor] | None):
    given = [Given((torch.zeros(2), [1.0])), Given((torch.zeros(2), [1.0, 2.0]))]
    with pytest.raises(Disagreement, match=r"\(4,\) of torch.float32"):
        means_of((0, 1), given, [1.0, 1.0], find)


def test_a_result_shorter_than_into_fills_it_with_numbers():
    into = torch.zeros(3)
    given = [Given((torch.ones(2), [5.0, 6.0]), into), Given((torch.ones(2), [7.0, 8.0]))]
    means = means_of((0, 1), given, [1.0, 3.0], None)
    assert means.take(0, into).tolist() == [7.5] and into.tolist() == [1.0, 1.0, 6.5]
    assert means.take(1, None).tolist() == [1.0, 1.0, 6.5, 7.5]
