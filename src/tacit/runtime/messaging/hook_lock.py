"""The one lock that makes a worker a monitor: one of its hooks and handlers runs at a time (rule 2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident


class HookLock:
    """A lock that its owner may take again, give up while it blocks, and hold as a handler.

    ``with hook_lock:`` is for hooks, ``with hook_lock.released():`` for a hook that is about to block.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner = self._depth = 0  # a thread's identity; how often it has entered
        self._holds_a_handler = False

    def __enter__(self) -> HookLock:
        if self._owner != get_ident():
            self._lock.acquire()
            self._owner = get_ident()
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = 0
            self._lock.release()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Give the lock up, however often it was entered, and take it back afterwards; nothing to do for one who does
        not hold it.
        """
        depth = self.give_up()
        try:
            yield
        finally:
            self.take_back(depth)

    def give_up(self) -> int:
        """Release the lock if the calling thread holds it; return how often it had entered."""
        if self._owner != get_ident():
            return 0
        depth, self._depth, self._owner = self._depth, 0, 0
        self._lock.release()
        return depth

    def take_back(self, depth: int) -> None:
        """Hold the lock again as before ``give_up`` returned ``depth``."""
        if depth:
            self._lock.acquire()
            self._depth, self._owner = depth, get_ident()

    @contextmanager
    def handling(self, patience_s: float) -> Iterator[bool]:
        """Hold the lock as a handler; yield False if it could not be had within ``patience_s``."""
        if not self._lock.acquire(timeout=patience_s):
            yield False
            return
        self._owner, self._depth, self._holds_a_handler = get_ident(), 1, True
        try:
            yield True
        finally:
            self._owner, self._depth, self._holds_a_handler = 0, 0, False
            self._lock.release()

    @property
    def is_handling(self) -> bool:
        """Whether the calling thread is inside a handler."""
        return self._holds_a_handler and self._owner == get_ident()
