"""Merge the records of all ranks into one run: one trace and one loss curve."""

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
from tacit.record.trace import EXCHANGE, Event, PlainEvent, Trace

_MAX_ROWS: Final = 400


class LossCurve:
    """Losses of one worker over time: one row every ``every`` steps. ``every`` doubles when there are too many rows."""

    def __init__(self, steps: int | None) -> None:
        self.every = max(1, (steps or 0) // 100)
        self.rows: list[tuple[int, float, float | None, float]] = []  # step, time, mean loss since the last row, weight

    def add(self, step: int, time_s: float, loss: float | None, weight: float) -> None:
        self.rows.append((step, time_s, loss, weight))
        if len(self.rows) > _MAX_ROWS:
            self.every *= 2
            self.rows = [row for row in self.rows if row[0] % self.every == 0]


def packed(trace: Trace, curve: LossCurve, facts: Mapping[str, Any] | None = None) -> bytes:
    """Return a worker's record as bytes for rank 0; ``facts``: of its process."""
    file, texts = io.BytesIO(), {"curve": curve.rows, "facts": dict(facts or {})}
    described = {name: np.array(json.dumps(value)) for name, value in texts.items()}
    np.savez_compressed(file, allow_pickle=False, **described, **trace.columns())
    return file.getvalue()


def facts_of(data: bytes) -> dict[str, Any]:
    """Return the facts in a packed record."""
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        facts: dict[str, Any] = json.loads(str(stored["facts"]))
    return facts


def unpacked(data: bytes) -> tuple[list[PlainEvent], list[tuple[int, float, float | None, float]]]:
    """Return the events and the rows of the loss curve of a packed record."""
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        rows = json.loads(str(stored["curve"]))
        events = list(zip(*(stored[name].tolist() for name in Event._fields), strict=True))
    return events, [tuple(row) for row in rows]


def merged(records: Sequence[bytes]) -> tuple[Trace, list[Row]]:
    """Return one trace and one history from all workers' records."""
    trace, curves = Trace(), []
    for record in records:
        events, rows = unpacked(record)
        trace.rows.extend(events)
        curves.append(rows)
    trace = _with_waits(trace.rows)
    return trace, _history(trace, curves)


def _with_waits(rows: list[PlainEvent]) -> Trace:
    """Return a trace in which collectives are split, as in the simulator: wait for the last rank, then exchange."""
    begun_s: dict[tuple[int, str], float] = defaultdict(float)
    for row in rows:
        event = Event._make(row)
        if event.kind == EXCHANGE:
            key = (event.round, event.label)
            begun_s[key] = max(begun_s[key], event.start_s)
    trace = Trace()
    for row in rows:
        event = Event._make(row)
        if event.kind != EXCHANGE:
            trace.rows.append(row)
            continue
        end_s, rank, label = event.time_s, event.rank, event.label
        from_s, is_overlapped = min(begun_s[event.round, label], end_s), bool(event.value)
        if from_s > event.start_s and not is_overlapped:  # a rank that computed in the meantime was not idle
            trace.wait(rank, event.start_s, from_s, label, event.round)
        trace.exchange(rank, from_s, end_s, label, event.round, event.size_bytes, is_overlapped)
    return trace


def _history(trace: Trace, curves: Sequence[Sequence[tuple[int, float, float | None, float]]]) -> list[Row]:
    """Return one row per step that is in all curves: time of the slowest worker, weighted mean of the losses."""
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
    """Return a row of a history: the measured numbers, and rounds, bytes and period at that time."""
    names = dict.fromkeys(("loss", "gradient_norm_squared", "metric", "spread", *measured))
    numbers: dict[str, Any] = {name: number(measured.get(name)) for name in names}
    return {"time_s": time_s, "step": step, **numbers, **tally.at(time_s)}


def as_numbers(measured: Mapping[str, object]) -> dict[str, float | None]:
    """Return logged values as floats; raise for other values, and for names that each row holds already."""
    numbers: dict[str, float | None] = {}
    for name, value in measured.items():
        require(name not in RECORDED, f"{name}={value!r}: the run records {name} itself; choose another name.")
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        if value is not None and not isinstance(value, Real):
            raise TypeError(f"{name}={value!r} must be a number, or None.")
        numbers[name] = None if value is None else float(value)
    return numbers
