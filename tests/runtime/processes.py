"""Real processes for one test, forked from a server that has torch loaded: four start in less than a second."""

from __future__ import annotations

import faulthandler
import io
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.distributed import TCPStore

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch._dynamo", "tacit", "sklearn.datasets", "pytest", "hypothesis"])


class Failed(Exception):
    """Error of one rank: type name, text and traceback."""

    def __init__(self, rank: int, name: str, text: str, trace: str) -> None:
        self.rank, self.name, self.text = rank, name, text
        super().__init__(rank, name, text, trace)

    def __str__(self) -> str:
        return "rank {}: {}: {}\n{}".format(*self.args)


def together(size: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 60.0) -> list[Any]:
    """Call ``function(*arguments)`` in ``size`` processes, as torchrun would, and return the results by rank.

    Raise the error of the lowest rank that raised one.
    """
    results = outcomes(size, function, *arguments, timeout_s=timeout_s)
    for result in results:
        if isinstance(result, Failed):
            raise result
    return results


def outcomes(size: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 60.0) -> list[Any]:
    """Return the results by rank as ``together`` does, with a ``Failed`` for each rank that raised or died."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes, pipes = [], []
    for rank in range(size):
        mine, theirs = _context.Pipe(duplex=False)
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": "1",
        }
        process = _context.Process(
            target=_run_worker, args=(theirs, environment, function, arguments, timeout_s), daemon=True
        )
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(mine)
    until = time.monotonic() + timeout_s
    try:
        return [
            _result(rank, pipe, process, until)
            for rank, (pipe, process) in enumerate(zip(pipes, processes, strict=True))
        ]
    finally:
        for process in processes:
            process.join(max(0.1, until - time.monotonic()) if process.is_alive() and time.monotonic() < until else 0.1)
            if process.is_alive():
                process.kill()
                process.join()


def _result(rank: int, pipe: Connection, process: Any, until: float) -> Any:
    if not pipe.poll(max(0.0, until - time.monotonic())):
        return Failed(rank, "Timeout", f"no result in time (alive: {process.is_alive()})", "")
    try:
        data = pipe.recv_bytes()
    except EOFError:
        process.join(5)
        return Failed(rank, "Died", f"exit code {process.exitcode}", "")
    return torch.load(io.BytesIO(data), weights_only=False)


def _run_worker(
    pipe: Connection,
    environment: dict[str, str],
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    timeout_s: float,
) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(timeout_s - 2, file=sys.__stderr__)  # where it hangs, if it does
    try:
        result = function(*arguments)
    except BaseException as error:  # noqa: BLE001 - handed to the test
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        result = Failed(int(environment["RANK"]), type(error).__name__, text, traceback.format_exc())
    file = io.BytesIO()
    torch.save(result, file)
    pipe.send_bytes(file.getvalue())
    pipe.close()
