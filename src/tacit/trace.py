"""The typed record of what happened: who computed, talked and waited, when, and how many bytes travelled.

Both worlds write it, identical in shape; tables, figures and the digest come from it alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain
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


_TYPES: Final = {
    "time_s": np.float64, "rank": np.int32, "kind": np.int32, "start_s": np.float64, "step": np.int64, "round": np.int64,
    "peer": np.int32, "size_bytes": np.int64, "value": np.float64, "label": np.int32,
}  # fmt: skip
_WORDS: Final = ("kind", "label")  # kept as codes: few words, many events
_LONG: Final = 100_000  # events kept as tuples before they are packed into arrays, a third of the size

PlainEvent = tuple[float, int, str, float, int, int, int, int, float, str]
"""An event as a plain tuple in ``Event``'s order: worlds write hundreds of thousands."""


class Trace:
    """Events in the order of time, then rank: independent of the order in which a world happened to write them."""

    def __init__(self) -> None:
        self.rows: list[PlainEvent] = []  # what was written last; append here where ``record`` would be felt
        self._stretches: list[tuple[int, int, list[float]]] = []  # steps one after the other: rank, first step, times
        self._packed: list[dict[str, Column]] = []
        self._words: dict[str, int] = {}
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
        """Add one event."""
        self.rows.append((time_s, rank, kind, start_s, step, round, peer, size_bytes, value, label))

    def record_steps(self, rank: int, step: int, times_s: list[float]) -> None:
        """Add ``COMPUTE`` events, one after the other from ``step`` on: the first one's start, then the end of each."""
        self._stretches.append((rank, step, times_s))

    def pack_if_long(self) -> None:
        """Move what was written into arrays, once it is worth it. Worlds call this now and then."""
        if len(self.rows) + len(self._stretches) > _LONG:
            self._pack()

    def cut(self, until_s: float) -> None:
        """Forget events that end after ``until_s``: written ahead by a world that then stopped."""
        self._pack()
        self._packed = [{n: c[part["time_s"] <= until_s] for n, c in part.items()} for part in self._packed]
        self._columns = None

    def __len__(self) -> int:
        in_stretches = sum(len(times_s) - 1 for _, _, times_s in self._stretches)
        return len(self.rows) + in_stretches + sum(len(part["rank"]) for part in self._packed)

    def __iter__(self) -> Iterator[Event]:
        return map(Event._make, zip(*(column.tolist() for column in self.columns().values()), strict=True))

    def of(self, *kinds: str) -> list[Event]:
        """Return the events of the given kinds, in order."""
        return [event for event in self if event.kind in kinds]

    def columns(self) -> dict[str, Column]:
        """Return the trace as one array per field; ``kind`` and ``label`` as arrays of text. Kept until the trace grows."""
        if self._columns is None or len(self._columns["rank"]) != len(self):
            self._pack()
            columns = {
                n: np.concatenate([part[n] for part in self._packed] or [np.empty(0, t)]) for n, t in _TYPES.items()
            }
            words = sorted(self._words)
            place = np.empty(len(words), np.int32)  # codes follow the order of writing, which must not show
            place[[self._words[word] for word in words]] = np.arange(len(words))
            for name in _WORDS:
                columns[name] = place[columns[name]]
            order = np.lexsort([columns[name] for name in reversed(_TYPES)])
            texts = np.array(words or [""])
            self._columns = {n: texts[c[order]] if n in _WORDS else c[order] for n, c in columns.items()}
        return self._columns

    @property
    def digest(self) -> str:
        """SHA-256 over every field of every event: equal for equal runs."""
        digest = hashlib.sha256()
        for name, column in self.columns().items():
            digest.update(name.encode())
            if name in _WORDS:
                words, column = np.unique(column, return_inverse=True)
                digest.update("\n".join(words).encode())
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
        trace = cls()
        trace.rows = list(zip(*columns, strict=True))
        return trace

    def _pack(self) -> None:
        if self.rows:
            parts: dict[str, Sequence[Any]] = dict(zip(Event._fields, zip(*self.rows, strict=True), strict=True))
            for name in _WORDS:
                parts[name] = [self._code(word) for word in parts[name]]
            self._packed.append({name: np.array(values, _TYPES[name]) for name, values in parts.items()})
            self.rows.clear()
        if self._stretches:
            self._packed.append(self._columns_of_stretches())
            self._stretches.clear()

    def _columns_of_stretches(self) -> dict[str, Column]:
        ranks, firsts, times_s = zip(*self._stretches, strict=True)
        lengths = np.array([len(stretch) for stretch in times_s])  # one more than steps: the start
        times = np.fromiter(chain.from_iterable(times_s), np.float64, lengths.sum())
        places = np.arange(len(times)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # within its stretch
        is_end = places > 0
        columns = {name: np.zeros(is_end.sum(), kind) for name, kind in _TYPES.items()}
        columns["time_s"][:], columns["start_s"][:] = times[is_end], times[np.flatnonzero(is_end) - 1]
        columns["rank"][:] = np.repeat(ranks, lengths - 1)
        columns["step"][:] = (np.repeat(firsts, lengths) + places - 1)[is_end]
        columns["kind"][:], columns["label"][:], columns["peer"][:] = self._code(COMPUTE), self._code(""), -2
        return columns

    def _code(self, word: str) -> int:
        return self._words.setdefault(word, len(self._words))
