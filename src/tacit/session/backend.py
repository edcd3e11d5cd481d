"""What a session asks of the world it plays in: real processes, or the simulator's fibers.

A strategy sees the port alone; a session also needs a clock, a trace, agreement before the first step, and exchanges of
its own that are no part of the strategy's traffic and are not counted with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch.distributed
from torch import Tensor

from tacit.core.messages import Message
from tacit.core.network import Network
from tacit.core.strategy import Strategy
from tacit.record.trace import PlainEvent, Trace
from tacit.session.server_model import KeptModel, ServerLife, ServerModel

if TYPE_CHECKING:
    from tacit.session.session import Session

Loaded = TypeVar("Loaded")


class SessionBackend(Protocol):
    """One worker's world, for as long as a session lasts."""

    rank: int
    size: int
    world: str  # "processes" or "simulated"
    total_weight: float  # Σ of the weights in the latest mean this worker took part in

    @property
    def trace(self) -> Trace:
        """This worker's own events."""

    @property
    def network(self) -> Network: ...

    @property
    def hook_lock(self) -> AbstractContextManager[Any]:
        """Taken by every hook and handler, so that one of them runs at a time."""

    @property
    def is_handling(self) -> bool:
        """Whether the caller is a handler, which may not touch parameters."""

    def now_s(self) -> float: ...

    def set_clock(self, time_s: float) -> None:
        """Let the clock go on from ``time_s``, where a checkpoint left it."""

    def compute(self, step: int) -> None:
        """Step ``step`` (from 1) has its gradient: charge its time where time is virtual, and raise what makes going on
        pointless.
        """

    def landed(self, step: int, is_dropped: bool) -> None:
        """The step takes effect, or is dropped, from here on: put it into the trace.

        With its first hook, if it has one, in the monitor.
        """

    def hooked(self) -> None:
        """A hook has ended: what comes now is the worker's own computing."""

    def stepped(self) -> None:
        """The step is over with all its hooks."""

    def take_trace(self, rows: list[PlainEvent]) -> None:
        """Put what a checkpoint remembers of this worker before what happens now."""

    def abandon(self) -> bool:
        """A handler drops the gradient being computed; return whether there is one."""

    def agree(self, own: dict[str, Any]) -> None:
        """Raise ``Disagreement`` on every rank, naming the first difference, unless all ranks come with equal tables."""

    @property
    def living(self) -> Sequence[int]:
        """The ranks that took part in the latest exchange: all, or in gossip those whose processes exist."""

    def publish(self, name: str, value: Any) -> None:
        """Leave a value, as JSON holds it, for the other ranks to read. Waits for nobody."""

    def published(self, name: str) -> list[Any]:
        """Return what ranks have published under ``name`` so far, in rank order."""

    def exchange(self, data: bytes) -> list[bytes]:
        """Return every rank's bytes, in rank order, and none for a rank that is not among ``living``; uncounted."""

    def spread(self, tensor: Tensor, source: int = 0) -> None:
        """Overwrite ``tensor`` with rank ``source``'s; uncounted."""

    def mean(self, tensor: Tensor) -> Tensor:
        """Return the plain mean over the ranks of ``living``; uncounted."""

    def pause(self) -> AbstractContextManager[None]:
        """Stop the clock, for evaluations and checkpoints."""

    def listen(self, session: Session, handler: Callable[[int, Message], None]) -> None:
        """``session`` is ready: from now on give messages of its strategy's ``handles`` to ``handler``."""

    def start_server(self, life: ServerLife | None, model: ServerModel | None, steps: int | None, seed: int) -> None:
        """Let a shard of the strategy's server live beside this worker, where it has one (``life``).

        All workers call it.
        """

    @property
    def server_hook_lock(self) -> AbstractContextManager[Any]:
        """Held by the server beside this worker while it does anything but wait."""

    @property
    def server_is_apart(self) -> bool:
        """Whether the server is a process of its own."""

    @property
    def server_kept(self) -> list[KeptModel]:
        """What a server apart kept of its models on the way, after ``join_server``."""

    def send_start(self, model: Tensor) -> None:
        """Give a server apart the model to start from; one worker's is enough."""

    def join_server(self) -> Tensor | None:
        """Wait until the server beside this worker is done and return its part of the model; None where there is none."""

    def leave(self, failure: BaseException) -> None:
        """This session ends before its time: tell the others why, and let nobody wait for this worker in a collective."""

    @property
    def ending(self) -> str | None:
        """What all workers know the end of this run by, where it ends before its time; None where they cannot tell each
        other.
        """

    def close(self, failure: BaseException | None) -> None:
        """Leave nothing behind: no thread, no socket, no group. Others are told the reason of a failure."""


def level_clocks(backend: SessionBackend) -> None:
    """Clocks that stand still while ranks wait for each other would drift apart: all take the time of the last to come."""
    times_s = backend.exchange(repr(backend.now_s()).encode())
    backend.set_clock(max(float(time_s) for time_s in times_s if time_s))


class ScriptContext(Protocol):
    """What a simulated script sees before it attaches."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def strategy(self) -> Strategy[Any] | None:
        """The strategy that every session uses in place of the one that the script gives to ``attach``; None: the
        script's own.
        """

    def open_backend(self) -> SessionBackend:
        """Return the stage of one more session."""

    def share(self, load: Callable[[], Loaded]) -> Loaded:
        """Return what the first worker's ``load()`` returned."""


_current: ScriptContext | None = None


def current() -> ScriptContext | None:
    """Return the context of the script that the simulator runs now; None in a process of its own."""
    return _current


def put(context: ScriptContext | None) -> None:
    """Set the context of the script that runs from now on."""
    global _current
    _current = context


def rank() -> int:
    """Return this worker's rank, before or after ``attach``; 0 for a process alone."""
    if _current is not None:
        return _current.rank
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def size() -> int:
    """Return the number of workers, before or after ``attach``; 1 for a process alone."""
    if _current is not None:
        return _current.size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


def shared(load: Callable[[], Loaded]) -> Loaded:
    """Return ``load()``; under ``tacit simulate script.py`` all workers get the first one's result, so that data is
    loaded once.

    Treat what it returns as read-only: simulated workers hold the very same object.
    """
    return load() if _current is None else _current.share(load)
