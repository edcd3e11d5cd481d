"""Inbox: messages that wait to be received, and messages that are due to the handler."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TypeGuard

from tacit.core.messages import Message

Received = tuple[int, Message]
"""Source and message."""


class Inbox:
    """Filled by the thread that reads, emptied by the worker and by the thread that handles."""

    def __init__(self, handles: tuple[type[Message], ...]) -> None:
        self._lock = Lock()
        self.waiting: deque[Received] = deque()
        self.due: deque[Received] = deque()
        self.handles, self._to_handle = handles, ()  # type: tuple[type[Message], ...], tuple[type[Message], ...]

    def __len__(self) -> int:
        return len(self.waiting) + len(self.due)

    def start_handling(self) -> None:
        """Make messages of the handled kinds due to the handler, first those that wait already."""
        with self._lock:
            self._to_handle = self.handles
            early, self.waiting = self.waiting, deque()
            for received in early:
                self._add(received)

    def add(self, received: Received) -> None:
        with self._lock:
            self._add(received)

    def _add(self, received: Received) -> None:
        (self.due if received[1].is_of(*self._to_handle) else self.waiting).append(received)

    @property
    def is_handling(self) -> bool:
        """Whether messages may be due to the handler."""
        return bool(self._to_handle)

    def is_for(self, came: tuple[int, object], kind: type[Message], source: int | None) -> TypeGuard[Received]:
        """Whether a ``receive`` of this kind and source may take the message directly, without storing it."""
        message = came[1]
        if not isinstance(message, Message) or source not in (None, came[0]):
            return False
        return message.is_of(kind) and not message.is_of(*self._to_handle)

    def take(self, kind: type[Message], source: int | None) -> Received | None:
        """Return the oldest waiting message of ``kind`` and from ``source``; None if there is none."""
        with self._lock:
            for index, received in enumerate(self.waiting):
                if received[1].is_of(kind) and source in (None, received[0]):
                    del self.waiting[index]
                    return received
        return None

    def forget(self, source: int) -> None:
        """Drop what ``source`` has sent. Call it under the hook lock: no handler takes a message meanwhile."""
        with self._lock:
            self.waiting = deque(received for received in self.waiting if received[0] != source)
            self.due = deque(received for received in self.due if received[0] != source)

    def clear(self) -> None:
        with self._lock:
            self.waiting.clear()
            self.due.clear()
