"""``tacit launch``: start the workers of a script on this machine, and start them again when they fail."""

from __future__ import annotations

import os
import shlex
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from tacit.cli import process_options
from tacit.cli.exit_messages import FAILED, complain, explained
from tacit.cli.process_options import is_part
from tacit.errors import require
from tacit.runtime.launch import own_secret
from tacit.runtime.launcher.launcher import Job, Launcher, Outcome
from tacit.runtime.launcher.machines import Machine, RunSettings
from tacit.runtime.launcher.processes import Output
from tacit.runtime.launcher.reports import FailedWorker
from tacit.runtime.launcher.store import LOOPBACK
from tacit.runtime.messaging.secret import SECRET_FILE, find_secret

_DEFAULT_WORKERS: Final = 2
_LOOK_S: Final = 0.2
_SIGNALLED: Final = 128  # plus the signal: the exit code of a command that a signal has ended, as shells have it
_MACHINES: Final = "Several machines"
_OUTPUT: Final = "Output"


@explained
def launch_command(
    script: Annotated[str, typer.Argument(metavar="SCRIPT.py", help="Script that every worker runs.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="Arguments of the script.", show_default=False)
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", help="Number of workers on this machine, one process each.")
    ] = _DEFAULT_WORKERS,
    min_workers: process_options.MinWorkers = None,
    max_restarts: process_options.MaxRestarts = None,
    server: Annotated[
        bool,
        typer.Option("--server", help='Start the server of a server strategy too: tacit.attach(…, server="process").'),
    ] = False,
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for checkpoints of the server, which continues from the last one.",
            show_default="one for this command",
        ),
    ] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT.py is the name of a module.")] = False,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of this machine at which the others reach it.",
            show_default="loopback: this machine only",
            rich_help_panel=_MACHINES,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Port of the store.", show_default="any free one", rich_help_panel=_MACHINES),
    ] = None,
    total_workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of workers on all machines together.",
            show_default="those of this machine",
            rich_help_panel=_MACHINES,
        ),
    ] = None,
    join: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Take part in the run that another machine has started; it prints the address.",
            rich_help_panel=_MACHINES,
        ),
    ] = None,
    logs: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write the output of worker R to FOLDER/worker-R.txt.", rich_help_panel=_OUTPUT
        ),
    ] = None,
    prefix: Annotated[
        bool,
        typer.Option("--prefix", help="Begin each line of a worker's output with its rank.", rich_help_panel=_OUTPUT),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Start the workers of a training script, and start them again when they fail.

    Options come before the script; what follows it are the script's own
    arguments. The command sees at once when a worker ends, tells the others,
    and starts it again as a new life of its rank. Ctrl-C and SIGTERM are
    passed on to the workers. A server (--server) that fails is started again
    from its last checkpoint, and learners join it again. Ends with 0 if
    enough workers have finished, otherwise with the exit code of the worker
    that failed.

    [bold]Examples[/]

    \b
      tacit launch --workers 4 train.py --lr 0.1
      tacit launch --workers 4 --min-workers 2 --max-restarts 3 train.py
      tacit launch --workers 2 --total-workers 4 --host 192.168.1.10 train.py
      tacit launch --workers 2 --join 192.168.1.10:29500 train.py
    """
    _check(script, module, workers, total_workers, port)
    require(
        join is not None or host is not None or total_workers in (None, workers),
        f"--total-workers {total_workers} with --workers {workers}: the other machines need an address of this one; "
        f"add --host ADDRESS, or --host {LOOPBACK} if all launchers run on this machine.",
    )
    require(not (server and module), "--server with --module: the server runs a script; give the path of its file.")
    require(server or checkpoints is None, "--checkpoints are those of a server; add --server.")
    for name, folder in (("--checkpoints", checkpoints), ("--logs", logs)):
        require(folder is None or not folder.is_file(), f"{name} {folder} is a file; give the name of a folder.")
    if join is not None:
        given: dict[str, object] = {
            "--min-workers": min_workers,
            "--max-restarts": max_restarts,
            "--total-workers": total_workers,
        }
        given |= {"--host": host, "--port": port, "--server": server or None}
        ignored = [name for name, value in given.items() if value is not None]
        require(not ignored, f"{', '.join(ignored)} with --join: the first machine chooses; give it there.")
        machine, secret = _join(join, workers)
        with _all_machines(machine, None, ""):
            outcome = _run(machine, secret, script, arguments, module, None, logs, prefix)
    else:
        settings = RunSettings.new(total_workers or workers, min_workers, max_restarts)
        secret = own_secret()
        machine = Machine.first(workers, settings, secret.encode(), host=host or LOOPBACK, port=port or 0)
        words = shlex.join(["-m"] * module + [script, *(arguments or [])])
        with _all_machines(machine, secret, words):
            served = _server_words(script, arguments, settings.total_workers, checkpoints) if server else None
            outcome = _run(machine, secret, script, arguments, module, served, logs, prefix)
    _exit(outcome, workers)


def _check(script: str, module: bool, workers: int, total_workers: int | None, port: int | None) -> None:
    require(not is_part(), "tacit launch cannot run inside a worker (RANK is set); unset RANK and WORLD_SIZE.")
    require(
        module or Path(script).is_file(),
        f"the script {script} does not exist; give the path of a Python file, or -m and the name of a module.",
    )
    require(workers >= 1, f"--workers {workers} must be at least 1.")
    require(
        total_workers is None or total_workers >= workers,
        f"--total-workers {total_workers} must be at least --workers {workers}, the number on this machine alone.",
    )
    require(port is None or 0 < port < 2**16, f"--port {port} must be from 1 to 65535.")


def _server_words(script: str, arguments: list[str] | None, workers: int, checkpoints: Path | None) -> list[str]:
    """Return what follows ``python`` in the server's process."""
    kept = [] if checkpoints is None else ["--checkpoints", str(checkpoints)]
    return ["-m", "tacit", "serve", script, "--workers", str(workers), *kept, "--", *(arguments or [])]


def _join(address: str, workers: int) -> tuple[Machine, str]:
    host, _, port = address.rpartition(":")
    require(
        bool(host) and port.isdigit(), f"--join {address} must be HOST:PORT; use the address that the first one prints."
    )
    secret = find_secret()
    require(
        secret is not None,
        f"--join needs the secret of the run; copy the secret file of the first machine, which it names, "
        f"and set {SECRET_FILE} to the copy.",
    )
    assert secret is not None
    return Machine.joining(host, int(port), workers, secret), secret.decode()


@contextmanager
def _all_machines(machine: Machine, secret: str | None, words: str) -> Iterator[None]:
    """Wait until every seat has its machine; the first machine keeps the secret in a file meanwhile."""
    if machine.is_alone:
        yield
        return
    file: Path | None = None
    try:
        if secret is not None:
            file = _secret_file(secret)
            _say(_how_to_join(machine, file, words))
        while machine.missing():
            time.sleep(_LOOK_S)
        yield
    finally:
        if file is not None and SECRET_FILE not in os.environ:
            file.unlink(missing_ok=True)


def _how_to_join(machine: Machine, secret: Path, words: str) -> str:
    """Return what to type on the other machines, or in other terminals of this one."""
    count, join = machine.missing(), f"tacit launch --workers N --join {machine.host}:{machine.port} {words}"
    waits = f"waiting for {count} more worker{'s' * (count > 1)}"
    if machine.is_local:
        return f"{waits} of this machine alone ({machine.host}). For each other launcher here, run:\n" + (
            f"  {SECRET_FILE}={secret} {join}"
        )
    return f"{waits}. On each other machine, copy the secret and run:\n" + (
        f"  scp -p {machine.host}:{secret} {secret.name}\n  {SECRET_FILE}={secret.name} {join}"
    )


def _secret_file(secret: str) -> Path:
    """Return the file that holds the secret: the user's, or a new one that only the user can read."""
    if SECRET_FILE in os.environ:
        return Path(os.environ[SECRET_FILE]).absolute()
    number, name = tempfile.mkstemp(prefix="tacit-secret-")  # of mode 0600
    os.write(number, secret.encode())
    os.close(number)
    return Path(name)


def _run(
    machine: Machine,
    secret: str,
    script: str,
    arguments: list[str] | None,
    module: bool,
    server: list[str] | None,
    logs: Path | None,
    prefix: bool,
) -> Outcome:
    variables = {} if len(machine.seats) == 1 else {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
    if logs is not None or prefix:
        variables["PYTHONUNBUFFERED"] = os.environ.get("PYTHONUNBUFFERED", "1")
    words = ["-m"] * module + [script, *(arguments or [])]
    output = Output(logs=logs, has_prefix=prefix and logs is None)
    return Launcher(Job(words=words, server=server, output=output, variables=variables), machine, secret, _say).run()


def _exit(outcome: Outcome, workers: int) -> None:
    """Say how the run ended, and exit with its code."""
    again = f" after {outcome.restarts} restart{'s' * (outcome.restarts > 1)}" if outcome.restarts else ""
    finished = workers - sum(not one.is_server for one in outcome.failed)
    if outcome.unattached and outcome.signal is None:
        _say(_who_did_not_attach(outcome.unattached, workers))
    if outcome.signal is not None:
        complain(f"interrupted{again}.")
        raise typer.Exit(_SIGNALLED + outcome.signal)
    if outcome.failed:
        lost = "; ".join(one.text for one in sorted(outcome.failed, key=lambda one: one.rank))
        text = f"{finished} of {workers} workers finished{again}; {lost}."
        if not outcome.has_succeeded:
            complain(text)
            raise typer.Exit(_code(outcome.failed))
        _say(text)
    elif again:
        _say(f"{finished} of {workers} workers finished{again}.")


def _who_did_not_attach(seats: list[int], workers: int) -> str:
    if len(seats) == workers:
        return "no worker called tacit.attach, so each ran by itself"
    return f"worker{'s' * (len(seats) > 1)} {', '.join(map(str, seats))} ended without calling tacit.attach"


def _code(failed: list[FailedWorker]) -> int:
    """Return the exit code of the worker that failed first, and not because another one was lost; 1 for a signal."""
    first = min(failed, key=lambda one: one.kind == "PeerLost")
    return first.exit_code if first.exit_code is not None and first.exit_code > 0 else FAILED


def _say(text: str) -> None:
    typer.echo(f"tacit launch: {text}", err=True)
