"""Messages that came and wait: those to be received, and those due to the handler."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TypeGuard

from tacit.core.messages import Message

Letter = tuple[int, Message]
"""From whom, and the message."""


class Inbox:
    """Filled by whoever reads, emptied by the worker and by whoever handles."""

    def __init__(self, handles: tuple[type[Message], ...]) -> None:
        self._lock = Lock()
        self.waiting: deque[Letter] = deque()
        self.due: deque[Letter] = deque()
        self.handles, self._to_handle = handles, ()  # type: tuple[type[Message], ...], tuple[type[Message], ...]

    def __len__(self) -> int:
        return len(self.waiting) + len(self.due)

    def start_handling(self) -> None:
        """From now on messages of the handled kinds are due to the handler, those first that wait already."""
        with self._lock:
            self._to_handle = self.handles
            early, self.waiting = self.waiting, deque()
            for letter in early:
                self._add(letter)

    def add(self, letter: Letter) -> None:
        with self._lock:
            self._add(letter)

    def _add(self, letter: Letter) -> None:
        (self.due if letter[1].is_of(*self._to_handle) else self.waiting).append(letter)

    @property
    def is_handling(self) -> bool:
        """Whether messages may be due to the handler."""
        return bool(self._to_handle)

    def is_for(self, came: tuple[int, object], kind: type[Message], source: int | None) -> TypeGuard[Letter]:
        """Whether a ``receive`` of this kind and source may have what came at once, without putting it in."""
        message = came[1]
        if not isinstance(message, Message) or source not in (None, came[0]):
            return False
        return message.is_of(kind) and not message.is_of(*self._to_handle)

    def take(self, kind: type[Message], source: int | None) -> Letter | None:
        """Return the oldest message of the kind and from the source that waits to be received."""
        with self._lock:
            for place, letter in enumerate(self.waiting):
                if letter[1].is_of(kind) and source in (None, letter[0]):
                    del self.waiting[place]
                    return letter
        return None

    def clear(self) -> None:
        with self._lock:
            self.waiting.clear()
            self.due.clear()
