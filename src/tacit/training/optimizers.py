"""Local optimizers by name, or made by the user's own function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from tacit.errors import nearest, require

Factory = Callable[[list[nn.Parameter]], Optimizer]

ELEMENTWISE: Final = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adadelta,
)
"""Optimizers that update each number independently, so that many models can be updated as rows of one matrix."""
_NAMED: Final[dict[str, type[Optimizer]]] = {c.__name__.lower(): c for c in ELEMENTWISE}


def optimizer_factory(optimizer: str | Factory, lr: float, momentum: float, weight_decay: float) -> Factory:
    """Return a function from parameters to an optimizer, for a name with its settings or the user's own function."""
    if not isinstance(optimizer, str):
        require(callable(optimizer), f"optimizer={optimizer!r} must be a name or a function of parameters.")
        return optimizer
    cls = _NAMED.get(optimizer.lower())
    require(cls is not None, f"optimizer={optimizer!r} is unknown{nearest(optimizer, _NAMED)}")
    require(lr > 0, f"lr={lr} must be positive.")
    settings: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
    if momentum:
        require(
            cls in (torch.optim.SGD, torch.optim.RMSprop),
            f'momentum={momentum} needs optimizer="sgd" or "rmsprop"; leave it out, as {optimizer} has its own.',
        )
        settings["momentum"] = momentum
    return lambda parameters: cls(parameters, **settings)  # type: ignore[misc]
