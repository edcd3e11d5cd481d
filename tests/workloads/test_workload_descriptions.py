"""Descriptions print as the call that makes them, compare by their parameters, and load nothing."""

import inspect
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from tacit import workloads
from tacit.workloads import Workload

X, Y = np.zeros((30, 4)), np.arange(30) % 2


def test_the_public_names() -> None:
    assert workloads.__all__ == [
        "Problem",
        "Workload",
        "cifar10",
        "custom",
        "digits",
        "images",
        "least_squares",
        "logistic",
        "mnist",
        "quadratic",
        "text",
    ]


@pytest.mark.parametrize(
    ("workload", "printed"),
    [
        (workloads.quadratic(), "quadratic()"),
        (workloads.quadratic(5, noise=0.0), "quadratic(dimension=5, noise=0.0)"),
        (workloads.digits(), 'digits(model="mlp")'),
        (workloads.digits(model="cnn"), 'digits(model="cnn")'),
        (workloads.logistic("a9a.bz2"), 'logistic("a9a.bz2")'),
        (workloads.logistic(Path("a9a.bz2"), batch_size=None), 'logistic("a9a.bz2", batch_size=None)'),
        (workloads.logistic((X, Y), dtype=torch.float32), "logistic(<30x4 array>, dtype=torch.float32)"),
        (workloads.least_squares((X, Y), split="sorted"), 'least_squares(<30x4 array>, split="sorted")'),
        (workloads.mnist("here", model="softmax"), 'mnist("here", model="softmax")'),
        (workloads.cifar10("here", alpha=0.1), 'cifar10("here", alpha=0.1)'),
        (workloads.images(np.zeros((2, 8, 8)), [0, 1]), "images(<2x8x8 array>)"),
        (workloads.text("plays.txt", layers=4), 'text("plays.txt", layers=4)'),
        (
            workloads.custom(nn.Linear(4, 2), cross_entropy, data=(X, Y)),
            "custom(Linear, cross_entropy, data=<30x4 array>)",
        ),
        (
            workloads.custom(nn.Linear(4, 2), nn.MSELoss(), data=(X, X), batch_size=8),
            "custom(Linear, MSELoss, data=<30x4 array>, batch_size=8)",
        ),
    ],
    ids=str,
)
def test_a_description_prints_as_its_call(workload: Workload, printed: str) -> None:
    assert str(workload) == printed


def test_descriptions_compare_by_their_parameters() -> None:
    assert workloads.digits() == workloads.digits() != workloads.digits(model="cnn")
    assert workloads.logistic((X, Y)) == workloads.logistic((X.copy(), Y.copy())) != workloads.logistic((X + 1, Y))
    assert hash(workloads.logistic((X, Y))) == hash(workloads.logistic((X.copy(), Y)))


def test_descriptions_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        workloads.digits().model = "cnn"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("function", "example"),
    [
        (workloads.quadratic, workloads.quadratic()),
        (workloads.digits, workloads.digits()),
        (workloads.logistic, workloads.logistic("a")),
        (workloads.least_squares, workloads.least_squares("a")),
        (workloads.mnist, workloads.mnist("a")),
        (workloads.cifar10, workloads.cifar10("a")),
        (workloads.images, workloads.images(np.zeros((2, 8, 8)), [0, 1])),
        (workloads.text, workloads.text("a")),
        (workloads.custom, workloads.custom(nn.Linear(4, 4), mse_loss, data=(X, X))),
    ],
)
def test_a_function_and_its_description_have_the_same_defaults(function: object, example: Workload) -> None:
    parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    described = {field.name: field.default for field in fields(example) if field.name in defaults}  # type: ignore[arg-type]
    assert described == defaults
