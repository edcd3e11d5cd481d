"""The table of settings that must be equal on all ranks, and the first difference between two tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tacit.core.strategy import Strategy
from tacit.record.versions import tacit_version
from tacit.session.options import SessionOptions
from tacit.session.steps.optimizers import Optimizers

Table = dict[str, Any]


def common_table(
    model: nn.Module,
    optimizers: Optimizers,
    strategy: Strategy[Any],
    steps: int | None,
    seed: int,
    options: SessionOptions,
) -> Table:
    """Return the settings that must be equal on all ranks and on the server."""
    return table_of(
        model,
        optimizers,
        tacit=tacit_version(),
        strategy=str(strategy),
        seed=seed,
        steps=steps,
        buffers=options.buffers,
        optimizer_state=options.optimizer_state,
        moments_every=str(options.moments_every),
        live=options.live,
    )


def table_of(model: nn.Module, optimizers: Optimizers, **settings: object) -> Table:
    """Return settings, names and shapes, the ones whose difference matters most to a user first."""
    return {
        **{name: _plain(value) for name, value in settings.items()},
        "torch": torch.__version__,
        "parameters": {
            name: _tensor(p) + ("" if p.requires_grad else ", frozen") for name, p in model.named_parameters()
        },
        "buffers": {name: _tensor(b) for name, b in model.named_buffers()},
        "optimizer": str(optimizers),
        "optimizer's groups": [
            {**{k: _plain(v) for k, v in group.items() if k != "params"}, "parameters": len(group["params"])}
            for group in optimizers.param_groups
        ],
    }


def first_difference(mine: Any, other: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Return the path of the first difference between two tables and both values; None if they are equal."""
    if isinstance(mine, dict) and isinstance(other, dict):
        for key in [*other, *(k for k in mine if k not in other)]:
            inner = f"{path}, {key}" if path else str(key)
            if found := first_difference(mine.get(key, "nothing"), other.get(key, "nothing"), inner):
                return found
        return None
    if isinstance(mine, list) and isinstance(other, list):
        if len(mine) != len(other):
            return f"{path}, how many", len(mine), len(other)
        return next(_differences(mine, other, path), None)
    return None if mine == other else (path, mine, other)


def _differences(mine: list[Any], other: list[Any], path: str) -> Iterator[tuple[str, Any, Any]]:
    for number, pair in enumerate(zip(mine, other, strict=True)):
        if found := first_difference(*pair, f"{path}, {number}"):
            yield found


def _tensor(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype} {tensor.device.type}, strides {tuple(tensor.stride())}"


def _plain(value: object) -> object:
    """Return ``value`` as JSON can represent it."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else str(value)
