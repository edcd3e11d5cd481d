"""Optimizers over the rows of a matrix, each row the parameters of one worker.

An elementwise optimizer has the same effect on a row as on the worker's own tensors, so one call updates all rows with
the same learning rate and step count. Any other optimizer updates worker by worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tacit.core.parameter_layout import Layout
from tacit.training.optimizers import ELEMENTWISE, Factory

Rows = slice | Tensor


class RowOptimizer(Protocol):
    """Updates rows of the parameter matrix, each at its own step number."""

    base_rate: float  # of the first parameter group, before any schedule

    def step(
        self,
        ranks: Sequence[int],
        steps: Sequence[int],
        gradients: dict[str, Tensor],
        factor: float | None = None,
        copy: Tensor | None = None,
    ) -> None:
        """Update rows ``ranks`` in place; ``gradients`` by parameter name, one row each, in the same order.

        factor: on the base learning rates; None: the schedule's factor for the step of each row. copy: of these rows as
        they are, if there is one; it may be overwritten.
        """

    def learning_rate(self, step: int) -> float: ...

    def forget(self, rank: int) -> None:
        """Reset the state of a row to that before its first step."""

    def copy(self, source: int, target: int) -> None:
        """Give row ``target`` the state of row ``source``."""

    def size_bytes(self, rank: int) -> int:
        """Return the size of the state of a row."""

    def moments(self, rank: int) -> Mapping[str, Sequence[Tensor]]:
        """Return the moments of a row by torch's names, each as tensors in the order of the layout, to be written."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all rows as tensors and numbers."""

    def load_state_dict(self, stored: dict[str, Any]) -> None: ...


def row_optimizer(
    factory: Factory, module: nn.Module, layout: Layout, matrix: Tensor, schedule: Callable[[int], float]
) -> RowOptimizer:
    """Return the fastest optimizer over ``matrix`` that is equivalent to one optimizer of ``factory`` per row."""
    template = Template(factory, module, layout)
    cls = MatrixOptimizer if type(template.optimizer) in ELEMENTWISE else PerWorkerOptimizer
    return cls(factory, template, layout, matrix, schedule)


class Template:
    """The optimizer of one worker: its groups by parameter name, base learning rates and initial state."""

    def __init__(self, factory: Factory, module: nn.Module, layout: Layout) -> None:
        named = dict(module.named_parameters())
        own = {name: nn.Parameter(named[name].detach().clone()) for name in layout.names}
        self.optimizer = factory(list(own.values()))
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise ValueError(
                "optimizer=LBFGS evaluates the loss several times per step, which simulate does not support; "
                "use another optimizer."
            )
        names = {id(parameter): name for name, parameter in own.items()}
        self.groups = [[names[id(p)] for p in group["params"]] for group in self.optimizer.param_groups]
        self.base_rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.initial = {name: dict(self.optimizer.state.get(parameter, {})) for name, parameter in own.items()}

    def set_rates(self, optimizer: Optimizer, factor: float) -> None:
        for group, base in zip(optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = base * factor


class MatrixOptimizer:
    """An elementwise optimizer: one call for all rows with the same learning rate and step count."""

    def __init__(
        self, factory: Factory, template: Template, layout: Layout, matrix: Tensor, schedule: Callable[[int], float]
    ) -> None:
        self._template, self._layout, self._matrix, self._schedule = template, layout, matrix, schedule
        self.base_rate = template.base_rates[0]
        self._optimizer = template.optimizer
        self._counts = [0] * len(matrix)  # steps each row has taken
        self._state: dict[str, dict[str, Tensor]] = {name: {} for name in layout.names}  # rows by parameter and key
        self._scalars: dict[int, dict[str, dict[str, Any]]] = {}  # by count, parameter and key: equal in all rows
        groups = self._optimizer.param_groups
        self._is_stateless = type(self._optimizer) is torch.optim.SGD and not any(g["momentum"] for g in groups)
        self._is_plain = self._is_stateless and not any(g["weight_decay"] or g["maximize"] for g in groups)

    def learning_rate(self, step: int) -> float:
        return self.base_rate * self._schedule(step)

    def step(
        self,
        ranks: Sequence[int],
        steps: Sequence[int],
        gradients: dict[str, Tensor],
        factor: float | None = None,
        copy: Tensor | None = None,
    ) -> None:
        for (scheduled, count), places in self._together(ranks, steps).items():
            self._template.set_rates(self._optimizer, scheduled if factor is None else factor)
            chosen, some = [ranks[place] for place in places], gradients
            if len(places) < len(ranks):
                picked = torch.tensor(places, device=self._matrix.device)
                some = {name: gradient.index_select(0, picked) for name, gradient in gradients.items()}
            if chosen[-1] - chosen[0] + 1 == len(chosen):  # adjacent: updated in place
                self._step(self._matrix[chosen[0] : chosen[-1] + 1], slice(chosen[0], chosen[-1] + 1), count, some)
            else:
                rows = torch.tensor(chosen, device=self._matrix.device)
                are_all = len(places) == len(ranks)
                block = copy if are_all and copy is not None else self._matrix.index_select(0, rows)
                self._step(block, rows, count, some)
                self._matrix.index_copy_(0, rows, block)
            if not self._is_stateless:
                for rank in chosen:
                    self._counts[rank] += 1

    def forget(self, rank: int) -> None:
        self._counts[rank] = 0

    def copy(self, source: int, target: int) -> None:
        self._counts[target] = self._counts[source]
        for rows in self._state.values():
            for value in rows.values():
                value[target] = value[source]

    def size_bytes(self, rank: int) -> int:
        return sum(value[rank].nbytes for rows in self._state.values() for value in rows.values())

    def moments(self, rank: int) -> Mapping[str, Sequence[Tensor]]:
        keys = {key for rows in self._state.values() for key in rows}
        return {key: [self._state[name][key][rank] for name in self._layout.names] for key in keys}

    def state_dict(self) -> dict[str, Any]:
        return {"counts": list(self._counts), "state": self._state, "scalars": self._scalars}

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        self._counts, self._state, self._scalars = list(stored["counts"]), stored["state"], stored["scalars"]

    def _together(self, ranks: Sequence[int], steps: Sequence[int]) -> dict[tuple[float, int], list[int]]:
        """Group indices by what must be equal in one call: the factor and, if there is state, the step count."""
        if self._is_stateless and len(set(steps)) == 1:
            return {(self._schedule(steps[0]), 0): list(range(len(ranks)))}
        groups: dict[tuple[float, int], list[int]] = defaultdict(list)
        previous, factor = -1, 1.0
        for place, (rank, step) in enumerate(zip(ranks, steps, strict=True)):
            if step != previous:
                previous, factor = step, self._schedule(step)
            groups[factor, 0 if self._is_stateless else self._counts[rank]].append(place)
        return groups

    def _step(self, block: Tensor, rows: Rows, count: int, gradients: dict[str, Tensor]) -> None:
        """Load rows and their state after ``count`` steps into torch's optimizer, run it, and store the new state."""
        if self._is_plain:
            self._step_plainly(block, gradients)
            return
        parameters = {name: nn.Parameter(part) for name, part in self._layout.split(block).items()}
        for group, names in zip(self._optimizer.param_groups, self._template.groups, strict=True):
            group["params"] = [parameters[name] for name in names]
        for name, gradient in gradients.items():
            parameters[name].grad = gradient
        if not self._is_stateless:
            self._optimizer.state = defaultdict(dict, {p: self._load(n, p, rows, count) for n, p in parameters.items()})
        self._optimizer.step()
        for parameter in parameters.values():
            parameter.grad = None  # the next gradients reuse this memory, which is in the cache
        if self._is_stateless:
            return
        self._scalars[count + 1] = {n: self._store(n, self._optimizer.state[p], rows) for n, p in parameters.items()}
        youngest = min(self._counts)
        for old in [age for age in self._scalars if age < youngest]:
            del self._scalars[old]

    def _step_plainly(self, block: Tensor, gradients: dict[str, Tensor]) -> None:
        """Compute what torch's SGD computes without momentum and decay; its own bookkeeping costs more than that."""
        rows = self._layout.split(block)
        for group, names in zip(self._optimizer.param_groups, self._template.groups, strict=True):
            for name in names:
                rows[name].add_(gradients[name], alpha=-group["lr"])

    def _load(self, name: str, parameter: nn.Parameter, rows: Rows, count: int) -> dict[str, Any]:
        if count == 0:  # the initial state, equal in all elements
            initial = self._template.initial[name].items()
            return {
                k: torch.full_like(parameter, v.flatten()[0].item()) if _is_by_row(v) else _copy(v) for k, v in initial
            }
        state: dict[str, Any] = {k: v[rows] for k, v in self._state[name].items()}
        return state | {k: _copy(v) for k, v in self._scalars[count][name].items()}

    def _store(self, name: str, state: dict[str, Any], rows: Rows) -> dict[str, Any]:
        """Store the state per row and return the rest."""
        scalars, kept = {}, self._state[name]
        for key, value in state.items():
            if not _is_by_row(value):
                scalars[key] = value
                continue
            if key not in kept:
                kept[key] = value.new_zeros(len(self._matrix), *value.shape[1:])
            if not (
                isinstance(rows, slice) and kept[key][rows].data_ptr() == value.data_ptr()
            ):  # else updated in place
                kept[key][rows] = value
        return scalars


class PerWorkerOptimizer:
    """One optimizer per worker, for optimizers that are not known to be elementwise."""

    def __init__(
        self, factory: Factory, template: Template, layout: Layout, matrix: Tensor, schedule: Callable[[int], float]
    ) -> None:
        self._template, self._schedule, self.base_rate = template, schedule, template.base_rates[0]
        self._factory = factory
        self._rows = [{n: nn.Parameter(part) for n, part in layout.split(row).items()} for row in matrix]
        self._optimizers = [factory(list(row.values())) for row in self._rows]

    def moments(self, rank: int) -> Mapping[str, Sequence[Tensor]]:
        raise NotImplementedError("moments of optimizers that are not elementwise are refused before the run.")

    def forget(self, rank: int) -> None:
        self._optimizers[rank] = self._factory(list(self._rows[rank].values()))

    def copy(self, source: int, target: int) -> None:
        self._optimizers[target].load_state_dict(deepcopy(self._optimizers[source].state_dict()))

    def size_bytes(self, rank: int) -> int:
        held = self._optimizers[rank].state.values()
        return sum(value.nbytes for state in held for value in state.values() if isinstance(value, Tensor))

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [optimizer.state_dict() for optimizer in self._optimizers]}

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        for optimizer, own in zip(self._optimizers, stored["optimizers"], strict=True):
            optimizer.load_state_dict(own)

    def learning_rate(self, step: int) -> float:
        return self.base_rate * self._schedule(step)

    def step(
        self,
        ranks: Sequence[int],
        steps: Sequence[int],
        gradients: dict[str, Tensor],
        factor: float | None = None,
        copy: Tensor | None = None,
    ) -> None:
        for place, (rank, step) in enumerate(zip(ranks, steps, strict=True)):
            for name, parameter in self._rows[rank].items():
                parameter.grad = gradients[name][place]
            self._template.set_rates(self._optimizers[rank], self._schedule(step) if factor is None else factor)
            self._optimizers[rank].step()
            self._optimizers[rank].zero_grad(set_to_none=True)


def _is_by_row(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
