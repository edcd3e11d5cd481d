"""Ranks that differ are told so; all start from the model of rank 0."""

from __future__ import annotations

import re

import torch
from torch import nn

import tacit
from tests.runtime.processes import together
from tests.runtime.small_runs import flat, network, sgd


def disagreeing_run(what: str) -> None:
    me = tacit.rank()
    model = network()
    if what == "structure" and me == 2:
        model = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 1))
    if what == "frozen" and me == 1:
        model[0].weight.requires_grad_(False)
    if what == "dtype" and me == 1:
        model.double()
    cls = torch.optim.Adam if what == "optimizer" and me == 1 else torch.optim.SGD
    optimizer = cls([p for p in model.parameters() if p.requires_grad], lr=0.2 if what == "lr" and me == 2 else 0.1)
    period = tacit.Every(5 if what == "strategy" and me == 1 else 4)
    tacit.attach(model, optimizer, tacit.LocalSGD(period=period), seed=int(what == "seed" and me == 1)).close()


def all_disagreements(names: list[str]) -> list[str]:
    texts = []
    for name in names:
        try:
            disagreeing_run(name)
        except tacit.Disagreement as error:
            texts.append(str(error))
    return texts


def test_ranks_that_differ_are_told_the_first_difference_on_every_rank():
    expected = {
        "structure": r"parameters, 0.weight is \(9, 4\)",
        "frozen": "parameters, 0.weight is .*frozen on rank 1",
        "dtype": "float64 .* on rank 1",
        "optimizer": "optimizer is Adam on rank 1, SGD on rank 0",
        "lr": "optimizer's groups, 0, lr is 0.2 on rank 2",
        "strategy": r"strategy is LocalSGD\(period=Every\(5\)\) on rank 1",
        "seed": "seed is 1 on rank 1, 0 on rank 0",
    }
    for texts in together(3, all_disagreements, list(expected)):
        assert len(texts) == len(expected)
        for text, pattern in zip(texts, expected.values(), strict=True):
            assert re.search(pattern, text), text


def starts_differ() -> torch.Tensor:
    model = network(seed=tacit.rank())
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.AllReduce()):
        return flat(model)


def test_all_ranks_start_from_rank_0():
    first, second = together(2, starts_differ)
    assert torch.equal(first, second) and torch.equal(first, flat(network()))
