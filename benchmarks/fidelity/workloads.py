"""The models of the fidelity benchmark, on scikit-learn's digits."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
from torch import nn

from tacit import workloads
from tacit.workloads.workload import Workload

LEARNING_RATE: Final = 0.1
PARAMETERS: Final = {"mlp": 153_610, "mlp, batch 8": 153_610, "mlp, sorted": 153_610, "cnn": 143_466, "small": 4_810}


@cache
def workload(model: str) -> Workload:
    """Return the workload by the name of its model."""
    if model == "cnn":
        return _cnn()
    if model == "mlp, batch 8":  # so noisy that more workers need fewer steps
        return workloads.digits(model="mlp", hidden=2048, batch_size=8)
    if model == "mlp, sorted":  # each worker has the samples of some classes only
        return workloads.digits(model="mlp", hidden=2048, split="sorted")
    return workloads.digits(model="mlp", hidden={"mlp": 2048, "small": 64}[model])


def _cnn() -> Workload:
    """Return a convolutional model with about as many parameters as the MLP, and steps of about 10 ms."""
    from sklearn.datasets import load_digits  # optional: other workloads do not need it

    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )
    return workloads.custom(model, nn.functional.cross_entropy, data=(x, torch.tensor(digits.target)), batch_size=240)
