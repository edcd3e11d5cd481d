"""Guardian: a small process that ends the workers when the launcher is killed.

The launcher writes ``+PID`` and ``-PID`` to its standard input as workers start and end. The pipe closes when the
launcher ends, for whatever reason. This file runs alone, without tacit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

_GRACE_S: Final = 10.0
"""How long workers may take to end after SIGTERM: they end at a step, and write a checkpoint."""
_LOOK_S: Final = 0.05
_IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)  # the end of the launcher is awaited


class Guardian:
    """The launcher's side: one guardian process for all workers. It ends by itself after the launcher."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, pid: int) -> None:
        self._say(f"+{pid}\n")

    def remove(self, pid: int) -> None:
        self._say(f"-{pid}\n")

    def close(self) -> None:
        """End the guardian, and what is left of the workers' process groups."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # somebody killed it
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


def end_all(pids: Iterable[int], grace_s: float) -> None:
    """Send SIGTERM to the processes, and SIGKILL to their groups once all have ended, or after ``grace_s``."""
    groups = list(pids)
    left = [pid for pid in groups if _send(os.kill, pid, signal.SIGTERM)]
    deadline_s = time.monotonic() + grace_s
    while left and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
        left = [pid for pid in left if _send(os.kill, pid, 0)]
    for pid in groups:
        _send(os.killpg, pid, signal.SIGKILL)


def _send(call: Callable[[int, int], None], pid: int, number: int) -> bool:
    """Send a signal; return whether there was somebody to receive it."""
    try:
        call(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _guard() -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    pids: set[int] = set()
    for line in sys.stdin:
        (pids.add if line[0] == "+" else pids.discard)(int(line[1:]))
    end_all(pids, _GRACE_S)


if __name__ == "__main__":
    _guard()
