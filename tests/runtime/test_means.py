"""The mean of an all-reduce, written into a given tensor, in both worlds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tacit
from tacit import workloads
from tacit.strategies import Strategy
from tests.runtime.processes import together

FOUND: dict[int, tuple[list[float], list[float], float]] = {}


class MeanInto(Strategy[None]):
    """Averages three numbers, two of them into a tensor of its own; rank 0 weighs ``weight``, the others ``weight`` and
    more.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def after_step(self, worker, state):
        into, own = torch.zeros(2), torch.tensor([1.0, 2.0, 3.0]) * (1 + worker.rank)
        weight = self.weight * (1 + worker.rank)
        rest = worker.network.all_reduce_mean([own[:1], own[1:]], weight, into=into)
        FOUND[worker.rank] = into.tolist(), rest.tolist(), own[0].item()


def attached(weight: float):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, MeanInto(weight), steps=1) as session:
        optimizer.step()
    return FOUND[session.rank]


def expected(weight: float, rank: int, size: int) -> tuple[list[float], list[float], float]:
    """Rank r has weight r + 1 and contributes r + 1 times the numbers; with weight 0 each rank keeps its own."""
    factor = sum((1 + r) ** 2 for r in range(size)) / sum(1 + r for r in range(size)) if weight else 1 + rank
    return [factor, 2 * factor], [3 * factor], float(1 + rank)


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.0])
def test_a_mean_is_written_into_a_given_tensor_and_the_rest_returned(weight: float):
    simulated = {}
    for size in (1, 2):
        FOUND.clear()
        tacit.simulate(workloads.quadratic(dimension=3), MeanInto(weight), cluster=tacit.Cluster(workers=size), steps=1)
        simulated[size] = dict(FOUND)
        for rank in range(size):
            assert flat(FOUND[rank]) == pytest.approx(flat(expected(weight, rank, size)))
    for rank, real in enumerate(together(2, attached, weight)):
        assert flat(real) == pytest.approx(flat(simulated[2][rank]))
    FOUND.clear()
    assert flat(attached(weight)) == pytest.approx(flat(simulated[1][0]))


def flat(found: tuple[list[float], list[float], float]) -> list[float]:
    return [*found[0], *found[1], found[2]]
