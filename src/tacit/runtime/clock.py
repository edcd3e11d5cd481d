"""The clock of a run on real processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class EventClock:
    """A clock that never shows the same time twice, so that the order of an endpoint's events is always known."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s, self._last_s = now_s, -1.0

    def __call__(self) -> float:
        self._last_s = max(self._now_s(), self._last_s + 1e-9)
        return self._last_s


class RunClock:
    """Seconds since the first step began, without evaluations and checkpoints. It shows 0 until ``start``."""

    def __init__(self) -> None:
        self._origin_s = time.perf_counter()
        self.is_started = False
        self._stopped_s: float | None = 0.0  # the time it shows while it is stopped
        self.recorded_until_s = 0.0  # events cover this worker's time up to here
        self.stamp_s = EventClock(self.now_s)

    def start(self) -> None:
        """Start at 0."""
        self.is_started, self._stopped_s = True, None
        self.set(0.0)

    def now_s(self) -> float:
        """Return the time."""
        return time.perf_counter() - self._origin_s if self._stopped_s is None else self._stopped_s

    def at_s(self, counter_s: float) -> float:
        """Return the time at which ``time.perf_counter()`` was ``counter_s``, as if the clock had not been stopped."""
        return counter_s - self._origin_s

    def pass_until(self, time_s: float) -> None:
        """Let time pass until ``time_s``: sleep, or set the clock if it is stopped."""
        if self._stopped_s is not None:
            self.set(max(self._stopped_s, time_s))
        while (left_s := time_s - self.now_s()) > 0:
            time.sleep(left_s)

    def set(self, time_s: float) -> None:
        """Continue from ``time_s``."""
        if self._stopped_s is not None:
            self._stopped_s = time_s
        self._origin_s = time.perf_counter() - time_s
        self.recorded_until_s = time_s

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stop the clock. Within another pause there is nothing to do."""
        if self._stopped_s is not None:
            yield
            return
        self._stopped_s = self.now_s()
        try:
            yield
        finally:
            stopped_s, self._stopped_s = self._stopped_s, None
            self.set(stopped_s)
