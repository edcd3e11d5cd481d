"""SGD, Adam and AdamW over flat rows, each row with its own learning rate and step count.

The update is a function of tensors alone, so that a CUDA graph or a compiled call can contain it. It computes what
``torch.optim`` computes for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.parameter_layout import Layout
from tacit.simulation.engine.choice import STATIC, Choice
from tacit.simulation.engine.row_optimizer import RowOptimizer, Template, row_optimizer
from tacit.training.optimizers import Factory
from tacit.workloads.workload import Problem

_NAMES_IN_TORCH: Final = {"momentum": "momentum_buffer", "mean": "exp_avg", "square": "exp_avg_sq"}
_PLAIN_ADAM: Final = ("amsgrad", "maximize")


class FlatOptimizer:
    """An optimizer over the rows of ``storage``, whose last row is scratch memory and belongs to no worker."""

    def __init__(self, template: Template, layout: Layout, storage: Tensor, schedule: Callable[[int], float]) -> None:
        self.base_rate = template.base_rates[0]
        self._group: dict[str, Any] = template.optimizer.param_groups[0]
        self._is_sgd = type(template.optimizer) is torch.optim.SGD
        # Weight decay acts on the parameters and not on the gradient.
        self._is_decoupled = type(template.optimizer) is torch.optim.AdamW or self._group.get("decoupled_weight_decay")
        self._storage, self._layout, self._schedule = storage, layout, schedule
        self._counts = np.zeros(len(storage), np.int64)  # steps each row has taken
        names = () if self._is_sgd and not self._group["momentum"] else ("momentum",)
        self.state = {name: torch.zeros_like(storage) for name in (names if self._is_sgd else ("mean", "square"))}

    @staticmethod
    def supports(template: Template) -> bool:
        """Whether a ``FlatOptimizer`` computes what the optimizer of ``template`` does."""
        optimizer, groups = template.optimizer, template.optimizer.param_groups
        if len(groups) != 1 or any(template.initial.values()):
            return False
        if type(optimizer) is torch.optim.SGD:
            return not groups[0]["maximize"]
        return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and not any(groups[0][n] for n in _PLAIN_ADAM)

    # Interface of graphs and compiled calls.

    def rates(self, steps: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the learning rate of each of ``steps``."""
        different, places = np.unique(steps, return_inverse=True)
        return np.array([self.learning_rate(step) for step in different.tolist()])[places]

    def counts(self, ranks: Sequence[int], steps: int) -> NDArray[np.int64]:
        """Return how many steps each of ``ranks`` has taken before each of its next ``steps`` steps, and count them.

        The shape is steps × ranks.
        """
        chosen = np.asarray(ranks)
        counts: NDArray[np.int64] = self._counts[chosen] + np.arange(steps)[:, None]
        self._counts[chosen] += steps
        return counts

    def update(
        self, rows: Tensor, gradient: Tensor, state: dict[str, Tensor], rates: Tensor, counts: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return ``rows`` and their ``state`` after one step; ``rates`` and ``counts`` have one number per row."""
        rates, counts = rates.to(rows.dtype).unsqueeze(1), counts.unsqueeze(1)
        decay = self._group["weight_decay"]
        if self._is_sgd:
            gradient = gradient + decay * rows if decay else gradient
            return self._sgd(rows, gradient, state, rates, counts)
        if decay and self._is_decoupled:
            rows = rows * (1 - rates * decay)
        elif decay:
            gradient = gradient + decay * rows
        return self._adam(rows, gradient, state, rates, counts)

    def _sgd(
        self, rows: Tensor, gradient: Tensor, state: dict[str, Tensor], rates: Tensor, counts: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        momentum = self._group["momentum"]
        if not momentum:
            return rows - rates * gradient, {}
        has_buffer, share = counts > 0, 1 - self._group["dampening"]
        old = torch.where(has_buffer, state["momentum"] * momentum, 0.0)  # a row that was reset has an old buffer
        buffer = old + (gradient if share == 1 else torch.where(has_buffer, gradient * share, gradient))
        direction = gradient + momentum * buffer if self._group["nesterov"] else buffer
        return rows - rates * direction, {"momentum": buffer}

    def _adam(
        self, rows: Tensor, gradient: Tensor, state: dict[str, Tensor], rates: Tensor, counts: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        (beta, beta_square), has_state = self._group["betas"], counts > 0
        old = torch.where(has_state, state["mean"], 0.0)
        old_square = torch.where(has_state, state["square"], 0.0)
        mean = old + (1 - beta) * (gradient - old)
        square = old_square * beta_square + (1 - beta_square) * gradient * gradient
        age = (counts + 1).double()
        scale = (1 - beta**age).to(rows.dtype)
        root = (1 - beta_square**age).sqrt().to(rows.dtype)
        rows = rows - rates / scale * mean / (square.sqrt() / root + self._group["eps"])
        return rows, {"mean": mean, "square": square}

    # Interface of ``RowOptimizer``.

    def step(
        self,
        ranks: Sequence[int],
        steps: Sequence[int],
        gradients: dict[str, Tensor],
        factor: float | None = None,
        copy: Tensor | None = None,
    ) -> None:
        device = self._storage.device
        flat = self._storage.new_empty(len(ranks), self._layout.dimension)
        self._layout.join(gradients, flat)
        rates = self.rates(steps) if factor is None else np.full(len(steps), self.base_rate * factor)
        counts = torch.from_numpy(self.counts(ranks, 1)[0]).to(device)
        places = torch.tensor(ranks, device=device)
        old = {name: rows.index_select(0, places) for name, rows in self.state.items()}
        own = self._storage.index_select(0, places)
        rows, state = self.update(own, flat, old, torch.from_numpy(rates).to(device), counts)
        self._storage.index_copy_(0, places, rows)
        for name, values in state.items():
            self.state[name].index_copy_(0, places, values)

    def learning_rate(self, step: int) -> float:
        return self.base_rate * self._schedule(step)

    def forget(self, rank: int) -> None:
        self._counts[rank] = 0

    def copy(self, source: int, target: int) -> None:
        self._counts[target] = self._counts[source]
        for rows in self.state.values():
            rows[target] = rows[source]

    def size_bytes(self, rank: int) -> int:
        return sum(rows[rank].nbytes for rows in self.state.values())

    def moments(self, rank: int) -> Mapping[str, Sequence[Tensor]]:
        return {_NAMES_IN_TORCH[name]: [rows[rank]] for name, rows in self.state.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self._counts.tolist(), "state": self.state}

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        self._counts = np.array(stored["counts"], np.int64)
        for name, rows in stored["state"].items():
            self.state[name].copy_(rows)


def engine_optimizer(
    choice: Choice, factory: Factory, problem: Problem, storage: Tensor, schedule: Callable[[int], float]
) -> RowOptimizer:
    """Return the optimizer over the rows of ``storage`` for an engine."""
    layout = problem.layout
    if choice.engine in STATIC:
        template = Template(factory, problem.module, layout)
        if FlatOptimizer.supports(template):
            return FlatOptimizer(template, layout, storage, schedule)
    return row_optimizer(factory, problem.module, layout, storage[:-1], schedule)
