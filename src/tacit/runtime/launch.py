"""Launch of workers on this machine by ``tacit train`` and its like; for torchrun, the command line to use."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tacit.runtime.launcher.launcher import Job, Launcher, Outcome
from tacit.runtime.launcher.machines import Machine, RunSettings
from tacit.runtime.launcher.processes import Output
from tacit.runtime.launcher.store import LOOPBACK
from tacit.runtime.messaging.secret import find_secret, new_secret


def launch(
    arguments: Sequence[str],
    settings: RunSettings,
    *,
    threads: int,
    logs: Path,
    shows_all: bool,
    host: str = LOOPBACK,
    server: Sequence[str] | None = None,
    say: Callable[[str], None] | None = None,
) -> Outcome:
    """Run ``python -m …arguments`` in as many processes as ``settings`` has workers.

    server: arguments for the server in a process of its own; None: there is none. host: the address of the store. logs:
    a folder for the workers' standard error, removed if none fails. shows_all: show standard error instead. say: takes
    what happens meanwhile, as sentences. Ctrl-C is passed on, and raised as KeyboardInterrupt once all workers have
    ended.
    """
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    output = Output() if shows_all else Output(logs=logs, only_errors=True)
    variables = {"OMP_NUM_THREADS": str(threads)}
    words = None if server is None else ["-m", *server]
    job = Job(words=["-m", *arguments], server=words, output=output, variables=variables)
    secret = own_secret()
    try:
        outcome = Launcher(
            job, Machine.first(settings.total_workers, settings, secret.encode(), host=host), secret, say or _nothing
        ).run()
        for one in outcome.failed:  # those for which another worker has printed the error
            name = "server" if one.is_server else f"worker {one.rank}"
            path = output.file_of(name)
            if path is not None and not path.stat().st_size:
                path.write_text(f"{one.text}\n", encoding="utf-8")
    finally:
        for path in logs.iterdir():
            if not path.stat().st_size:
                path.unlink()
    if not outcome.failed or not any(logs.iterdir()):
        shutil.rmtree(logs, ignore_errors=True)
    if outcome.signal is not None:
        raise KeyboardInterrupt(outcome.signal)
    return outcome


def own_secret() -> str:
    """Return the secret that the environment names, or a new one."""
    secret = find_secret()
    return new_secret() if secret is None else secret.decode()


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


def _nothing(text: str) -> None:
    """Say nothing."""
