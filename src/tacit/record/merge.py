"""From what each rank wrote down to one run: traces put together, waiting told from talking, a loss curve."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Final

import numpy as np
from torch import Tensor

from tacit.errors import require
from tacit.record.run import RECORDED, Row, Tally, number
from tacit.record.trace import EXCHANGE, WAIT, PlainEvent, Trace

_MOST_ROWS: Final = 400


class LossCurve:
    """A worker's own losses over time: a row every so many steps, thinned out when they become too many."""

    def __init__(self, steps: int | None) -> None:
        self.every = max(1, (steps or 0) // 100)
        self.rows: list[tuple[int, float, float | None, float]] = []  # step, time, mean loss since the last row, weight

    def add(self, step: int, time_s: float, loss: float | None, weight: float) -> None:
        self.rows.append((step, time_s, loss, weight))
        if len(self.rows) > _MOST_ROWS:
            self.every *= 2
            self.rows = [row for row in self.rows if row[0] % self.every == 0]


def packed(trace: Trace, curve: LossCurve) -> bytes:
    """Return a worker's record as bytes for rank 0."""
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, curve=np.array(json.dumps(curve.rows)), **trace.columns())
    return file.getvalue()


def unpacked(data: bytes) -> tuple[list[PlainEvent], list[tuple[int, float, float | None, float]]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        rows = json.loads(str(stored["curve"]))
        names = ("time_s", "rank", "kind", "start_s", "step", "round", "peer", "size_bytes", "value", "label")
        events = list(zip(*(stored[name].tolist() for name in names), strict=True))
    return events, [tuple(row) for row in rows]


def merged(records: Sequence[bytes]) -> tuple[Trace, list[Row]]:
    """Return one trace and one history from all workers' records."""
    trace, curves = Trace(), []
    for record in records:
        events, rows = unpacked(record)
        trace.rows.extend(events)
        curves.append(rows)
    trace.rows = _told_apart(trace.rows)
    return trace, _history(trace, curves)


def _told_apart(rows: list[PlainEvent]) -> list[PlainEvent]:
    """Split each rank's part of a collective into waiting for the last to come and the exchange itself, as the
    simulator writes it.
    """
    begun_s: dict[tuple[int, str], float] = defaultdict(float)
    for row in rows:
        if row[2] == EXCHANGE:
            key = (row[5], row[9])
            begun_s[key] = max(begun_s[key], row[3])
    split: list[PlainEvent] = []
    for row in rows:
        end_s, rank, kind, start_s, step, round_, peer, size_bytes, value, label = row
        if kind != EXCHANGE:
            split.append(row)
            continue
        from_s = min(begun_s[round_, label], end_s)
        if from_s > start_s and not value:  # value 1 marks a round that travelled beside computation: nobody stood idle
            split.append((from_s, rank, WAIT, start_s, 0, round_, -2, 0, 0.0, label))
        split.append((end_s, rank, EXCHANGE, from_s, step, round_, peer, size_bytes, 0.0, label))
    return split


def _history(trace: Trace, curves: Sequence[Sequence[tuple[int, float, float | None, float]]]) -> list[Row]:
    """Return a row for every step that all workers have one for: the time of the last to get there, the weighted mean
    of their losses.
    """
    if not curves:
        return []
    tables = [{row[0]: row for row in rows} for rows in curves]
    tally, rows = Tally(trace), []
    for step in sorted(set.intersection(*(set(table) for table in tables))):
        here = [table[step] for table in tables]
        seen = [(loss, weight) for _, _, loss, weight in here if loss is not None]
        total = sum(weight for _, weight in seen)
        loss = sum(loss * weight for loss, weight in seen) / total if total else None
        time_s = max(row[1] for row in here)
        rows.append(row_at(tally, time_s, step, loss=loss))
    return rows


def row_at(tally: Tally, time_s: float, step: int, **measured: float | None) -> Row:
    """Return a row of a history: what was measured, under whatever names, beside rounds, bytes and period at that time."""
    names = dict.fromkeys(("loss", "gradient_norm_squared", "metric", "spread", *measured))
    numbers: dict[str, Any] = {name: number(measured.get(name)) for name in names}
    return {"time_s": time_s, "step": step, **numbers, **tally.at(time_s)}


def as_numbers(measured: Mapping[str, object]) -> dict[str, float | None]:
    """Return what a user logs as plain numbers; refuse what is none, and names that a row holds anyway."""
    numbers: dict[str, float | None] = {}
    for name, value in measured.items():
        require(name not in RECORDED, f"{name}={value!r} is recorded by the run itself; choose another name.")
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        if value is not None and not isinstance(value, Real):
            raise TypeError(f"{name}={value!r} must be a number, or None.")
        numbers[name] = None if value is None else float(value)
    return numbers
