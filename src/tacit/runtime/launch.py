"""Launch of workers on this machine with torchrun's agent; for several machines, the command line to use."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

_ERROR_FILE: Final = "TORCHELASTIC_ERROR_FILE"  # the file in which torchrun's agent looks for a worker's error
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # those that the agent handles


@dataclass(frozen=True)
class FailedWorker:
    """How the process of a failed worker ended."""

    rank: int
    exit_code: int | None  # negative: the signal that ended it; None: unknown
    error: str  # as reported to the launcher
    kind: str  # type of the error
    output: str  # rest of its standard error

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it."""
        return None if self.exit_code is None or self.exit_code >= 0 else signal.Signals(-self.exit_code).name


def launch(arguments: Sequence[str], workers: int, *, threads: int, logs: Path, shows_all: bool) -> list[FailedWorker]:
    """Run ``python -m …arguments`` in ``workers`` processes; return the failed workers.

    logs: a folder for the workers' standard error, removed if none fails. shows_all: show standard error instead,
    torchrun's messages included. Ctrl-C is passed on, and raised as KeyboardInterrupt once all workers have ended.
    """
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.NONE if shows_all else Std.ERR),
    )
    codes: dict[int, int] = {}
    try:
        with _quiet_agent(shows_all, {"OMP_NUM_THREADS": str(threads)}):
            elastic_launch(config, sys.executable)("-m", *arguments)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SignalException as error:
        raise KeyboardInterrupt(error.sigval.name) from None
    finally:
        failed = _collect(logs, codes)
    return failed


def torchrun_line(arguments: Sequence[str], workers: int, nodes: int, host: str, name: str) -> str:
    """Return the command line that starts ``python -m …arguments`` if run on each of ``nodes`` machines.

    host: the name of one of them.
    """
    where = (
        ["--standalone"]
        if nodes == 1
        else [
            "--nnodes",
            str(nodes),
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"{host}:29500",
            "--rdzv-id",
            name,
        ]
    )
    return shlex.join(["torchrun", *where, "--nproc-per-node", str(workers // nodes), "-m", *arguments])


def report_to_launcher(message: str, kind: str, exit_code: int) -> None:
    """Write ``message`` to the file that the launcher reads, in torchrun's format; do nothing without a launcher."""
    if _ERROR_FILE in os.environ:
        extra = {"py_callstack": message, "timestamp": str(int(time.time())), "kind": kind, "exit_code": exit_code}
        Path(os.environ[_ERROR_FILE]).write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))


@contextmanager
def _quiet_agent(shows_all: bool, environment: Mapping[str, str]) -> Iterator[None]:
    """Suppress the agent's log lines; restore signal handlers and environment afterwards."""
    handlers, before = {one: signal.getsignal(one) for one in _SIGNALS}, dict(os.environ)
    os.environ.update(environment)
    if not shows_all:
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        os.environ.clear()
        os.environ.update(before)
        for one, handler in handlers.items():
            signal.signal(one, handler)


def _collect(logs: Path, codes: Mapping[int, int]) -> list[FailedWorker]:
    """Return the failed workers; reduce the logs to one file for each worker with output."""
    failed = []
    for folder in sorted(logs.glob("*/attempt_0/*"), key=lambda folder: int(folder.name)):
        rank, output = int(folder.name), _read(folder / "stderr.log")
        report = _report(folder / "error.json")
        if report:  # one worker also writes the error to its standard error
            output = "\n".join(line for line in output.splitlines() if not line.startswith("error: "))
        if report or codes.get(rank):
            details = report.get("extraInfo", {})
            code = details.get("exit_code", codes.get(rank))
            error, kind = report.get("message", ""), details.get("kind", "")
            failed.append(FailedWorker(rank, code, error, kind, output.strip()))
        if output.strip():
            (logs / f"worker-{rank}.txt").write_text(output)
    for folder in logs.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)
    if not failed or not any(logs.iterdir()):
        shutil.rmtree(logs, ignore_errors=True)
    return failed


def _report(path: Path) -> dict[str, Any]:
    """Return a worker's error report; empty if there is none."""
    try:
        report: dict[str, Any] = json.loads(path.read_text())["message"]
    except (OSError, ValueError, KeyError):
        return {}
    return report if isinstance(report, dict) else {"message": str(report)}


def _read(path: Path) -> str:
    try:
        return re.sub(r"\x1b\[[0-9;]*m", "", path.read_text(errors="replace"))
    except OSError:
        return ""
