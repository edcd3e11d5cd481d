"""Fibers: the only module that suspends workers, and the only one that uses greenlet.

A fiber runs a body until it parks or ends, and continues from there when it is resumed. There are two hosts with equal
results: greenlets (about a microsecond per switch), and threads that run one at a time, which need no greenlet and are
the reference in tests.

Torch keeps its grad mode per thread, so an open ``no_grad`` of one greenlet would affect all others: parking saves and
restores the mode. Parking inside ``backward()`` would switch the stack inside autograd and is refused.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final, Protocol

import torch

from tacit.errors import MisplacedCall, nearest

try:
    import greenlet
except ImportError:  # the thread host is used
    greenlet = None

HOSTS: Final = ("greenlet", "thread")
is_grad_enabled, set_grad_enabled = torch.is_grad_enabled, torch._C._set_grad_enabled
_graph_task = torch._C._current_graph_task_id


class Stopped(BaseException):
    """Raised in a parked fiber to end it: a crash, or the end of the simulation.

    Not an ``Exception``, so that strategies do not catch it.
    """


class Fiber(Protocol):
    """A body that can be suspended. ``resume`` raises the errors of the body."""

    is_over: bool

    def resume(self) -> None:
        """From outside: run the body until it parks or ends; without effect if it has ended."""

    def throw(self, error: BaseException) -> None:
        """From outside: raise ``error`` where the body is parked."""

    def park(self) -> None:
        """From inside: suspend until resumed."""

    @property
    def frame(self) -> FrameType | None:
        """From outside: the innermost frame of a parked body."""


def default_host() -> str:
    """Return "greenlet" where it is installed, else "thread"."""
    return "thread" if greenlet is None else "greenlet"


def make_fiber(host: str, body: Callable[[], None]) -> Fiber:
    """Return a fiber for ``body``, not yet started, on one of ``HOSTS``."""
    match host:
        case "greenlet":
            if greenlet is None:
                raise ValueError('host="greenlet" needs the package greenlet; install it or pass host="thread".')
            return GreenletFiber(body)
        case "thread":
            return ThreadFiber(body)
        case _:
            raise ValueError(f"host={host!r} is unknown{nearest(str(host), HOSTS)}")


def refuse_in_backward() -> None:
    """Raise if called inside ``backward()``, where a worker cannot be suspended."""
    if _graph_task() != -1:
        raise MisplacedCall(
            "a blocking call inside backward(): gradient hooks may not communicate; "
            "do it in before_step, which runs when the gradient is complete."
        )


class GreenletFiber:
    """A fiber on a greenlet."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body
        self._greenlet = greenlet.greenlet(self._run)
        self.is_over = False

    def _run(self) -> None:
        try:
            self._body()
        except Stopped:
            pass
        finally:
            self.is_over = True

    def resume(self) -> None:
        if self.is_over:
            return
        grad = is_grad_enabled()
        try:
            self._greenlet.switch()
        finally:
            set_grad_enabled(grad)

    def throw(self, error: BaseException) -> None:
        grad = is_grad_enabled()
        try:
            if not self._greenlet:  # not started: nothing to unwind
                self.is_over = True
            else:
                self._greenlet.throw(error)
        finally:
            set_grad_enabled(grad)

    def park(self) -> None:
        if _graph_task() != -1:
            refuse_in_backward()
        grad = is_grad_enabled()
        self._greenlet.parent.switch()
        if is_grad_enabled() is not grad:
            set_grad_enabled(grad)

    @property
    def frame(self) -> FrameType | None:
        found: FrameType | None = self._greenlet.gr_frame
        return found


class ThreadFiber:
    """A fiber on its own thread; semaphores ensure that only one thread runs at a time."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body
        self._mine, self._outside = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None  # on its way in or out
        self.is_over = False

    def _run(self) -> None:
        self._mine.acquire()
        try:
            if self._error is None:
                self._body()
            else:
                self._error = None
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by ``resume``
            self._error = error
        finally:
            self.is_over = True
            self._outside.release()

    def resume(self) -> None:
        if self.is_over:
            return
        if not self._thread.ident:
            self._thread.start()
        self._mine.release()
        self._outside.acquire()
        if self.is_over:
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def throw(self, error: BaseException) -> None:
        self._error = error
        self.resume()

    def park(self) -> None:
        refuse_in_backward()
        self._outside.release()
        self._mine.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    @property
    def frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread.ident or 0)
