"""An executable that stands for ``python`` and needs no time to import torch, for launchers that start interpreters.

    launcher ──starts──▶ executable ──asks──▶ server ──forks──▶ process that runs the script or module

The executable is an interpreter without modules: it sends its arguments, environment, folder and standard streams to
the server, a process of the tests' fork server. The forked process enters its network namespace, gets the signals that
it gets, and is killed if it is; it ends as the forked process does.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import runpy
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path

from tests.runtime.namespaces import enter_namespaces_of
from tests.runtime.processes import context, start_fork_server

EXECUTABLE = """#!{python} -IS
import json, os, signal, socket, sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    task = json.dumps([sys.argv[0], sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [task], [0, 1, 2])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: server.send(bytes([number])))
    code = int(server.recv(16) or 1)
if code < 0:
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextmanager
def forked_python(folder: Path) -> Iterator[Path]:
    """Write the executable to ``folder``, which must have a short name, and start its server."""
    start_fork_server()
    address, executable = str(folder / "server"), folder / "python"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        executable.write_text(EXECUTABLE.format(python=sys.executable, address=address))
        executable.chmod(0o700)
        server = context.Process(target=_serve, args=(listener,))
        server.start()
    try:
        yield executable
    finally:
        server.kill()
        server.join()


def _serve(listener: socket.socket) -> None:
    """Fork an attendant for every executable that connects."""
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(client)
            os._exit(0)
        client.close()
        with suppress(ChildProcessError):  # none is left
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _attend(client: socket.socket) -> None:
    """Fork the process, send it the signals that ``client`` names, and tell ``client`` how it ended."""
    task, streams, _, _ = socket.recv_fds(client, 2**20, 3)
    caller = struct.unpack("i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4))[0]
    process = multiprocessing.get_context("fork").Process(target=_become, args=(caller, streams, *json.loads(task)))
    process.start()
    assert process.pid is not None
    while process.sentinel not in wait([client, process.sentinel]):
        numbers = client.recv(1)
        os.kill(process.pid, numbers[0] if numbers else signal.SIGKILL)
        if not numbers:
            break
    process.join()
    with suppress(OSError):  # the executable was killed
        client.send(str(process.exitcode).encode())


def _become(
    process: int, streams: list[int], executable: str, arguments: list[str], folder: str, environment: dict[str, str]
) -> None:
    """Run ``executable …arguments`` in this process, in place of ``process``."""
    gc.freeze()
    os.setsid()
    enter_namespaces_of(process)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing has closed it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.executable = executable
    words = arguments
    while words[0] in ("-u", "-I", "-S"):
        words = words[1:]
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], folder
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")
