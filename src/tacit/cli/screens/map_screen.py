"""``tacit plan --map``: read the axes, print the map and write map.html and map.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli import units
from tacit.cli.exit_messages import BAD_INPUT, complain
from tacit.errors import TacitError, nearest, require
from tacit.planning.maps import Axis, PlanMap
from tacit.planning.maps.axes import UNITS
from tacit.record.files import write_text
from tacit.report.plans.map_page import cell_name, gain_text, letter_of, value_text, winners_of

_PAGE: Final = "map.html"


def two_axes(given: tuple[str, str] | None) -> tuple[str, str] | None:
    """Return the axes of ``--map``; exit if one of them is an option, because only one axis was given."""
    if given is not None and any(text.startswith("-") for text in given):
        complain("--map needs two axes, such as --map workers=2:64 bandwidth=10Mbit/s:10Gbit/s.")
        raise typer.Exit(BAD_INPUT)
    return given


def axis_of(text: str) -> Axis:
    """Return the axis of ``bandwidth=10Mbit/s:10Gbit/s`` or, with a count, ``workers=2:64:6``."""
    name, sign, span = text.partition("=")
    parts = span.split(":")
    require(
        bool(sign) and len(parts) in (2, 3),
        f"--map {text!r} must be NAME=LOW:HIGH or NAME=LOW:HIGH:COUNT; try bandwidth=10Mbit/s:10Gbit/s.",
    )
    require(name in UNITS, f"--map {text!r}: the axis {name!r} is unknown{nearest(name, UNITS)}")
    read = {"bandwidth": units.bytes_per_second, "latency": units.seconds}.get(name, _number)
    count = None
    if len(parts) == 3:
        require(parts[2].isdecimal(), f"--map {text!r}: the count {parts[2]!r} must be a whole number.")
        count = int(parts[2])
    return Axis.spaced(name, read(parts[0]), read(parts[1]), count)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} must be a number.") from None


def check_map(axes: Sequence[str], out: Path, target_loss: float | None, objective: str, *, force: bool) -> list[Axis]:
    """Return the axes of ``--map``, after checks of what else was given."""
    require(target_loss is not None, "--map needs --target-loss, the loss to reach in each cell.")
    require(objective == "time", "--map compares times; leave out --objective.")
    page = out.with_name(_PAGE)
    if page.exists() and not force:
        raise TacitError(f"{page} exists; choose a file in another folder as --out, or replace it with --force.")
    return [axis_of(text) for text in axes]


def keep_map(made: PlanMap, out: Path, screen: Console, json_file: Path | None) -> None:
    """Print a map, and write its page and its numbers beside ``out``."""
    page = made.save(out.with_name(_PAGE))
    if json_file is not None:
        write_text(json_file, json.dumps(made.as_json(), indent=1) + "\n")
    print_map(made, screen)
    screen.print(f"\nWrote {page} and {page.with_suffix('.json')}.", highlight=False, soft_wrap=True)


def print_map(made: PlanMap, screen: Console) -> None:
    """Print the grid of letters and gains, what the letters mean, and warnings."""
    table = made.as_json()
    winners = list(winners_of(table))
    across, up = table["axes"]
    grid = Table(box=None, header_style="bold", pad_edge=False)
    grid.add_column(f"{up['name']} \\ {across['name']}", justify="right")
    for value in across["values"]:
        grid.add_column(value_text(across["name"], value), justify="right", no_wrap=True)
    for value, row in reversed(list(zip(up["values"], table["cells"], strict=True))):
        texts = [
            "–" if cell is None else f"{letter_of(winners.index(cell_name(cell)))} {gain_text(cell)}" for cell in row
        ]
        grid.add_row(value_text(up["name"], value), *texts)
    screen.print(grid)
    screen.print()
    for place, (name, count) in enumerate(winners_of(table).items()):
        screen.print(
            f"{letter_of(place)}  {name}: fastest in {count} cell{'s' * (count > 1)}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    screen.print(
        "The number is how many times as fast as DDP; ≈: stay with DDP, as it gains below 10 % or ranges overlap.",
        highlight=False,
        soft_wrap=True,
    )
    for warning in made.warnings:
        screen.print(f"warning: {warning}", highlight=False, markup=False, soft_wrap=True)
