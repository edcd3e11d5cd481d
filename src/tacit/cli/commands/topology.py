"""``tacit topology``: properties and drawings of graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from tacit.cli import options
from tacit.cli import run_folders as folders
from tacit.cli.exit_messages import explained
from tacit.cli.screens.terminal import console
from tacit.errors import require
from tacit.record.files import write_text
from tacit.registry import parse
from tacit.report import print_topologies, write_topologies
from tacit.theory import GraphTheory
from tacit.topology import Graph, Topology

FORMAT: Final = 1
WORKERS: Final = 16
EVERY_KIND: Final = (
    "Complete()",
    "ExponentialGraph()",
    "OnePeer()",
    "Hypercube()",
    "RandomRegular(degree=4)",
    "Torus()",
    "Ring()",
    "Star()",
)
"""Topologies that are shown by default."""


@explained
def topology_command(
    topologies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPOLOGY]...",
            help="Graphs, such as Ring() or RandomRegular(degree=4); see `tacit list topologies`.",
            show_default="one of each kind",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Number of workers.", show_default="16, or that of a Graph")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder for report.html with drawings of the graphs.", show_default="none"),
    ] = None,
    force: options.Force = False,
    json_file: options.Json = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Show properties of graphs: degree, diameter, spectral gap, time to consensus.

    Workers of gossip strategies exchange with their neighbours in a graph.
    The graph decides how many links they need and how fast their models
    agree. Read a graph of your own from a file with two ranks per line:
    Graph("edges.txt").

    [bold]Examples[/]

    \b
      tacit topology
      tacit topology 'Ring()' 'Torus()' 'Hypercube()' --workers 64
      tacit topology 'RandomRegular(degree=4)' --workers 256 --json numbers.json
      tacit topology 'Graph("edges.txt")' --out drawn
    """
    chosen = [_topology(text) for text in topologies or EVERY_KIND]
    size = _size(chosen, workers)
    theories, left_out = [], []
    for topology in dict.fromkeys(chosen):
        try:
            theories.append(GraphTheory(topology, size))
        except ValueError as error:
            if topologies:
                raise
            left_out.append(f"{topology} is not shown: {error}")
    numbers = None if json_file is None else folders.writable(json_file)
    folder = None if out is None else folders.claim(out, command="topology", force=force)
    screen = console(quiet)
    print_topologies(theories, screen)
    for line in left_out:
        screen.print(Text(line), soft_wrap=True)
    if numbers is not None:
        described = {"format": FORMAT, "topologies": [theory.as_json() for theory in theories]}
        write_text(numbers, json.dumps(described, indent=1) + "\n")
    if folder is not None:
        page = write_topologies(theories, folder / "report.html")
        screen.print(f"\nReport: {page}", highlight=False, soft_wrap=True)


def _topology(text: str) -> Topology:
    require(
        not Path(text).is_file(),
        f"{text} must be a topology, and it is a file; write Graph({json.dumps(text)}) to read its edges.",
    )
    found = parse(text, "topologies")
    assert isinstance(found, Topology)
    return found


def _size(chosen: list[Topology], workers: int | None) -> int:
    """Return the given number of workers, or that of the first graph with a fixed number."""
    if workers is not None:
        require(workers >= 2, f"workers={workers} must be at least 2; a graph has edges between workers.")
        return workers
    return next((topology.size for topology in chosen if isinstance(topology, Graph)), WORKERS)
