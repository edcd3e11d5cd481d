"""Messages that came and wait: those to be received, and those due to the handler."""

from __future__ import annotations

from collections import deque
from threading import Lock

from tacit.messages import Message

Letter = tuple[int, Message]
"""From whom, and the message."""


class Inbox:
    """Filled by whoever reads, emptied by the worker and by whoever handles."""

    def __init__(self, handles: tuple[type[Message], ...]) -> None:
        self._lock = Lock()
        self._waiting: deque[Letter] = deque()
        self.due: deque[Letter] = deque()
        self._handles, self._to_handle = handles, ()  # type: tuple[type[Message], ...], tuple[type[Message], ...]

    def __len__(self) -> int:
        return len(self._waiting) + len(self.due)

    def start_handling(self) -> None:
        """From now on messages of the handled kinds are due to the handler, those first that wait already."""
        with self._lock:
            self._to_handle = self._handles
            early, self._waiting = self._waiting, deque()
            for letter in early:
                self._add(letter)

    def add(self, letter: Letter) -> None:
        with self._lock:
            self._add(letter)

    def _add(self, letter: Letter) -> None:
        (self.due if isinstance(letter[1], self._to_handle) else self._waiting).append(letter)

    def is_for(self, letter: Letter, kind: type[Message], source: int | None) -> bool:
        """Whether a ``receive`` of this kind and source may have the letter at once, without putting it in."""
        message = letter[1]
        return isinstance(message, kind) and source in (None, letter[0]) and not isinstance(message, self._to_handle)

    def take(self, kind: type[Message], source: int | None) -> Letter | None:
        """Return the oldest message of the kind and from the source that waits to be received."""
        if self._waiting:
            with self._lock:
                for place, letter in enumerate(self._waiting):
                    if isinstance(letter[1], kind) and source in (None, letter[0]):
                        del self._waiting[place]
                        return letter
        return None

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()
            self.due.clear()
