"""The typed record of what happened: who computed, talked and waited, when, and how many bytes travelled.

Both worlds write it, identical in shape; tables, figures and the digest come from it alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter
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
    "time_s": np.float64,
    "rank": np.int32,
    "kind": np.int32,
    "start_s": np.float64,
    "step": np.int64,
    "round": np.int64,
    "peer": np.int32,
    "size_bytes": np.int64,
    "value": np.float64,
    "label": np.int32,
}
_WORDS: Final = ("kind", "label")  # kept as codes: few words, many events
_LONG: Final = 100_000  # events kept as tuples before they are packed into arrays, a third of the size
_SORTED_AT_ONCE: Final = (
    100_000  # events whose other fields are compared at once, so that they fit into a processor's cache
)

PlainEvent = tuple[float, int, str, float, int, int, int, int, float, str]
"""An event as a plain tuple in ``Event``'s order: worlds write hundreds of thousands."""


class Trace:
    """Events in the order of time, then rank: independent of the order in which a world happened to write them."""

    def __init__(self) -> None:
        self.rows: list[PlainEvent] = []  # what was written last; append here where ``record`` would be felt
        self._stretches: list[tuple[int, int, list[float]]] = []  # steps one after the other: rank, first step, times
        self._packed: list[dict[str, Column]] = []
        self._words: dict[str, int] = {}
        self._sorted: dict[str, Column] | None = None  # with words as places in ``vocabulary``
        self._columns: dict[str, Column] | None = None  # with words as text

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

    def record_many(
        self,
        kind: str,
        rank: int | Column,
        time_s: Column,
        start_s: float | Column,
        *,
        label: str = "",
        **fields: float | Column,
    ) -> None:
        """Add events of one kind; a number stands for all of them, an array for one each.

        Arrays are kept, not copied.
        """
        given = {"peer": -2, **fields, "rank": rank, "time_s": time_s, "start_s": start_s}
        given |= {"kind": self._code(kind), "label": self._code(label)}
        count = len(time_s)
        self._packed.append({n: np.broadcast_to(np.asarray(given.get(n, 0), t), count) for n, t in _TYPES.items()})

    def pack_if_long(self) -> None:
        """Move what was written into arrays, once it is worth it. Worlds call this now and then."""
        if len(self.rows) + len(self._stretches) > _LONG:
            self._pack()

    def cut(self, until_s: float) -> None:
        """Forget events that end after ``until_s``: written ahead by a world that then stopped."""
        self._pack()
        for place, part in enumerate(self._packed):
            is_kept = part["time_s"] <= until_s
            if not is_kept.all():
                self._packed[place] = {name: column[is_kept] for name, column in part.items()}
                self._sorted = self._columns = None

    def __len__(self) -> int:
        in_stretches = sum(len(times_s) - 1 for _, _, times_s in self._stretches)
        return len(self.rows) + in_stretches + sum(len(part["rank"]) for part in self._packed)

    def __iter__(self) -> Iterator[Event]:
        return map(Event._make, zip(*(column.tolist() for column in self.columns().values()), strict=True))

    def of(self, *kinds: str) -> list[Event]:
        """Return the events of the given kinds, in order."""
        return [event for event in self if event.kind in kinds]

    def columns(self) -> dict[str, Column]:
        """Return the trace as one array per field; ``kind`` and ``label`` as arrays of text.

        Kept until the trace grows.
        """
        if self._columns is None or len(self._columns["rank"]) != len(self):
            numbers = self.in_order()
            texts = np.array(self.vocabulary or [""])
            self._columns = {n: texts[c] if n in _WORDS else c for n, c in numbers.items()}
        return self._columns

    @property
    def vocabulary(self) -> list[str]:
        """All words, in an order that does not depend on who wrote first."""
        return sorted(self._words)

    def in_order(self) -> dict[str, Column]:
        """Return the trace as one array of numbers per field, words as places in ``vocabulary``."""
        if self._sorted is None or len(self._sorted["rank"]) != len(self):
            self._pack()
            columns = {
                n: np.concatenate([part[n] for part in self._packed] or [np.empty(0, t)]) for n, t in _TYPES.items()
            }
            words = self.vocabulary
            place = np.empty(len(words), np.int32)  # codes follow the order of writing, which must not show
            place[[self._words[word] for word in words]] = np.arange(len(words))
            for name in _WORDS:
                columns[name] = place[columns[name]]
            order = _order(columns)
            self._sorted = {name: column[order] for name, column in columns.items()}
        return self._sorted

    def unordered(self, names: Sequence[str], kind: str | None = None, label: str | None = None) -> list[Column]:
        """Return some numbers of the events of one kind and label, in any order: a long trace is sorted only for those
        who need it.
        """
        self._pack()
        wanted = {"kind": kind, "label": label}
        codes = {name: self._words.get(word, -1) for name, word in wanted.items() if word is not None}
        found: list[list[Column]] = [[np.empty(0, _TYPES[name])] for name in names]
        for part in self._packed:
            is_wanted = [part[name] == code for name, code in codes.items()]
            some = np.logical_and.reduce(is_wanted) if is_wanted else slice(None)
            for name, columns in zip(names, found, strict=True):
                columns.append(part[name][some])
        return [np.concatenate(columns) for columns in found]

    @property
    def digest(self) -> str:
        """SHA-256 over every field of every event: equal for equal runs."""
        digest, columns = hashlib.sha256(), self.in_order()
        words = self.vocabulary
        for name, column in columns.items():
            digest.update(name.encode())
            if name in _WORDS:
                occurs = np.bincount(column, minlength=len(words)) > 0
                digest.update("\n".join(word for word, does in zip(words, occurs, strict=True) if does).encode())
                column = (np.cumsum(occurs) - 1)[column]
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
            # Field by field: all fields at once, zip(*rows), would make an object for every event, and a search for
            # garbage of it.
            parts: dict[str, Iterator[Any]] = {n: map(itemgetter(i), self.rows) for i, n in enumerate(_TYPES)}
            for name in _WORDS:
                parts[name] = map(self._code, parts[name])
            self._packed.append({n: np.fromiter(values, _TYPES[n], len(self.rows)) for n, values in parts.items()})
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


def _order(columns: dict[str, Column]) -> Column:
    """Return the places of events sorted by all fields: by time first, which worlds write nearly in order, then stretch
    by stretch.
    """
    order = np.argsort(columns["time_s"], kind="stable")
    times_s, begin = columns["time_s"][order], 0
    keys = [columns[name] for name in reversed(_TYPES) if len(order) and columns[name].min() != columns[name].max()]
    while begin < len(order) and keys:
        last = min(begin + _SORTED_AT_ONCE, len(order)) - 1
        end = int(np.searchsorted(times_s, times_s[last], "right"))  # equal times stay together
        some = order[begin:end]
        order[begin:end] = some[np.lexsort([key[some] for key in keys])]
        begin = end
    return order
