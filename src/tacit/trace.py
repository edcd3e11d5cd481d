"""The typed record of what happened: who computed, talked and waited, when, and how many bytes travelled.

Both worlds write it, identical in shape; tables, figures and the digest come from it alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

COMPUTE: Final = "compute"  # one step's gradient; step is its number, counted from 1
CANCELLED: Final = "cancelled"  # a step's gradient that was abandoned
WAIT: Final = "wait"  # blocked until others arrive; label says for what
EXCHANGE: Final = "exchange"  # this rank's part of a collective; size_bytes is what it put on the wire
SEND: Final = "send"  # a message put on the wire, to peer
RECEIVE: Final = "receive"  # a message handed over, from peer
NOTE: Final = "note"  # a number a strategy wants drawn; label is its name, value the number
FAULT: Final = "fault"  # label says which
KINDS: Final = (COMPUTE, CANCELLED, WAIT, EXCHANGE, SEND, RECEIVE, NOTE, FAULT)


Column = NDArray[Any]


class Event(NamedTuple):
    """One row of the trace. Order of fields is order of sorting."""

    time_s: float  # when it ended
    rank: int  # -1 is the server
    kind: str
    start_s: float
    step: int = 0  # the worker's step at the time
    round: int = 0  # number of the collective, from 1
    peer: int = -2  # the other side of a message; -2 where there is none
    size_bytes: int = 0
    value: float = 0.0
    label: str = ""


_NUMBERS: Final = ("time_s", "rank", "start_s", "step", "round", "peer", "size_bytes", "value")
_TYPES: Final = (np.float64, np.int32, np.float64, np.int64, np.int64, np.int32, np.int64, np.float64)


class Trace:
    """Events in the order of time, then rank: independent of the order in which a world happened to write them."""

    def __init__(self, rows: list[tuple[float, int, str, float, int, int, int, int, float, str]] | None = None) -> None:
        self.rows = [] if rows is None else rows  # plain tuples in Event's order: a world writes hundreds of thousands
        self._sorted = 0
        self._columns: dict[str, Column] | None = None

    def record(
        self,
        kind: str,
        rank: int,
        start_s: float,
        time_s: float,
        *,
        step: int = 0,
        round: int = 0,
        peer: int = -2,
        size_bytes: int = 0,
        value: float = 0.0,
        label: str = "",
    ) -> None:
        """Add one event. Worlds append tuples to ``rows`` where this call would be felt."""
        self.rows.append((time_s, rank, kind, start_s, step, round, peer, size_bytes, value, label))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Event]:
        self._sort()
        return map(Event._make, self.rows)

    def of(self, *kinds: str) -> list[Event]:
        """Return the events of the given kinds, in order."""
        return [event for event in self if event.kind in kinds]

    def columns(self) -> dict[str, Column]:
        """Return the trace as one array per field; ``kind`` and ``label`` as arrays of text. Kept until the trace grows."""
        if self._columns is None or len(self._columns["rank"]) != len(self.rows):
            self._sort()
            self._columns = {n: _column(n, [row[at] for row in self.rows]) for at, n in enumerate(Event._fields)}
        return self._columns

    @property
    def digest(self) -> str:
        """SHA-256 over every field of every event: equal for equal runs."""
        digest = hashlib.sha256()
        for name, column in self.columns().items():
            digest.update(name.encode())
            if column.dtype.kind == "U":
                words, codes = np.unique(column, return_inverse=True)
                digest.update("\n".join(words).encode())
                column = codes.astype(np.int64)
            digest.update(column.tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the trace as compressed columns."""
        np.savez_compressed(path, allow_pickle=False, **self.columns())

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read what ``save`` wrote; never unpickles."""
        with np.load(path, allow_pickle=False) as stored:
            columns = [stored[name].tolist() for name in Event._fields]
        return cls(list(zip(*columns, strict=True)))

    def _sort(self) -> None:
        if self._sorted != len(self.rows):
            self.rows.sort()
            self._sorted = len(self.rows)


def _column(name: str, values: list[Any]) -> Column:
    if name in _NUMBERS:
        return np.array(values, dtype=_TYPES[_NUMBERS.index(name)])
    words = {word: code for code, word in enumerate(dict.fromkeys(values))}  # few words, many rows
    codes = np.fromiter(map(words.__getitem__, values), np.int64, len(values))
    return np.array(list(words) or [""])[codes]
