"""The agenda: a heap of (time, sequence, action) and the virtual clock it moves."""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Action = Callable[[], None]


class Agenda:
    """Pending events. Events at equal times run in the order in which they were added."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0  # run so far
        self.is_stopped = False
        self._sequence = 0
        self._heap: list[tuple[float, int, Action]] = []
        self._observations: list[tuple[float, int, Action]] = []
        self._is_observed = False

    def at(self, time_s: float, action: Action) -> None:
        """Run ``action`` at ``time_s``, or now if that has passed."""
        self._sequence += 1
        heapq.heappush(self._heap, (time_s if time_s > self.now_s else self.now_s, self._sequence, action))

    def allow_observations(self) -> None:
        """Let ``observe`` and ``stop`` have an effect on ``run``; called before ``run``, which is slower then."""
        self._is_observed = True

    def observe(self, time_s: float, action: Action) -> None:
        """Run ``action``, which is no event, after all events up to ``time_s`` and before a later one.

        It is not run if no later event follows.
        """
        self._sequence += 1
        heapq.heappush(self._observations, (time_s, self._sequence, action))

    def stop(self) -> None:
        """End ``run`` before the next event."""
        self.is_stopped = True

    def run(self, is_over: Callable[[], bool]) -> None:
        """Run events until ``is_over()``, ``stop`` or until no event is left."""
        heap, pop = self._heap, heapq.heappop
        with rare_collections():
            if self._is_observed:
                self._run_observed(is_over)
                return
            while heap and not is_over():
                self.now_s, _, action = pop(heap)
                self.events += 1
                action()

    def _run_observed(self, is_over: Callable[[], bool]) -> None:
        heap, observations, pop = self._heap, self._observations, heapq.heappop
        while heap and not self.is_stopped and not is_over():
            if observations and observations[0][0] < heap[0][0]:
                time_s, _, action = pop(observations)
                self.now_s = max(self.now_s, time_s)
            else:
                self.now_s, _, action = pop(heap)
                self.events += 1
            action()


@dataclass
class _Collections:
    """Simulations in progress, within each other or in several threads, and the settings from before the first.

    is_frozen_by_others: there were frozen objects, which must stay frozen. It stays true, as to count them takes long.
    """

    simulations: int = 0
    threshold: tuple[int, int, int] = (0, 0, 0)
    is_frozen_by_others: bool = False

    def begin(self) -> None:
        self.simulations += 1
        if self.simulations == 1:
            self.threshold = gc.get_threshold()
            self.is_frozen_by_others = self.is_frozen_by_others or gc.get_freeze_count() > 0
            gc.set_threshold(max(self.threshold[0], 200_000), *self.threshold[1:])
            if not self.is_frozen_by_others:
                gc.collect(1)
                gc.freeze()

    def end(self) -> None:
        self.simulations -= 1
        if not self.simulations:
            gc.set_threshold(*self.threshold)
            if not self.is_frozen_by_others:
                gc.unfreeze()


_COLLECTIONS = _Collections()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage less often: a simulation allocates millions of small tuples and few cycles.

    Objects from before the run, those of torch among them, are not examined again and again. What an earlier
    simulation has left, models in reference cycles among them, is collected first: later it would count as one of them.
    """
    _COLLECTIONS.begin()
    try:
        yield
    finally:
        _COLLECTIONS.end()
