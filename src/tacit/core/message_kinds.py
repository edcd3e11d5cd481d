"""The message classes of a process by kind: a kind is the wire name of a message class."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tacit.core.message_reading import Plan
    from tacit.core.messages import Message


class Kinds:
    """The message classes of one worker, by kind.

    Each worker of a simulated script has its own; in all other cases a process has one.
    """

    def __init__(self) -> None:
        self.defined: dict[bytes, type[Message]] = {}
        self.plans: dict[bytes, Plan] = {}  # by signature, for these classes

    def find(self, name: bytes) -> type[Message] | None:
        """Return this worker's class of a kind, else the class that any worker defined last."""
        return self.defined.get(name) or _latest.get(name)

    def define(self, name: bytes, kind: type[Message]) -> None:
        """Set the class of a kind and discard plans, which may refer to the class it replaces."""
        _latest[name] = self.defined[name] = kind
        self.plans.clear()


class _InUse:
    """The kinds in use. ``plans`` is a field of its own because every message looks it up."""

    __slots__ = ("kinds", "plans")

    def __init__(self, kinds: Kinds) -> None:
        self.kinds, self.plans = kinds, kinds.plans


_latest: dict[bytes, type[Message]] = {}
IN_USE: Final = _InUse(Kinds())


def use_kinds(kinds: Kinds) -> None:
    """Define classes in ``kinds``, and read messages as its classes, from now on."""
    IN_USE.kinds, IN_USE.plans = kinds, kinds.plans


def kinds_in_use() -> Kinds:
    """Return the kinds in which classes are defined now."""
    return IN_USE.kinds


def latest_kinds() -> dict[bytes, type[Message]]:
    """Return the latest class of each kind."""
    return dict(_latest)


def restore_latest_kinds(before: dict[bytes, type[Message]]) -> None:
    """Return to the classes of ``before``, but keep new classes of modules that are still loaded.

    Classes of ``__main__`` are removed: that module was a simulated script.
    """
    for name, kind in latest_kinds().items():
        if kind is not before.get(name) and (kind.__module__ == "__main__" or kind.__module__ not in sys.modules):
            del _latest[name]
    _latest.update(before)
