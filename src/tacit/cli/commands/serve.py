"""``tacit serve``: the server of a server strategy in its own process."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from tacit.cli.commands.train_worker import CHECKPOINT, Plan, run_server
from tacit.cli.exit_messages import explained
from tacit.cli.settings import read_file, settle, train_settings
from tacit.errors import require
from tacit.runtime.environment import SERVE
from tacit.runtime.launched import CHECKPOINTS

_AGENT: Final = "TORCHELASTIC_USE_AGENT_STORE"


@explained
def serve_command(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|SCRIPT", help="Folder of a run (tacit train --server remote), or the script of the workers."
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments of the script, after --.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the workers' store, which rank 0 prints.",
            show_default="from the environment",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Number of workers.", show_default="from the folder of the run")
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder for checkpoints of the server, which continues from the last one."),
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(metavar="N", help="Updates of the model between checkpoints.")] = 100,
    plain_store: Annotated[
        bool, typer.Option("--plain-store", help="Connect to workers that were not started by torchrun.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Run the server of a server strategy in its own process.

    By default the server of K-sync, K-async and other server strategies
    runs in rank 0's process and shares its network link and CPU. In its own
    process it can run on another machine. The workers call tacit.attach
    with server="process". This command runs the same script as the workers,
    up to tacit.attach, and serves there.

    [bold]Examples[/]

    \b
      tacit train -s 'KAsync(k=2)' --workers 4 --server process      starts the server too
      tacit serve runs/real --master 10.0.0.1:29500                  for --server remote
      tacit serve train.py --master 10.0.0.1:29500 --workers 8 -- --lr 0.1
    """
    require(target.exists(), f"{target} does not exist; give the folder of a run, or the script that the workers run.")
    require(checkpoint_every >= 1, f"--checkpoint-every {checkpoint_every} must be at least 1.")
    plan = _plan(target) if target.is_dir() else None
    size = workers if plan is None else plan.settings.cluster.workers
    size = size or int(os.environ.get("WORLD_SIZE", "0"))
    require(size >= 2, f"--workers {size or None} must be at least 2; give the number of workers with --workers N.")
    _enter(master, size, plain_store)
    if plan is not None and checkpoints is None and plan.train.get("checkpoint_every"):
        checkpoints, checkpoint_every = target / CHECKPOINT, int(plan.train["checkpoint_every"])
    if checkpoints is not None:
        os.environ[CHECKPOINTS] = f"{checkpoints}:{checkpoint_every}"
    if plan is not None:
        run_server(plan, target)
        return
    sys.argv = [str(target), *(arguments or [])]
    sys.path.insert(0, str(target.parent.resolve()))
    try:
        runpy.run_path(str(target), run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
    else:
        raise ValueError(
            f'{target} ended without a call of tacit.attach(…, server="process"), which starts the server.'
        )


def _enter(master: str | None, size: int, plain_store: bool) -> None:
    """Set the environment of a server for ``size`` workers whose store is at ``master``."""
    if master is not None:
        host, _, port = master.rpartition(":")
        require(
            bool(host) and port.isdigit(), f"--master {master} must be HOST:PORT; use the address that rank 0 prints."
        )
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=port)
        if not plain_store:
            os.environ.setdefault(_AGENT, "True")
    require(
        "MASTER_ADDR" in os.environ, "--master is missing; give --master HOST:PORT, the address that rank 0 prints."
    )
    os.environ.update({SERVE: "1", "RANK": "0", "WORLD_SIZE": str(size)})
    os.environ.setdefault("TORCHELASTIC_RESTART_COUNT", "0")


def _plan(folder: Path) -> Plan:
    config = folder / "run.toml"
    require(config.exists(), f"{folder} must hold a run, and it has no run.toml; give a folder that tacit train wrote.")
    table = read_file(config, single=True)
    cluster = table.get("cluster", {})
    settings = settle({**table, "cluster": {"workers": cluster.get("workers", 2)}})
    return Plan(settings=settings, cluster=cluster, train=train_settings(table))
