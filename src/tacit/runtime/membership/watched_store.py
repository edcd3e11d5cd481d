"""A store for the rendezvous of a gloo group that stops waiting when a member is lost meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from torch._C._distributed_c10d import Store

_PAUSE_S: Final = 0.001
_LOOKS: Final = 10
"""Looks at the store between two looks at the members."""


class WatchedStore(Store):
    """Passes calls on to ``store``; a wait raises ``RuntimeError`` once ``is_lost()``, or after its time-out."""

    def __init__(self, store: Store, is_lost: Callable[[], bool]) -> None:
        super().__init__()
        self._store, self._is_lost = store, is_lost

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> Any:
        return self._store.get(key)

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.check(keys))

    def add(self, key: str, value: int) -> int:
        return int(self._store.add(key, value))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        until_s, looks = time.monotonic() + (timedelta(seconds=60) if timeout is None else timeout).total_seconds(), 0
        while not self._store.check(keys):
            looks += 1
            if looks % _LOOKS == 0 and self._is_lost():
                raise RuntimeError("a member was lost while its group was opened")
            if time.monotonic() > until_s:
                raise RuntimeError("timed out while the members of a group waited for each other")
            time.sleep(_PAUSE_S)
