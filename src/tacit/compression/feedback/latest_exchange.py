"""What follows from the messages of the latest exchange, computed once for all ranks that one process simulates."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch import Tensor

from tacit.core.messages import Message
from tacit.core.network import Gathered

Value = TypeVar("Value")


class _Exchange(NamedTuple):
    first: weakref.ref[Message]
    ids: tuple[int, ...]  # of all messages, which live as long as the first
    values: dict[Hashable, Any]


class LatestExchange:
    """Values of the latest exchange. Ranks that one process simulates hold the same message objects."""

    def __init__(self) -> None:
        self._latest: _Exchange | None = None

    def value(self, messages: Sequence[Message], key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return ``compute()``, or its result for the same messages and key; it is kept until the first one is gone."""
        values = messages.derived if isinstance(messages, Gathered) else self._values(messages)
        if key not in values:
            values[key] = compute()
        result: Value = values[key]
        return result

    def _values(self, messages: Sequence[Message]) -> dict[Hashable, Any]:
        """Return what has been computed from these messages, which each rank has in a list of its own."""
        ids, latest = tuple(map(id, messages)), self._latest
        if latest is None or latest.first() is not messages[0] or latest.ids != ids:
            latest = self._latest = _Exchange(weakref.ref(messages[0], self._drop), ids, {})
        return latest.values

    def _drop(self, first: weakref.ref[Message]) -> None:
        if self._latest is not None and self._latest.first is first:
            self._latest = None


LATEST: Final = LatestExchange()


class _Mean(NamedTuple):
    total: weakref.ref[Tensor]
    divisor: float
    before: Tensor
    after: Tensor
    mean: Tensor


class LatestMean:
    """The mean of the latest exchange of a feedback that adds all messages to a sum which is equal on all ranks.

    Simulated ranks that hold the same tensor, or equal ones, share the next one. Nobody writes to these tensors.
    """

    def __init__(self) -> None:
        self._latest: _Mean | None = None

    def advance(self, before: Tensor, total: Tensor, divisor: float) -> tuple[Tensor, Tensor]:
        """Return ``before + total``, and that divided by ``divisor``; ``total`` is one tensor for all ranks."""
        latest = self._latest
        if latest is not None and (latest.total() is not total or latest.divisor != divisor):
            latest = None
        if latest is not None and latest.before is before:
            return latest.after, latest.mean
        after = before + total
        if latest is None:
            self._latest = latest = _Mean(weakref.ref(total, self._drop), divisor, before, after, after / divisor)
        is_equal = after is latest.after or torch.equal(after, latest.after)
        return (latest.after, latest.mean) if is_equal else (after, after / divisor)

    def _drop(self, total: weakref.ref[Tensor]) -> None:
        if self._latest is not None and self._latest.total is total:
            self._latest = None
