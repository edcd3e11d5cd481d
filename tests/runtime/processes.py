"""Real processes for one test, forked from a server that has torch loaded: four start in less than a second.

A new interpreter takes about three processor seconds to import torch, tacit and scikit-learn.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import io
import itertools
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

context = multiprocessing.get_context("forkserver")
_PRELOADED = [
    *("torch", "torch._dynamo", "tacit", "pytest", "hypothesis"),
    # What a worker imports when it attaches, sends a message, has a server or writes a checkpoint: 20 to 30 ms.
    *("tacit.runtime.train", "tacit.runtime.messaging.endpoint", "tacit.runtime.server.thread"),
    *("numpy.ma", "encodings.idna", "torch.utils.serialization.config"),
]
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
_ENDS_S = 10.0
_ports = itertools.count(10_000 + os.getpid() % 2_000 * 10)


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
    """Return the results by rank as ``together`` does, with a ``Failed`` for each rank that raised or died.

    Fail if a process that has given its result, or its error, is left: it has not ended in time.
    """
    start_fork_server()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes, pipes = [], []
    for rank in range(size):
        mine, theirs = context.Pipe(duplex=False)
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": "1",
        }
        process = context.Process(
            target=_run_worker, args=(theirs, environment, function, arguments, timeout_s), daemon=True
        )
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(mine)
    until, results, left = time.monotonic() + timeout_s, [], []
    try:
        for rank, (pipe, process) in enumerate(zip(pipes, processes, strict=True)):
            results.append(_result(rank, pipe, process, until))
    finally:
        for rank, process in enumerate(processes):
            process.join(max(_ENDS_S, until - time.monotonic()))
            if process.is_alive():
                left.append(rank)
                process.kill()
                process.join()
    late = [rank for rank in left if getattr(results[rank], "name", "") != "Timeout"]
    assert not late, f"the processes of ranks {late} have not ended"
    return results


@functools.cache
def start_fork_server() -> None:
    """Wait until the server has its modules: on a busy machine that takes longer than a test may."""
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=_do_nothing, daemon=True)
    process.start()
    process.join()


def _do_nothing() -> None:
    pass


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
    gc.freeze()  # a collection would examine, and thereby copy, all objects of the fork server
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


def unused_port() -> int:
    """Return a port that this process alone returns, below those that the kernel gives to sockets by itself."""
    for port in _ports:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no port is free")


def run_script(path: str, *arguments: str) -> str:
    """Run a script in this process as ``python path …arguments`` would, and return what it prints."""
    sys.argv = [path, *arguments]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(path, run_name="__main__")
    return printed.getvalue()


def run_script_alone(path: str, *arguments: str) -> str:
    """Run a script as ``run_script`` does, without the variables that torchrun sets."""
    for name in _TORCHRUN:
        del os.environ[name]
    return run_script(path, *arguments)


class Module:
    """Process that runs ``python -m module …arguments`` in ``folder``, forked as those of ``together``.

    Use it in a ``with`` block, whose end ends the process if it still runs. python: what it starts as
    ``sys.executable``.
    """

    def __init__(
        self, module: str, *arguments: str, folder: Path | None = None, python: Path | None = None, **environment: str
    ) -> None:
        start_fork_server()
        (output, its_output), (errors, its_errors) = (context.Pipe(duplex=False) for _ in range(2))
        self._pipes = output, errors
        self.output, self._errors = (os.fdopen(pipe.fileno(), closefd=False) for pipe in self._pipes)
        self._process = context.Process(
            target=_run_module,
            args=(module, arguments, str(folder or Path.cwd()), environment, str(python or ""), its_output, its_errors),
        )
        self._process.start()
        its_output.close()
        its_errors.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def __enter__(self) -> Module:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()  # which a launcher passes on to its workers
        self._process.join(20)
        self._process.kill()
        self._process.join()
        for closed in (self.output, self._errors, *self._pipes):
            closed.close()

    @property
    def exit_code(self) -> int | None:
        """Exit code, or None while it runs."""
        return self._process.exitcode

    def end(self, timeout_s: float) -> tuple[int | None, str, str]:
        """Wait for its end; return exit code, and what it printed to standard output and to standard error."""
        self._process.join(timeout_s)
        assert self.exit_code is not None, f"still running after {timeout_s} s"
        return self.exit_code, self.output.read(), self._errors.read()


def _run_module(
    module: str,
    arguments: tuple[str, ...],
    folder: str,
    environment: dict[str, str],
    python: str,
    output: Connection,
    errors: Connection,
) -> None:
    gc.freeze()
    os.chdir(folder)
    sys.executable = python or sys.executable
    os.environ.update(environment, OMP_NUM_THREADS="1")
    for pipe, number in ((output, 1), (errors, 2)):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process of a background job may ignore it
    sys.argv, sys.path[0] = [module, *arguments], folder
    runpy.run_module(module, run_name="__main__", alter_sys=True)
