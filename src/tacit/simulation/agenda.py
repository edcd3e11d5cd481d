"""The agenda: a heap of (time, sequence, action) and the virtual clock it moves."""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Action = Callable[[], None]


class Agenda:
    """What is still to happen. Equal times happen in the order they were written down."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.happened = 0
        self._sequence = 0
        self._heap: list[tuple[float, int, Action]] = []

    def at(self, time_s: float, action: Action) -> None:
        """Let ``action`` happen at ``time_s``, never before now."""
        self._sequence += 1
        heapq.heappush(self._heap, (time_s if time_s > self.now_s else self.now_s, self._sequence, action))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let things happen until ``is_over`` or nothing is left."""
        heap, pop = self._heap, heapq.heappop
        with rare_collections():
            while heap and not is_over():
                self.now_s, _, action = pop(heap)
                self.happened += 1
                action()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python look for garbage cycles less often: a simulation makes millions of small tuples and hardly a cycle."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 200_000), before[1], before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
