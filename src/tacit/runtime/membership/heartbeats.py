"""Heartbeats: a thread of every worker counts in the store, so that others can tell a busy process from a stopped one.

    beat/SEAT    a number that grows as long as the process runs and reaches the store

A worker that computes, evaluates or loads data for minutes keeps beating. A stopped process does not, nor one that is
cut off. The thread has a connection of its own, because a connection serves one call at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Final

from torch._C._distributed_c10d import Store

from tacit.runtime.membership.deadlines import LearnedDeadline

_BEAT_S: Final = 0.1
_RECENT_S: Final = 0.5


class Heartbeats:
    """The beats of this process, and what it sees of others.

    look: called with every beat, on the thread and with its connection. least_s: the shortest silence that counts.
    """

    def __init__(
        self,
        store: Store,
        seat: int,
        look: Callable[[Store], None] = lambda store: None,
        *,
        least_s: float = 3 * _BEAT_S,
    ) -> None:
        self._store, self._seat, self._look = store, seat, look
        self._gaps = LearnedDeadline(initial_s=max(2.0, least_s), least_s=least_s)
        self._seen: dict[int, tuple[int, float]] = {}  # by seat: its last count, and since when it has not changed
        self._looked_s = 0.0
        self._stop = Event()
        self._thread = Thread(target=self._beat, name="tacit-heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _beat(self) -> None:
        with suppress(RuntimeError):  # the store's host is gone: the worker's own calls notice
            own = _own_connection(self._store)
            last_s = time.monotonic()
            while not self._stop.wait(_BEAT_S):
                own.add(f"beat/{self._seat}", 1)
                self._look(own)
                now_s = time.monotonic()
                self._gaps.observe(now_s - last_s)
                last_s = now_s

    # What the worker's own thread asks.

    def watch_anew(self) -> None:
        """Forget what was seen of others: a wait for them begins."""
        self._seen.clear()

    def is_silent(self, seat: int) -> bool:
        """Whether ``seat`` has not beaten for longer than beats take here, since it was asked about first."""
        now_s, count = time.monotonic(), self._store.add(f"beat/{seat}", 0)
        before = self._seen.get(seat)
        if before is None or before[0] != count or now_s - self._looked_s > self._gaps.seconds / 2:
            self._seen[seat] = count, now_s  # it has beaten, or this process itself was stopped meanwhile
        self._looked_s = now_s
        return now_s - self._seen[seat][1] > self._gaps.seconds


class RecentBeats:
    """Which processes have beaten a moment ago, as seen by who looks again and again."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}  # by seat: its last count, and when it has changed

    def has(self, store: Store, seat: int) -> bool:
        """Whether ``seat`` has beaten between two looks not long ago."""
        now_s, count = time.monotonic(), store.add(f"beat/{seat}", 0)
        before, changed_s = self._seen.get(seat, (count, -_RECENT_S))
        self._seen[seat] = count, now_s if count != before else changed_s
        return now_s - self._seen[seat][1] < _RECENT_S


def _own_connection(store: Store) -> Store:
    """Return ``store`` behind a connection of its own; torch before 2.6 has no way to make one."""
    clone = getattr(store, "clone", None)
    return store if clone is None else clone()
