"""One process of a worker: its variables, its output, and the moment it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import IO, Final

_PREFIX_LOCK: Final = Lock()
_LAST_OUTPUT_S: Final = 1.0
"""How long lines of a process that has ended may still be on their way: its children may hold the pipe open."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where the output of workers goes.

    logs: folder of one file per rank; None: the launcher's own output. only_errors: write standard error to the files,
    and show standard output. has_prefix: begin each line that is shown with the rank.
    """

    logs: Path | None = None
    only_errors: bool = False
    has_prefix: bool = False

    def file_of(self, name: str) -> Path | None:
        """Return the file for the output of ``name``, such as «worker 3» or «server»."""
        return None if self.logs is None else self.logs / f"{name.replace(' ', '-')}.txt"


class WorkerProcess:
    """A process of its own session, so that Ctrl-C reaches it through the launcher only.

    name: «worker 3» or «server», for the output. words: what follows ``python``. variables: all of its environment.
    ended: called with its exit code (negative: the signal), from a thread, as soon as it has ended.
    """

    def __init__(
        self,
        seat: int,
        life: int,
        name: str,
        words: Sequence[str],
        variables: Mapping[str, str],
        output: Output,
        ended: Callable[[WorkerProcess, int], None],
    ) -> None:
        self.seat, self.life, self.name, self._ended = seat, life, name, ended
        self._readers: list[Thread] = []
        shown = subprocess.PIPE if output.has_prefix else None
        file = output.file_of(name)
        with (file or Path(os.devnull)).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *words],
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=shown if file is None or output.only_errors else log,
                stderr=shown if file is None else log,
                start_new_session=True,
            )
        self.pid = self._process.pid
        for pipe, target in ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)):
            if pipe is not None:
                self._read(pipe, target)
        self._waiter = Thread(target=self._wait, name=f"tacit-worker-{seat}", daemon=True)
        self._waiter.start()

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped the process; False where the system does not say."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except (OSError, IndexError):
            return False

    def send(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill what is left of the process and of those that it has started."""
        self.send_to_group(signal.SIGKILL)

    def send_to_group(self, number: int) -> None:
        """Send a signal to the process and to those that it has started, as far as they are there."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def flush(self) -> None:
        """Wait a short time until the last output has been shown."""
        for reader in self._readers:
            reader.join(_LAST_OUTPUT_S)

    def _wait(self) -> None:
        self._ended(self, self._process.wait())

    def _read(self, pipe: IO[bytes], target: IO[str]) -> None:
        reader = Thread(target=_copy_lines, args=(pipe, target, f"[{self.name.removeprefix('worker ')}] "), daemon=True)
        self._readers.append(reader)
        reader.start()


def _copy_lines(pipe: IO[bytes], target: IO[str], prefix: str) -> None:
    for line in pipe:
        with _PREFIX_LOCK:
            print(prefix + line.decode(errors="replace").rstrip("\n"), file=target, flush=True)
