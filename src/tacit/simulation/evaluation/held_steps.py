"""Steps that wait outside the engine's queue: evaluations at times need the models of workers at these times."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any


class HeldSteps:
    """Steps in progress of a worker that are not in the engine's queue, because an evaluation may precede their ends.

    advance: queues whole steps, of which it gets the first number and the mini-batches.
    """

    def __init__(self, advance: Callable[[int, Any], None]) -> None:
        self._advance = advance
        self._first, self._ends_s = 0, list[float]()
        self._batches: Any = ()
        self._last: tuple[float, Callable[[], None]] | None = None

    def hold(self, first: int, batches: Any, ends_s: Sequence[float]) -> None:
        """Hold whole steps from ``first`` on, which end at ``ends_s``."""
        self._first, self._batches, self._ends_s = first, batches, list(ends_s)

    def hold_last(self, end_s: float, queue: Callable[[], None]) -> None:
        """Hold a step with hooks behind them, which ``queue`` queues."""
        self._last = (end_s, queue)

    def release(self, until_s: float) -> None:
        """Queue the steps that end until ``until_s``."""
        ready = bisect_right(self._ends_s, until_s)
        if ready:
            self._advance(self._first, self._batches[:ready])
            self._first, self._batches, self._ends_s = self._first + ready, self._batches[ready:], self._ends_s[ready:]
        if self._last is not None and not self._ends_s and self._last[0] <= until_s:
            (_, queue), self._last = self._last, None
            queue()
