"""A strategy's state as plain tables of tensors and numbers, and back: what a checkpoint may hold without pickling code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from tacit.session.riders import RidingPending

Restart = Callable[[Tensor, float, int], object]
_PENDING = "a round under way"


def store(value: Any, path: str = "state") -> Any:
    """Return ``value`` with dataclasses as dicts; a round under way as what was sent into it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: store(getattr(value, field.name), f"{path}.{field.name}") for field in fields}
    if isinstance(value, RidingPending):
        return {_PENDING: {"sent": value.sent.clone(), "weight": value.weight, "numbers": value.numbers}}
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: store(inner, f"{path}[{key!r}]") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(store(inner, f"{path}[{at}]") for at, inner in enumerate(value))
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    raise TypeError(
        f"{path} holds a {type(value).__name__}, which a checkpoint cannot; keep tensors, numbers and text there."
    )


def restore(template: Any, stored: Any, restart: Restart | None) -> Any:
    """Return ``stored`` in the shape of ``template``, a fresh state; rounds that were under way are begun again (None: forgotten)."""
    if dataclasses.is_dataclass(template) and not isinstance(template, type):
        inner = {
            field.name: restore(getattr(template, field.name), stored[field.name], restart)
            for field in dataclasses.fields(template)
        }
        return dataclasses.replace(template, **inner)
    if isinstance(stored, dict) and _PENDING in stored:
        begun = stored[_PENDING]
        return None if restart is None else restart(begun["sent"].clone(), begun["weight"], begun["numbers"])
    if isinstance(stored, dict):
        known = template if isinstance(template, dict) else {}
        return {key: restore(known.get(key), inner, restart) for key, inner in stored.items()}
    return stored.clone() if isinstance(stored, Tensor) else stored


def store_generator(generator: np.random.Generator) -> dict[str, Any]:
    """Return where a stream stands, as numbers."""
    return {k: _numbers(v) for k, v in generator.bit_generator.state.items()}


def restore_generator(generator: np.random.Generator, stored: dict[str, Any]) -> None:
    """Put a stream where it stood."""
    state = {**stored, "state": {k: np.array(v, np.uint64) for k, v in stored["state"].items()}}
    state["buffer"] = np.array(stored["buffer"], np.uint64)
    generator.bit_generator.state = state


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in value.items()}
    return [int(v) for v in value] if isinstance(value, np.ndarray) else value
