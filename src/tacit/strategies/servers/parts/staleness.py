"""The staleness bound: no gradient is used more than a given number of updates after its model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tacit.strategies.servers.parts.learners import AWAY


class Gradient(Protocol):
    """A gradient with the version of the model that it was computed at."""

    @property
    def version(self) -> int: ...


GradientType = TypeVar("GradientType", bound=Gradient)


class StalenessBound:
    """Selects the gradients of an update so that none of them is older than ``maximum`` updates; None: no bound."""

    def __init__(self, maximum: int | None) -> None:
        self._maximum = maximum

    def select(
        self, pending: Sequence[tuple[int, GradientType]], k: int, version: int, held: Sequence[int]
    ) -> list[tuple[int, GradientType]]:
        """Return the pushes of the next update; nothing while fewer than ``k`` are pending.

        The update also uses pushes that would be too old for the next one. It waits for each learner whose gradient
        would be. held: by learner, the version it computes at.
        """
        if len(pending) < k:
            return []
        if self._maximum is None:
            return list(pending[:k])
        oldest = version + 1 - self._maximum  # the oldest version that may be used after this update
        if any(AWAY < one < oldest for one in held):
            return []
        return [*pending[:k], *(one for one in pending[k:] if one[1].version < oldest)]

    def holds_learners(self, pending: Sequence[object], k: int) -> bool:
        """Whether the learners must wait for the update because the update waits for a slow learner."""
        return self._maximum is not None and len(pending) >= k
