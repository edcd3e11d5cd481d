"""Lock that lets one hook or handler of a worker run at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident


class HookLock:
    """Re-entrant lock that a hook can release while it blocks, and that knows whether a handler holds it.

    Use ``with hook_lock:`` around a hook and ``with hook_lock.released():`` around a blocking call in a hook.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner = self._depth = 0  # identity of the thread; how often it has entered
        self._is_held_by_handler = False

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
        """Release the lock, however often it was entered, and acquire it again afterwards.

        Do nothing if the calling thread does not hold it.
        """
        depth = self.give_up()
        try:
            yield
        finally:
            self.take_back(depth)

    def give_up(self) -> int:
        """Release the lock if the calling thread holds it; return how often the thread had entered."""
        if self._owner != get_ident():
            return 0
        depth, self._depth, self._owner = self._depth, 0, 0
        self._lock.release()
        return depth

    def take_back(self, depth: int) -> None:
        """Acquire the lock again, as deep as ``give_up`` returned."""
        if depth:
            self._lock.acquire()
            self._depth, self._owner = depth, get_ident()

    @contextmanager
    def handling(self, timeout_s: float) -> Iterator[bool]:
        """Hold the lock as a handler; yield False if it is not free within ``timeout_s``."""
        if not self._lock.acquire(timeout=timeout_s):
            yield False
            return
        self._owner, self._depth, self._is_held_by_handler = get_ident(), 1, True
        try:
            yield True
        finally:
            self._owner, self._depth, self._is_held_by_handler = 0, 0, False
            self._lock.release()

    @property
    def is_handling(self) -> bool:
        """Whether the calling thread is inside a handler."""
        return self._is_held_by_handler and self._owner == get_ident()
