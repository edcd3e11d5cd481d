"""Worker processes of a comparison, one for each run at a time, which live until all runs are made.

They are forks of this process where that is safe, which takes milliseconds. Else a fork server imports torch once more
and forks them.

A process pool of the standard library would lose all runs when one process is killed, and could not name the run that
was lost.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection as connections
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, Final

from tacit.compare import process_worker
from tacit.compare.execution import NotSendable
from tacit.compare.forks import is_forkable
from tacit.compare.process_worker import ENDED, PROTOCOL, READY, STEP, STOPPED, UNREADABLE
from tacit.compare.tasks import Outcome, Task, Work
from tacit.compare.watcher import Watcher
from tacit.errors import TacitError

LATER: Final = ("torch._dynamo",)
"""Modules that a first run imports, about 1 s of processor time: the fork server imports them for all processes."""
PATIENCE_S: Final = 10.0
"""Longest time that an interrupted run may take to hand over its results."""


@dataclass
class _Slot:
    """A worker process, its connection, and the task it works on."""

    process: BaseProcess
    connection: Connection
    task: Task | None = None
    is_ready: bool = False


class ProcessRunner:
    """Makes runs in worker processes on this machine."""

    def __init__(
        self, work: Work, jobs: int, watcher: Watcher, *, runs: int | None = None, start_method: str | None = None
    ) -> None:
        """runs: how many there are, None: not known. start_method: of multiprocessing, None: the fastest safe one."""
        self.capacity: int | None = jobs
        self._watcher, self._slots = watcher, list[_Slot]()
        if getattr(current_process(), "_inheriting", False):
            raise SystemExit(1)  # a worker process imports the script that started it; see ``_lost``
        self._work = _pickled(work)
        can_fork = start_method is None and is_forkable()
        self._context = get_context("fork") if can_fork else _context(start_method)
        for _ in range(min(jobs, runs or jobs) if can_fork else 0):  # all of them before a display starts its thread
            self._start()
        self._context = _context(start_method)  # of those that take the place of a lost process
        self._ctrl_c = _CtrlC()

    def submit(self, task: Task) -> None:
        message = _pickled(task)
        slot = next((slot for slot in self._slots if slot.task is None), None) or self._start()
        slot.task = task
        with suppress(BrokenPipeError, ConnectionResetError):  # its death is reported by ``next``
            slot.connection.send_bytes(message)
        self._watcher.begin(task)

    def next(self) -> tuple[Task, Outcome]:
        while True:
            ready = self._wait([self._ctrl_c.connection], None)
            if self._ctrl_c.connection in ready:
                self._ctrl_c.connection.recv_bytes()
                raise KeyboardInterrupt
            for slot in self._ready(ready):
                ended = self._receive(slot)
                if ended is not None:
                    return ended

    def interrupt(self) -> list[tuple[Task, Outcome]]:
        found = []
        try:
            for slot in self._busy():
                slot.process.terminate()
            while self._busy() and (ready := self._wait([], PATIENCE_S)):
                for slot in self._ready(ready):
                    ended = self._receive(slot, is_interrupted=True)
                    found += [] if ended is None else [ended]
        except KeyboardInterrupt:
            pass  # pressed again: what has not arrived is given up
        return found

    def close(self) -> None:
        for slot in self._slots:
            slot.connection.close()
            if slot.task is not None:
                slot.process.kill()
        for slot in self._slots:
            slot.process.join()
            slot.process.close()
        self._slots.clear()
        self._ctrl_c.close()

    def _start(self) -> _Slot:
        ours, theirs = self._context.Pipe()
        is_fork = self._context.get_start_method() == "fork"
        inherited = [ours, *(slot.connection for slot in self._slots)] if is_fork else []
        process = self._context.Process(  # type: ignore[attr-defined]
            target=process_worker.serve, args=(theirs, dict(os.environ), inherited), name="tacit-compare"
        )
        process.start()
        theirs.close()  # so that the end of the process closes the connection
        slot = _Slot(process, ours)
        self._slots.append(slot)
        with suppress(BrokenPipeError, ConnectionResetError):
            ours.send_bytes(self._work)
        return slot

    def _busy(self) -> list[_Slot]:
        return [slot for slot in self._slots if slot.task is not None]

    def _wait(self, others: list[Any], timeout_s: float | None) -> list[Any]:
        busy = self._busy()
        objects = [slot.connection for slot in busy] + [slot.process.sentinel for slot in busy]
        return connections.wait([*objects, *others], timeout_s)

    def _ready(self, ready: list[Any]) -> Iterator[_Slot]:
        for slot in self._busy():
            if slot.connection in ready or slot.process.sentinel in ready:
                yield slot

    def _receive(self, slot: _Slot, *, is_interrupted: bool = False) -> tuple[Task, Outcome] | None:
        """Return the task that ends with the next message of ``slot``, if it does."""
        task = slot.task
        assert task is not None
        try:
            if not slot.connection.poll():  # its process has ended, and has sent nothing more
                raise EOFError
            kind, content = pickle.loads(slot.connection.recv_bytes())
            outcome = pickle.loads(slot.connection.recv_bytes()) if kind == ENDED else None
        except (EOFError, ConnectionResetError):
            return self._lost(slot, task, is_interrupted)
        if kind == READY:
            slot.is_ready = True
        elif kind == STEP:
            self._watcher.step(task, *content)
        elif kind == UNREADABLE:
            raise NotSendable(content)
        elif kind == STOPPED:
            slot.task = None
            if not is_interrupted:
                raise KeyboardInterrupt
        if outcome is None:
            return None
        slot.task = None
        return task, outcome

    def _lost(self, slot: _Slot, task: Task, is_interrupted: bool) -> tuple[Task, Outcome] | None:
        """Return the task of a process that has ended; another process takes its place when it is needed."""
        slot.connection.close()
        slot.process.join()
        code, was_ready = slot.process.exitcode or 0, slot.is_ready
        slot.process.close()
        self._slots.remove(slot)
        if is_interrupted:
            return None
        if not was_ready:
            raise TacitError(
                f"a worker process ended with exit code {code} before its first run; jobs > 1 needs a script that can "
                f"be imported: put the call of tacit.compare under if __name__ == '__main__', or use jobs=1."
            )
        return task, Outcome(None, TacitError(_cause(code)))


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value, PROTOCOL)
    except Exception as error:  # the classes of users raise what they like
        raise NotSendable(f"{type(error).__name__}: {error}") from error


def _cause(code: int) -> str:
    """Return what ended a process, and the way out."""
    if code >= 0:
        return f"its process ended with exit code {code} before the run was complete; jobs=1 shows its error output."
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":
        return "its process was killed (SIGKILL), maybe for lack of memory; use fewer jobs, and resume the comparison."
    return f"its process ended by {name}; jobs=1 runs it in the main process."


def _context(start_method: str | None) -> BaseContext:
    """Return the context of ``start_method``.

    A fork server imports torch once and starts no threads; a fork of this process would copy locks that threads of
    torch hold.
    """
    if start_method is None:
        start_method = "forkserver" if sys.platform == "linux" else "spawn"
    context = get_context(start_method)
    if start_method == "forkserver":
        context.set_forkserver_preload([process_worker.__name__, *LATER])
    return context


class _CtrlC:
    """Ctrl-C as a connection to wait for, so that it cuts no message and no file; pressed again, it interrupts."""

    def __init__(self) -> None:
        self.connection, self._writer = connections.Pipe(duplex=False)
        self._is_installed = threading.current_thread() is threading.main_thread()  # others receive no signals
        self._before = signal.signal(signal.SIGINT, self._handle) if self._is_installed else None
        self._is_pressed = False

    def close(self) -> None:
        """Install the handler that was there before."""
        if self._is_installed:
            signal.signal(signal.SIGINT, self._before or signal.SIG_DFL)
            self._is_installed = False
        self.connection.close()
        self._writer.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_pressed:
            raise KeyboardInterrupt
        self._is_pressed = True
        self._writer.send_bytes(b"!")
