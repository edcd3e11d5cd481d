"""What follows from the messages of the latest exchange, computed once for all ranks that one process simulates."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from tacit.core.messages import Message

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
        ids, latest = tuple(map(id, messages)), self._latest
        if latest is None or latest.first() is not messages[0] or latest.ids != ids:
            latest = self._latest = _Exchange(weakref.ref(messages[0], self._drop), ids, {})
        if key not in latest.values:
            latest.values[key] = compute()
        result: Value = latest.values[key]
        return result

    def _drop(self, first: weakref.ref[Message]) -> None:
        if self._latest is not None and self._latest.first is first:
            self._latest = None


LATEST: Final = LatestExchange()
