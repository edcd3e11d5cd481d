"""The latest sum of messages, shared by the ranks that one process simulates."""

from __future__ import annotations

import weakref
from typing import Final

from torch import Tensor

from tacit.core.messages import Message


class LatestSum:
    """The latest sum. Ranks that one process simulates hold the same message objects, so they can share it."""

    def __init__(self) -> None:
        self._entry: tuple[weakref.ref[Message], object, Tensor] | None = None

    def get(self, first: weakref.ref[Message], key: object) -> Tensor | None:
        """Return the sum of ``key`` whose first message is ``first``, if it is the latest."""
        reference, known, total = self._entry or (None, None, None)
        return total if reference is not None and reference() is first() and known == key else None

    def set(self, first: weakref.ref[Message], key: object, total: Tensor) -> None:
        """Keep a sum until its first message is gone; ``first`` must have ``drop`` as its callback."""
        self._entry = (first, key, total)

    def drop(self, first: weakref.ref[Message]) -> None:
        """Forget the sum whose first message is gone."""
        if self._entry is not None and self._entry[0] is first:
            self._entry = None


LATEST: Final = LatestSum()
