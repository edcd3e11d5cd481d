"""What a script can ask before it attaches: its rank, the number of workers, data that is loaded once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch.distributed
from torch import nn

from tacit.core.strategy import Strategy
from tacit.session.backend import SessionBackend

Loaded = TypeVar("Loaded")


class ScriptContext(Protocol):
    """What a simulated script sees before it attaches."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def strategy(self) -> Strategy[Any] | None:
        """The strategy of every session, in place of the one that the script passes to ``attach``; None: its own."""

    @property
    def own_strategies(self) -> list[str]:
        """The strategies that the script has passed to ``attach`` so far."""

    def open_backend(self, model: nn.Module, strategy: Strategy[Any]) -> SessionBackend:
        """Return the backend of one more session, which trains ``model`` with ``strategy``."""

    def share(self, load: Callable[[], Loaded]) -> Loaded:
        """Return what the first worker's ``load()`` returned."""


_current: ScriptContext | None = None


def script_context() -> ScriptContext | None:
    """Return the context of the script that the simulator runs now; None in a process of its own."""
    return _current


def set_script_context(context: ScriptContext | None) -> None:
    """Set the context of the script that runs from now on."""
    global _current
    _current = context


def rank() -> int:
    """Return this worker's rank, before or after ``attach``; 0 for a single process."""
    if _current is not None:
        return _current.rank
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def size() -> int:
    """Return the number of workers, before or after ``attach``; 1 for a single process."""
    if _current is not None:
        return _current.size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


def load_once(load: Callable[[], Loaded]) -> Loaded:
    """Return ``load()``; under ``tacit simulate script.py`` all workers get the result of the first one's call.

    Treat the result as read-only: simulated workers hold the same object.
    """
    return load() if _current is None else _current.share(load)
