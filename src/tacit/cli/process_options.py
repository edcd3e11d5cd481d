"""Options of the commands that run on real processes: ``tacit train``, ``tacit probe`` and ``tacit serve``."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

_PROCESSES: Final = "Processes"

Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Number of workers, one process each; with several machines, on all of them together.",
        show_default="2",
        rich_help_panel=_PROCESSES,
    ),
]
MinWorkers = Annotated[
    int | None,
    typer.Option(
        metavar="M",
        help="The run goes on while this many workers are left; with fewer it ends, with a checkpoint.",
        show_default="all workers; 1 with --max-restarts",
        rich_help_panel=_PROCESSES,
    ),
]
MaxRestarts = Annotated[
    int | None,
    typer.Option(
        metavar="R",
        help="Start a worker that fails again, this many times.",
        show_default="0",
        rich_help_panel=_PROCESSES,
    ),
]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Steps between checkpoints. The loss of a worker always leaves a checkpoint.",
        show_default="none",
        rich_help_panel=_PROCESSES,
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE.toml",
        help="Plan of `tacit plan`: its strategy, number of workers and learning rate. Other options override it.",
        rich_help_panel=_PROCESSES,
    ),
]
Progress = Annotated[
    bool,
    typer.Option(
        "--progress",
        help="With --plan: print a line of progress every ten seconds, also where standard output is no terminal.",
        rich_help_panel=_PROCESSES,
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Continue the run in FOLDER from its last checkpoint; --workers may differ. "
        "A larger --steps extends a finished run.",
        rich_help_panel=_PROCESSES,
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Longest time that a round waits for a worker: 90s, 10min.",
        show_default="from measured step times, at least 5min",
        rich_help_panel=_PROCESSES,
    ),
]
Interface = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Network interface for traffic between machines, such as eth0.",
        show_default="the one with the route to the first machine",
        rich_help_panel=_PROCESSES,
    ),
]
Security = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Protection of messages of gossip and server strategies: token, curve (encrypted), "
        "or plain (trusted networks only).",
        show_default="token on one machine, curve between machines",
        rich_help_panel=_PROCESSES,
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Where the server of a server strategy runs: rank0 (in rank 0's process), process (in its own process on "
        "this machine), or remote (started with `tacit serve` on another machine).",
        show_default="rank0",
        rich_help_panel=_PROCESSES,
    ),
]
Host = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Address of this machine at which others reach it; needed with --server remote.",
        show_default="loopback: this machine only",
        rich_help_panel=_PROCESSES,
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Number of machines, for --print-command.", show_default="1", rich_help_panel=_PROCESSES
    ),
]
PrintCommand = Annotated[
    bool,
    typer.Option(
        "--print-command", help="Print the torchrun command for each machine; run nothing.", rich_help_panel=_PROCESSES
    ),
]


def is_part() -> bool:
    """Whether torchrun started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def command_words(context: typer.Context, given: Mapping[str, Any], *, left_out: Collection[str]) -> list[str]:
    """Return the options of a command as words of a command line, without those that are not given."""
    words = []
    for parameter in context.command.params:
        value = given.get(parameter.name or "")
        if value not in (None, False) and parameter.name not in left_out:
            words += [parameter.opts[0]] if value is True else [parameter.opts[0], str(value)]
    return words
