"""Workers as processes of this machine, started and watched by torchrun's own agent; for several machines, the line to
type.
"""

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

_ERROR_FILE: Final = "TORCHELASTIC_ERROR_FILE"  # where torchrun's agent looks for what a worker says of its end
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # those that the agent takes over


@dataclass(frozen=True)
class Ended:
    """How one worker's process ended, where it was not well."""

    rank: int
    exit_code: int | None  # negative: the signal that ended it; None: nobody knows
    told: str  # the error it told the launcher
    kind: str  # the error's type
    said: str  # what else it wrote to its standard error

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it."""
        return None if self.exit_code is None or self.exit_code >= 0 else signal.Signals(-self.exit_code).name


def launch(arguments: Sequence[str], workers: int, *, threads: int, logs: Path, shows_all: bool) -> list[Ended]:
    """Run ``python -m …arguments`` in ``workers`` processes; return how those ended that failed, none when all is well.

    logs: a folder for what workers write to their standard error, gone again when all is well; ``shows_all`` lets it
    through instead, torchrun's own words included. Ctrl-C is passed on, and raised again as KeyboardInterrupt once all
    workers have ended.
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
        with _undisturbed(shows_all, {"OMP_NUM_THREADS": str(threads)}):
            elastic_launch(config, sys.executable)("-m", *arguments)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SignalException as error:
        raise KeyboardInterrupt(error.sigval.name) from None
    finally:
        ended = _collect(logs, codes)
    return ended


def torchrun_line(arguments: Sequence[str], workers: int, nodes: int, host: str, name: str) -> str:
    """Return the line that starts ``python -m …arguments`` when it is typed on each of ``nodes`` machines; ``host`` is
    one of them.
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


def tell_launcher(message: str, kind: str, exit_code: int) -> None:
    """Leave ``message`` where the launcher looks for it, in torchrun's own notation; without a launcher do nothing."""
    if _ERROR_FILE in os.environ:
        extra = {"py_callstack": message, "timestamp": str(int(time.time())), "kind": kind, "exit_code": exit_code}
        Path(os.environ[_ERROR_FILE]).write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))


@contextmanager
def _undisturbed(shows_all: bool, environment: Mapping[str, str]) -> Iterator[None]:
    """Keep the agent's log lines away, and put back signal handlers and environment as they were."""
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


def _collect(logs: Path, codes: Mapping[int, int]) -> list[Ended]:
    """Return who failed and how, and leave of the logs one file for each worker that said something."""
    ended = []
    for folder in sorted(logs.glob("*/attempt_0/*"), key=lambda folder: int(folder.name)):
        rank, said = int(folder.name), _read(folder / "stderr.log")
        told = _told(folder / "error.json")
        if told:  # who spoke for all said it to its standard error too
            said = "\n".join(line for line in said.splitlines() if not line.startswith("error: "))
        if told or codes.get(rank):
            code = told.get("extraInfo", {}).get("exit_code", codes.get(rank))
            ended.append(
                Ended(rank, code, told.get("message", ""), told.get("extraInfo", {}).get("kind", ""), said.strip())
            )
        if said.strip():
            (logs / f"worker-{rank}.txt").write_text(said)
    for folder in logs.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)
    if not ended or not any(logs.iterdir()):
        shutil.rmtree(logs, ignore_errors=True)
    return ended


def _told(path: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(path.read_text())["message"]
    except (OSError, ValueError, KeyError):
        return {}
    return told if isinstance(told, dict) else {"message": str(told)}


def _read(path: Path) -> str:
    try:
        return re.sub(r"\x1b\[[0-9;]*m", "", path.read_text(errors="replace"))
    except OSError:
        return ""
