"""The models that are trained, by the name of the task. Needs torch alone."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector


def build(task: str) -> nn.Module:
    """Return the model of a task, with weights of torch's default initialisation."""
    if task == "cifar10":  # 1.13M parameters
        return nn.Sequential(
            nn.Conv2d(3, 32, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 8 * 8, 270),
            nn.ReLU(),
            nn.Linear(270, 10),
        )
    pixels, hidden = {"mnist": (784, 1280), "digits": (64, 64)}[task]  # mnist: 1.02M parameters
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def flat(module: nn.Module) -> Tensor:
    """Return a copy of the parameters as one vector."""
    return parameters_to_vector(module.parameters()).detach()


def load(module: nn.Module, vector: Tensor) -> None:
    """Copy a vector into the parameters."""
    begin = 0
    for parameter in module.parameters():
        parameter.data.copy_(vector[begin : begin + parameter.numel()].view_as(parameter))
        begin += parameter.numel()
