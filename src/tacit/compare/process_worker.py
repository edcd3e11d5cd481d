"""A worker process of a comparison: receives the shared work once, then tasks, and sends back progress and results.

Messages are pickled bytes rather than objects of multiprocessing, whose pickler would share the memory of tensors with
a process that may end at any time.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, Final

from tacit.compare.tasks import Outcome, Task, Work, attempt_remotely
from tacit.errors import TacitError

READY: Final = "ready"  # the work was received
UNREADABLE: Final = "unreadable"  # the work or a task cannot be unpickled here; with the reason
STEP: Final = "step"  # a run has reached a step
ENDED: Final = "ended"  # a run has ended; with its outcome
STOPPED: Final = "stopped"  # a run was interrupted before it had a result
PROTOCOL: Final = pickle.HIGHEST_PROTOCOL


def serve(connection: Connection, environment: Mapping[str, str], inherited: Sequence[Connection] = ()) -> None:
    """Make runs until the connection is closed.

    Ctrl-C in a terminal reaches all processes; it is left to the parent, which interrupts runs with SIGTERM.
    inherited: the parent's ends of connections, of which a fork has copies.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interruption = _Interruption()
    signal.signal(signal.SIGTERM, interruption.handle)
    for copy in inherited:
        copy.close()  # else the end of the parent would not close these connections
    os.environ.update(environment)  # a fork server has the environment of its own start
    try:
        work: Work = pickle.loads(connection.recv_bytes())
        _send(connection, READY)
        while True:
            _answer(connection, work, pickle.loads(connection.recv_bytes()), interruption)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent has closed the connection, or has ended
    except Exception as error:  # noqa: BLE001 - whatever unpickling a user's class raises
        _send(connection, UNREADABLE, f"{type(error).__name__}: {error}")


def encoded(outcome: Outcome) -> bytes:
    """Return the pickled outcome; a module or an error that cannot be pickled is left out or replaced."""
    run = outcome.run
    if outcome.error is not None and not _survives(outcome.error):
        error = TacitError(f"{type(outcome.error).__name__}: {outcome.error}")
        return pickle.dumps(Outcome(None, error, outcome.details, outcome.caught), PROTOCOL)
    if run is not None and run.module is not None and not _survives(run.module):
        run.module = None  # ``run.model(workload)`` still gives the model
    return pickle.dumps(outcome, PROTOCOL)


class _Interruption:
    """Turns SIGTERM into ``KeyboardInterrupt``, during a run only and once."""

    is_running = False

    def handle(self, signal: int, frame: FrameType | None) -> None:
        if self.is_running:
            self.is_running = False
            raise KeyboardInterrupt


def _answer(connection: Connection, work: Work, task: Task, interruption: _Interruption) -> None:
    def progress(step: int, steps: int, time_s: float, loss: float | None) -> None:
        _send(connection, STEP, (step, steps, time_s, loss))

    try:
        interruption.is_running = True
        outcome = attempt_remotely(work, task, progress)
        interruption.is_running = False
    except KeyboardInterrupt:
        _send(connection, STOPPED)
    else:
        _send(connection, ENDED)
        connection.send_bytes(encoded(outcome))


def _send(connection: Connection, kind: str, content: Any = None) -> None:
    connection.send_bytes(pickle.dumps((kind, content), PROTOCOL))


def _survives(value: object) -> bool:
    """Whether ``value`` can be pickled and unpickled."""
    try:
        pickle.loads(pickle.dumps(value, PROTOCOL))
    except Exception:  # noqa: BLE001 - whatever a user's class raises
        return False
    return True
