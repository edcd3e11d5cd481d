"""Table of a comparison in the terminal."""

from __future__ import annotations

import re
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.report import units
from tacit.report.columns import WHOLE_RUN, Cell, Column, cells, columns_of, small_print
from tacit.report.comparison import Comparison
from tacit.report.verdict import remarks, verdict

NAME: Final = 44  # width of a strategy's name that has priority over totals of the whole run
NARROWEST: Final = 18  # least width of a strategy's name
TOTALS: Final = ("rounds", "bytes_sent", "time_s")
LEFT_OUT: Final = ("gradients", *TOTALS)  # dropped first where there are numbers to the target, in this order
NEXT: Final = ("metric", "rounds_to_target", "gradients_to_target", "idle")  # dropped next, in narrower terminals


def print_table(comparison: Comparison, console: Console) -> None:
    """Print the table and the verdict; a narrow terminal shows fewer columns."""
    console.print(Text(f"{comparison.workload} on {units.abbreviated(comparison.cluster)}", style="dim"))
    console.print(terminal_table(comparison, console.width))
    console.print(Text(verdict(comparison), style="bold"))
    for remark in remarks(comparison):
        console.print(Text(remark))


def terminal_table(comparison: Comparison, width: int) -> Table:
    """Return the table for a terminal of ``width`` columns."""
    notes = [f"to {units.target(comparison.target)}: until the loss reaches it"] if comparison.target else []
    if max(len(entry.runs) for entry in comparison.entries) > 1:
        notes.append("mean over seeds, ± half the range")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption="; ".join(notes) or None, caption_justify="left")
    texts = _fitting(comparison, width)
    taken = sum(map(_width, texts))
    table.add_column("strategy", overflow="fold", min_width=NARROWEST, vertical="top")
    for heading, *_ in texts:
        table.add_column(heading, justify="right", vertical="top", no_wrap=True)
    for i, row in enumerate(comparison.rows):
        name = Text(_broken(row.label, max(NARROWEST, width - taken - 3)))
        for line in small_print(row):
            name.append(f"\n{line}", style="dim" if line == row.note else "red")
        table.add_row(name, *[column[i + 1] for column in texts])
    return table


def _fitting(comparison: Comparison, width: int) -> list[list[Text]]:
    """Return the columns as texts, heading first, as many as fit next to the strategies' names."""
    columns = columns_of(comparison)
    texts = {column.key: [_heading(column), *map(_text, cells(comparison, column))] for column in columns}
    name = max(len(row.label) for row in comparison.rows) + 3
    for keys, least in ((LEFT_OUT if comparison.target is not None else (), min(NAME, name)), (NEXT, NARROWEST + 3)):
        for key in keys:
            if sum(map(_width, texts.values())) + least > width:
                texts.pop(key, None)
    return list(texts.values())


def _width(column: list[Text]) -> int:
    return max(len(line) for text in column for line in text.plain.split("\n")) + 2


def _broken(label: str, width: int) -> str:
    """Return a strategy's name in lines of at most ``width``, broken after commas, brackets and equals signs."""
    lines = [""]
    for piece in re.split(r"(?<=,\s)|(?<=[(=])(?=[^)]{8})", label):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("  ")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _heading(column: Column) -> Text:
    if column.group == WHOLE_RUN:
        return Text(f"total\n{column.title}" if column.key in LEFT_OUT else column.title.replace(" ", "\n"))
    if column.key == "speed_up":
        return Text(column.title)
    return Text(f"{column.title} to\n{column.group.removeprefix('to loss ')}")


def _text(cell: Cell) -> Text:
    written = cell.text if cell.value is not None else "\n".join(cell.text.rsplit(" ", 1))  # «2 of 3 seeds» in two
    text = Text(written, style="bold green" if cell.is_best else "")
    return text.append(f"\n{cell.deviation}", style="dim not bold") if cell.deviation else text
