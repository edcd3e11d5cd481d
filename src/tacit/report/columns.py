"""Columns of the comparison's table, shared by the terminal and the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tacit.report import units
from tacit.report.comparison import Comparison, Measured, TableRow

WHOLE_RUN = "whole run"


@dataclass(frozen=True)
class Column:
    """One column: its number, title, format, and whether higher is better."""

    key: str  # the field of TableRow
    title: str
    group: str  # the heading it shares with its neighbours; may be empty
    show: Callable[[float], str]
    is_higher_better: bool = False
    is_ranked: bool = True  # the best value is marked
    unreached: str = "–"  # text where no seed has a number
    is_logged: bool = False  # the number comes from session.log under the name of the title


@dataclass(frozen=True)
class Cell:
    """One cell: the mean as text, the range over seeds, and the number to sort by."""

    text: str
    detail: str = ""
    is_best: bool = False
    value: float | None = None
    deviation: str = ""  # half the range relative to the mean, for narrow tables


def columns_of(comparison: Comparison) -> list[Column]:
    """Return the columns for which this comparison has numbers, from left to right."""
    columns: list[Column] = []
    if comparison.target is not None:
        group = f"to loss {units.target(comparison.target)}"
        columns += [
            Column("time_to_target_s", "time", group, units.seconds, unreached="not reached"),
            Column("bytes_to_target", "bytes", group, units.size, unreached="–"),
            Column("rounds_to_target", "rounds", group, units.count, unreached="–"),
            Column("gradients_to_target", "gradients", group, units.count, unreached="–"),
        ]
        if comparison.has_speed_ups:
            columns.append(Column("speed_up", "speed-up", group, units.ratio, is_higher_better=True))
    columns.append(Column("loss", "final loss", WHOLE_RUN, units.loss))
    if any(row.metric.known for row in comparison.rows):
        name = comparison.metric_name or "metric"
        columns.append(Column("metric", name, WHOLE_RUN, units.loss, is_higher_better=not _is_cost(name)))
    logged = dict.fromkeys(name for row in comparison.rows for seed in row.seeds for name in seed.get("logged", {}))
    columns += [
        Column(f"logged {name}", name, WHOLE_RUN, units.loss, is_ranked=False, is_logged=True) for name in logged
    ]
    return [
        *columns,
        Column("time_s", "time", WHOLE_RUN, units.seconds),
        Column("bytes_sent", "bytes", WHOLE_RUN, units.size),
        Column("rounds", "rounds", WHOLE_RUN, units.count, is_ranked=False),
        Column("gradients", "gradients", WHOLE_RUN, units.count, is_ranked=False),
        Column("idle", "waiting", WHOLE_RUN, units.share),
    ]


def cells(comparison: Comparison, column: Column) -> list[Cell]:
    """Return the cells of one column, one for each strategy, with the best marked."""
    measured = [_measured(row, column) for row in comparison.rows]
    written = [_cell(m, column) for m in measured]
    values = [cell.value for cell in written if cell.value is not None]
    if len(comparison.rows) < 2 or not values or not column.is_ranked or comparison.predictions:
        return written
    best = column.show(max(values) if column.is_higher_better else min(values))  # as text, so that ties are equal
    if all(cell.text == best for cell in written):
        return written
    return [replace(cell, is_best=cell.text == best and cell.value is not None) for cell in written]


def small_print(row: TableRow) -> list[str]:
    """Return the lines below a strategy's name: its note, and runs that did not finish."""
    return [line for line in (row.note, *row.statuses) if line]


def _measured(row: TableRow, column: Column) -> Measured:
    if column.is_logged:
        return Measured(tuple(seed.get("logged", {}).get(column.title) for seed in row.seeds))
    measured: Measured = getattr(row, column.key)
    return measured


def _cell(measured: Measured, column: Column) -> Cell:
    known, mean = measured.known, measured.mean
    if mean is not None:
        detail = units.between(min(known), max(known), column.show) if len(known) > 1 else ""
        half = 50 * (max(known) - min(known)) / abs(mean) if mean and column.show is not units.share else 0.0
        return Cell(column.show(mean), detail, value=mean, deviation=f"±{half:.1f} %" if half >= 0.05 else "")
    return Cell(f"{len(known)} of {len(measured.values)} seeds" if known else column.unreached)


def _is_cost(name: str) -> bool:
    return any(word in name.lower() for word in ("error", "loss", "perplexity", "distance"))
