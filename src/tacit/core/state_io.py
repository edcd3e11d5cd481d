"""Convert the state of a strategy to plain tables of tensors and numbers, which a checkpoint stores, and back."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from tacit.core.message_reading import unpack
from tacit.core.messages import Message
from tacit.errors import RunError


class PendingRound(ABC):
    """A collective in progress that a strategy keeps in its state."""

    extra: Tensor | None
    """The extra state that was sent in the same collective."""

    @property
    @abstractmethod
    def ends_round(self) -> bool:
        """Whether the extra state of the round is done with when this collective ends."""

    @abstractmethod
    def result(self) -> Tensor:
        """Wait for the collective and return its result."""


Finished = Callable[[Tensor, Tensor | None, bool], object]
_PENDING = "a round under way"
_MESSAGE = "a message"


def store(value: Any, path: str = "state") -> Any:
    """Return ``value`` with dataclasses as dicts.

    A collective in progress is completed and stored as its result; as None if it failed.
    """
    if isinstance(value, Message):
        return {_MESSAGE: value.pack()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: store(getattr(value, field.name), f"{path}.{field.name}") for field in fields}
    if isinstance(value, PendingRound):
        try:
            ended = {"received": value.result().clone(), "riding": store(value.extra), "ends": value.ends_round}
            return {_PENDING: ended}
        except RunError:  # a worker is lost: the others start from the mean, which this round would not change
            return None
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: store(inner, f"{path}[{key!r}]") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(store(inner, f"{path}[{at}]") for at, inner in enumerate(value))
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    raise TypeError(
        f"{path} holds a {type(value).__name__}, which a checkpoint cannot store; use tensors, numbers and text."
    )


def restore(template: Any, stored: Any, finished: Finished | None) -> Any:
    """Return ``stored`` in the shape of ``template``, a new state.

    finished: returns the new form of a stored result of a collective; None: discard such results.
    """
    if dataclasses.is_dataclass(template) and not isinstance(template, type):
        keys = {field.name: _stored_key(template, field.name, stored) for field in dataclasses.fields(template)}
        inner = {
            name: restore(getattr(template, name), stored[key], finished)
            for name, key in keys.items()
            if key in stored  # a checkpoint of an earlier version may lack a field; use its default
        }
        return dataclasses.replace(template, **inner)
    if isinstance(stored, dict) and _PENDING in stored:
        ended = stored[_PENDING]
        return (
            None if finished is None else finished(ended["received"].clone(), ended["riding"], ended.get("ends", True))
        )
    if isinstance(stored, dict) and _MESSAGE in stored:
        return unpack(stored[_MESSAGE])
    if isinstance(stored, dict):
        known = template if isinstance(template, dict) else {}
        return {key: restore(known.get(key), inner, finished) for key, inner in stored.items()}
    if isinstance(stored, list | tuple):
        alike = isinstance(template, list | tuple) and len(template) == len(stored)
        inner_templates = template if alike else [None] * len(stored)
        return type(stored)(restore(*both, finished) for both in zip(inner_templates, stored, strict=True))
    return stored.clone() if isinstance(stored, Tensor) else stored


def _stored_key(template: Any, name: str, stored: dict[str, Any]) -> str:
    """Return the key of a field in ``stored``: its name, or its name in an earlier version.

    The class of a state lists renamed fields in ``earlier_names``, {name: earlier name}.
    """
    earlier: dict[str, str] = getattr(template, "earlier_names", {})
    return name if name in stored else earlier.get(name, name)


def store_generator(generator: np.random.Generator) -> dict[str, Any]:
    """Return the state of a random stream as numbers."""
    return {k: _numbers(v) for k, v in generator.bit_generator.state.items()}


def restore_generator(generator: np.random.Generator, stored: dict[str, Any]) -> None:
    """Set the state of a random stream."""
    state = {**stored, "state": {k: np.array(v, np.uint64) for k, v in stored["state"].items()}}
    state["buffer"] = np.array(stored["buffer"], np.uint64)
    generator.bit_generator.state = state


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in value.items()}
    return [int(v) for v in value] if isinstance(value, np.ndarray) else value
