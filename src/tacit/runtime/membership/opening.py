"""Opening a gloo group without waiting for a member that is lost meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from threading import Thread
from typing import Any, Final

from torch._C._distributed_c10d import Store

from tacit.runtime.process_groups import Group

_PAUSE_S: Final = 0.001
_LOOK_S: Final = 0.01
"""Pause between two looks at the members."""
_LOST: Final = "a member was lost while its group was opened"


class WatchedStore(Store):
    """Passes calls on to ``store`` until it is closed; then, and after its time-out, a wait raises ``RuntimeError``."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store, self.is_closed = store, False

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> Any:
        return self._store.get(key)

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.check(keys))

    def add(self, key: str, value: int) -> int:
        return int(self._store.add(key, value))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        until_s = time.monotonic() + (timedelta(seconds=60) if timeout is None else timeout).total_seconds()
        while not self._store.check(keys):
            if self.is_closed:
                raise RuntimeError(_LOST)
            if time.monotonic() > until_s:
                raise RuntimeError("timed out while the members of a group waited for each other")
            time.sleep(_PAUSE_S)


def open_watched(store: Store, make: Callable[[Store], Group], is_lost: Callable[[], bool]) -> Group:
    """Return the group that ``make`` opens over ``store``; raise ``RuntimeError`` once ``is_lost()``.

    gloo connects to a process that is stopped or has ended for several times its time-out, so a thread does that. It
    closes a group that nobody waits for any more.
    """
    watched, made = WatchedStore(store), list[Group | RuntimeError]()

    def run() -> None:
        try:
            made.append(make(watched))
        except RuntimeError as error:
            made.append(RuntimeError(str(error)))  # without its traceback, which keeps the group
        if watched.is_closed and isinstance(made[0], Group):
            made[0].close()

    thread = Thread(target=run, name="tacit-open-group", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_LOOK_S)
        if thread.is_alive() and is_lost():
            watched.is_closed = True
            raise RuntimeError(_LOST)
    if isinstance(made[0], RuntimeError):
        raise made[0]
    return made[0]
