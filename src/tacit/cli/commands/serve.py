"""``tacit serve``: the server of a server strategy as a process of its own."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from tacit.cli.commands.train_worker import CHECKPOINT, Plan, serve_part
from tacit.cli.exit_messages import explained
from tacit.cli.settings import read_file, settle, train_settings
from tacit.errors import require
from tacit.runtime.environment import SERVE

_AGENT: Final = "TORCHELASTIC_USE_AGENT_STORE"


@explained
def serve_command(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|SCRIPT", help="A run's folder (tacit train --server elsewhere), or the workers' script."
        ),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Of the script.")] = None,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the workers' store is: rank 0 says it.",
            show_default="from the environment",
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="How many workers; a run's folder knows.")] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to keep the server's state, and go on from.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(metavar="N", help="Updates between checkpoints.")] = 100,
    plain_store: Annotated[
        bool, typer.Option("--plain-store", help="The workers were not started by torchrun.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Be the server of a run whose workers were attached with server="apart".

    The server of K-sync, K-async and their kin usually lives beside the
    worker of rank 0 and shares its network link and its processor. As a
    process of its own it can have a machine of its own. It runs the very
    script that the workers run, up to tacit.attach, and serves there.

    [bold]Examples[/]

    \b
      tacit train -s 'KAsync(k=2)' --workers 4 --server apart        starts it by itself
      tacit serve runs/real --master 10.0.0.1:29500                  for --server elsewhere
      tacit serve train.py --master 10.0.0.1:29500 --workers 8 -- --lr 0.1
    """
    require(target.exists(), f"{target} does not exist; name a run's folder, or the script that the workers run.")
    require(checkpoint_every >= 1, f"--checkpoint-every {checkpoint_every} must be at least 1.")
    plan = _plan(target) if target.is_dir() else None
    size = workers if plan is None else plan.settings.cluster.workers
    size = size or int(os.environ.get("WORLD_SIZE", "0"))
    require(size >= 2, "how many workers are there? Give --workers N, at least 2.")
    _enter(master, size, plain_store)
    if plan is not None and checkpoints is None and plan.train.get("checkpoint_every"):
        checkpoints, checkpoint_every = target / CHECKPOINT, int(plan.train["checkpoint_every"])
    if checkpoints is not None:
        os.environ["TACIT_SERVE_CHECKPOINTS"] = f"{checkpoints}:{checkpoint_every}"
    if plan is not None:
        serve_part(plan, target)
        return
    sys.argv = [str(target), *(arguments or [])]
    sys.path.insert(0, str(target.parent.resolve()))
    try:
        runpy.run_path(str(target), run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
    else:
        raise ValueError(f'{target} ended without tacit.attach(…, server="apart"): there was nothing to serve.')


def _enter(master: str | None, size: int, plain_store: bool) -> None:
    """Make this process the one beside ``size`` workers whose store is at ``master``."""
    if master is not None:
        host, _, port = master.rpartition(":")
        require(bool(host) and port.isdigit(), f"--master {master}: write HOST:PORT, as rank 0 says it.")
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=port)
        if not plain_store:
            os.environ.setdefault(_AGENT, "True")
    require("MASTER_ADDR" in os.environ, "where are the workers? Give --master HOST:PORT, as rank 0 says it.")
    os.environ.update({SERVE: "1", "RANK": "0", "WORLD_SIZE": str(size)})
    os.environ.setdefault("TORCHELASTIC_RESTART_COUNT", "0")


def _plan(folder: Path) -> Plan:
    config = folder / "run.toml"
    require(config.exists(), f"{folder} holds no run: it has no run.toml.")
    table = read_file(config, single=True)
    cluster = table.get("cluster", {})
    settings = settle({**table, "cluster": {"workers": cluster.get("workers", 2)}})
    return Plan(settings=settings, cluster=cluster, train=train_settings(table))
