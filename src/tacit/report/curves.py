"""Curves over seeds: the histories on one common grid, as a mean line and a band from lowest to highest seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tacit.record.run import Row, Run, gradient_times_s, has_rounds
from tacit.record.trace import NOTE

AXES: Final = {
    "time_s": "time",
    "bytes_sent": "bytes sent",
    "round": "rounds",
    "gradients": "gradients",
    "step": "steps",
}
POINTS: Final = 240  # about one per three pixels of a figure


@dataclass(frozen=True)
class Curve:
    """A mean line with its band; all four of one length."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def over_seeds(
    histories: Sequence[Sequence[Row]],
    x: str,
    y: str,
    *,
    is_held: bool = False,
    is_stepwise: bool = False,
    points: int = POINTS,
) -> Curve | None:
    """Return ``y`` against ``x`` over the seeds, up to where the shortest seed ends; None when nothing was measured.

    ``is_held`` extends to the end of the longest seed: a finished seed keeps its model and its loss.
    ``is_stepwise`` holds a value until the next one (periods); otherwise lines are straight between rows (losses).
    """
    lines = [line for line in (_line(rows, x, y) for rows in histories) if len(line[0])]
    if not lines:
        return None
    grid = np.unique(np.concatenate([xs for xs, _ in lines]))
    first, last = max(xs[0] for xs, _ in lines), (max if is_held else min)(xs[-1] for xs, _ in lines)
    grid = grid[(grid >= first) & (grid <= last)]
    if not len(grid):  # the seeds have no interval in common
        return None
    if len(grid) > points:  # thinned by index, so that the grid stays dense where the rows are
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, points).round().astype(int))]
    values = np.stack([_hold(grid, xs, ys) if is_stepwise else np.interp(grid, xs, ys) for xs, ys in lines])
    return Curve(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def rows_of(run: Run) -> list[Row]:
    """Return the history with ``gradients``, those used until then, and without rounds where the run has none."""
    used_s, without = gradient_times_s(run.trace), {} if has_rounds(run.trace.columns()) else {"round": None}
    used = np.searchsorted(used_s, [row["time_s"] for row in run.history], "right")
    return [{**row, "gradients": int(count), **without} for row, count in zip(run.history, used, strict=True)]


def period_rows(run: Run) -> Sequence[Row]:
    """Return rows that hold the run's period: its history, or else the notes that the strategy left in the trace."""
    history = rows_of(run)
    if any(_finite(row.get("period")) for row in history):
        return history
    notes = [event for event in run.trace.of(NOTE) if event.label == "period"]
    times = np.array([event.time_s for event in notes])
    counted = {}
    for name in ("bytes_sent", "round", "gradients", "step"):  # a note knows its time alone for certain
        xs, ys = _line(history, "time_s", name)
        counted[name] = np.interp(times, xs, ys) if len(xs) else np.full(len(times), np.nan)
    return [
        {"time_s": event.time_s, "period": event.value, **{name: float(counted[name][i]) for name in counted}}
        for i, event in enumerate(notes)
    ]


def spread_rows(run: Run) -> list[Row]:
    """Return the widest spread of every round: the saw-tooth in between hides the trend.

    Without rounds on the way, every row.
    """
    history = rows_of(run)
    if not any(row["round"] for row in history[:-1]):
        return [row for row in history if _finite(row.get("spread")) and row["spread"] > 0]
    widest: dict[float, Row] = {}
    for row in history:
        if _finite(row.get("spread")) and row["spread"] > 0:
            before = widest.get(row["round"])
            widest[row["round"]] = row if before is None or row["spread"] >= before["spread"] else before
    return list(widest.values())


def _line(rows: Sequence[Row], x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the measured points in the order of x, one per x.

    Several rows may share a round or a number of bytes. The last of them tells what those bytes bought; the very
    first row of all is kept as well, because that is where every strategy starts.
    """
    points = [(float(row[x]), float(row[y])) for row in rows if _finite(row.get(x)) and _finite(row.get(y))]
    points.sort(key=lambda point: point[0])
    latest = dict(points)
    if points and len(latest) > 1:
        latest[points[0][0]] = points[0][1]
    return np.array(list(latest), dtype=float), np.array(list(latest.values()), dtype=float)


def _hold(grid: np.ndarray, xs: np.ndarray, ys: np.ndarray) -> np.ndarray:
    return np.asarray(ys[np.searchsorted(xs, grid, side="right") - 1])


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
