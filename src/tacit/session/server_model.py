"""The server's own copy of the model, with an optimizer like rank 0's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tacit.session.flat import FlatModel


class ServerModel:
    """A flat vector of parameters, updated by an optimizer of the class and with the groups of the one given."""

    def __init__(self, flat: FlatModel, optimizer: Optimizer) -> None:
        self._flat = flat
        self.parameters = flat.vector().clone()
        copies = [nn.Parameter(part) for part in flat.split(self.parameters)]
        own = {id(mine): copy for mine, copy in zip(flat.parameters, copies, strict=True)}
        groups = [
            {**group, "params": [own[id(p)] for p in group["params"] if id(p) in own]}
            for group in optimizer.param_groups
        ]
        self._copies = copies
        self._optimizer = type(optimizer)(groups)  # type: ignore[call-arg]
        self._rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.updates = 0

    @torch.no_grad()
    def update(self, gradient: Tensor, learning_rate: float | None) -> None:
        """Apply the optimizer; ``learning_rate`` is of the first group, and the others keep their ratio to it."""
        factor = 1.0 if learning_rate is None or not self._rates[0] else learning_rate / self._rates[0]
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        for copy, part in zip(self._copies, self._flat.split(gradient), strict=True):
            copy.grad = part
        self._optimizer.step()
        self.updates += 1
