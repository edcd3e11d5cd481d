"""Reports of failed workers: the error file in which a worker says why it ends, and its standard error."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tacit.runtime.launched import signal_name

ERROR_FILE: Final = "TORCHELASTIC_ERROR_FILE"
"""Environment variable: the file for a worker's error. torchrun sets it too, and reads the same format."""
_LONGEST_OUTPUT_BYTES: Final = 64 * 2**10


@dataclass(frozen=True)
class FailedWorker:
    """How the process of a failed worker ended."""

    rank: int  # that of the server comes after those of all workers
    exit_code: int | None  # negative: the signal that ended it; None: unknown
    error: str  # as reported to the launcher
    kind: str  # type of the error
    output: str  # rest of its standard error
    life: int = 1
    is_server: bool = False

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it."""
        return None if self.exit_code is None or self.exit_code >= 0 else signal_name(-self.exit_code)

    @property
    def text(self) -> str:
        """Its end in a few words."""
        how = f"was killed by {self.signal}" if self.signal else f"ended with exit code {self.exit_code}"
        hint = f": {self.error.rstrip('.')}" if self.error else ""
        if not hint and self.signal == "SIGKILL":
            hint = " (the kernel sends it when memory runs out)"
        return f"{'the server' if self.is_server else f'worker {self.rank}'} {how}{hint}"


def failed_worker(
    rank: int, life: int, exit_code: int, errors: Path, log: Path | None, reason: str = "", *, is_server: bool = False
) -> FailedWorker:
    """Return what is known about the end of a life. reason: why the launcher has killed it."""
    report = _report(errors) or ({"message": reason} if reason else {})
    output = "" if log is None else _tail(log)
    if report:  # one worker also writes the error to its standard error
        output = "\n".join(line for line in output.splitlines() if not line.startswith("error: "))
    details = report.get("extraInfo", {})
    code = details.get("exit_code", exit_code)
    return FailedWorker(rank, code, report.get("message", ""), details.get("kind", ""), output.strip(), life, is_server)


def report_to_launcher(message: str, kind: str, exit_code: int) -> None:
    """Write ``message`` to the file that the launcher reads, in torchrun's format; do nothing without a launcher."""
    if ERROR_FILE in os.environ:
        extra = {"py_callstack": message, "timestamp": str(int(time.time())), "kind": kind, "exit_code": exit_code}
        Path(os.environ[ERROR_FILE]).write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))


def _report(path: Path) -> dict[str, Any]:
    """Return a worker's error report; empty if there is none."""
    try:
        report: dict[str, Any] = json.loads(path.read_text())["message"]
    except (OSError, ValueError, KeyError):
        return {}
    return report if isinstance(report, dict) else {"message": str(report)}


def _tail(path: Path) -> str:
    """Return the last output in a file, without colours."""
    try:
        text = path.read_bytes()[-_LONGEST_OUTPUT_BYTES:].decode(errors="replace")
    except OSError:
        return ""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
