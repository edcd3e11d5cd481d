"""The numbers of topologies side by side, for the terminal and as a page with the graphs drawn."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.report.graph import graph_figure, remark, short_name
from tacit.report.page import fill_in, write_page
from tacit.report.units import count, figure
from tacit.theory import GraphTheory


class Fact(NamedTuple):
    """One column: its heading, its number as people read it, and its number to sort by."""

    title: str
    text: Callable[[GraphTheory], str]
    value: Callable[[GraphTheory], float]


def _degrees(theory: GraphTheory) -> str:
    if theory.is_regular:
        return count(theory.degree)
    return f"{min(theory.degrees)}–{max(theory.degrees)}, mean {figure(theory.degree)}"


FACTS: Final = (
    Fact("degree r", _degrees, lambda theory: theory.degree),
    Fact("diameter", lambda theory: count(theory.diameter), lambda theory: theory.diameter),
    Fact("spectral gap", lambda theory: figure(theory.spectral_gap), lambda theory: theory.spectral_gap),
    Fact("λ₂", lambda theory: figure(theory.algebraic_connectivity), lambda theory: theory.algebraic_connectivity),
    Fact("r²/λ₂²", lambda theory: figure(theory.swarm_factor), lambda theory: theory.swarm_factor),
    Fact("interactions", lambda theory: figure(theory.consensus_interactions), lambda t: t.consensus_interactions),
    Fact("parallel time", lambda theory: figure(theory.consensus_time), lambda theory: theory.consensus_time),
    Fact("busiest worker", lambda theory: figure(theory.busiest_meetings), lambda theory: theory.busiest_meetings),
)
MEANINGS: Final = (
    ("degree r", "neighbours of a worker; the mean if workers differ."),
    (
        "diameter",
        "rounds until information from each worker reaches all others, if all neighbours exchange in each round.",
    ),
    ("spectral gap", "1 − |λ₂(W)|: asymptotic relative reduction of the distance to the mean per such round."),
    ("λ₂", "second smallest eigenvalue of the graph's Laplacian; larger is better connected."),
    ("r²/λ₂²", "SwarmSGD's bounds grow with this plus 1; proved for regular graphs."),
    (
        "interactions",
        "exchanges of random pairs, which average, until Γ = Σ‖xᵢ − x̄‖² is e times smaller, "
        "in expectation and from the worst start.",
    ),
    ("parallel time", "interactions divided by the number of workers: different pairs exchange at the same time."),
    ("busiest worker", "number of these exchanges of the worker with the most neighbours, one after another."),
)


def print_topologies(theories: Sequence[GraphTheory], console: Console) -> None:
    """Print the table and the meaning of its columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=f"{theories[0].size} workers", title_justify="left")
    table.title_style = "dim"
    table.add_column("topology", overflow="fold", min_width=16)
    for fact in FACTS:
        table.add_column(Text(fact.title), justify="right", no_wrap=True)
    for theory in theories:
        table.add_row(Text(short_name(theory.topology)), *[Text(fact.text(theory)) for fact in FACTS])
    console.print(table)
    for name, meaning in MEANINGS:
        console.print(Text(f"{name}: {meaning}", style="dim"))


def write_topologies(theories: Sequence[GraphTheory], path: str | os.PathLike[str]) -> Path:
    """Write the page with the table and the drawings to ``path``, atomically; return the path."""
    drawn = {f"graph-{i}": graph_figure(theory.topology, theory.size) for i, theory in enumerate(theories)}
    rows = [
        {
            "label": short_name(theory.topology),
            "cells": [{"text": fact.text(theory), "value": fact.value(theory)} for fact in FACTS],
            "remark": remark(theory.topology, theory.size),
        }
        for theory in theories
    ]
    page = fill_in(
        "topology.html", drawn, size=theories[0].size, rows=rows, facts=[f.title for f in FACTS], meanings=MEANINGS
    )
    return write_page(page, path)
