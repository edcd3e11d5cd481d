"""Event trace of a run: computing, waiting and communication of each endpoint, with times and bytes.

Simulated and real runs write the same kinds of events. Tables, figures and the digest are derived from the trace alone.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, MutableSequence, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

COMPUTE: Final = "compute"  # one step's gradient; step is its number, counted from 1
CANCELLED: Final = "cancelled"  # a step whose gradient was abandoned
WAIT: Final = "wait"  # blocked; label is what the endpoint waits for
EXCHANGE: Final = "exchange"  # this rank's part of a collective; size_bytes is what it sent
SEND: Final = "send"  # a message sent to peer
RECEIVE: Final = "receive"  # a message received from peer
NOTE: Final = "note"  # a number reported by a strategy; label is its name
FAULT: Final = "fault"  # label is the fault
HOOK: Final = "hook"  # work in a hook, or an update after it; label is the work, value the numbers it is about
START: Final = "start"  # the exchange of start values, before time 0; no traffic of the strategy
KINDS: Final = (COMPUTE, CANCELLED, WAIT, EXCHANGE, SEND, RECEIVE, NOTE, FAULT, HOOK, START)


Column = NDArray[Any]


class Event(NamedTuple):
    """One row of the trace. Events are sorted by their fields in this order."""

    time_s: float  # end of the event
    rank: int  # -1: the server
    kind: str
    start_s: float
    step: int = 0  # number of the step, from 1
    round: int = 0  # number of the collective, from 1
    peer: int = -2  # the other endpoint of a message; -2: none
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
_TEXT_FIELDS: Final = ("kind", "label")  # stored as integer codes: few different texts, many events
_LONG: Final = 100_000  # events kept as tuples before they are packed into arrays of a third of the size
_MANY: Final = 64  # ranks of a collective from which on its events are written as arrays
_SORTED_AT_ONCE: Final = 100_000  # events sorted by all fields in one call, so that the columns fit into the CPU cache

PlainEvent = tuple[float, int, str, float, int, int, int, int, float, str]
"""An event as a plain tuple in the order of ``Event``'s fields, which is faster to make than an ``Event``."""


class EventWriter:
    """One method per kind of event; each appends a row to ``rows``."""

    rows: MutableSequence[PlainEvent]

    def compute(self, rank: int, step: int, start_s: float, end_s: float) -> None:
        """Add a step whose gradient is used."""
        self.rows.append((end_s, rank, COMPUTE, start_s, step, 0, -2, 0, 0.0, ""))

    def cancelled(self, rank: int, step: int, start_s: float, end_s: float) -> None:
        """Add a step whose gradient was abandoned."""
        self.rows.append((end_s, rank, CANCELLED, start_s, step, 0, -2, 0, 0.0, ""))

    def wait(self, rank: int, start_s: float, end_s: float, label: str, round: int = 0) -> None:
        """Add the time in which ``rank`` was blocked; ``round``: the number of the collective it waited for."""
        self.rows.append((end_s, rank, WAIT, start_s, 0, round, -2, 0, 0.0, label))

    def exchange(
        self,
        rank: int,
        start_s: float,
        end_s: float,
        label: str,
        round: int,
        size_bytes: int,
        is_overlapped: bool = False,
    ) -> None:
        """Add the part of ``rank`` in a collective; ``is_overlapped``: the rank computed in the meantime."""
        self.rows.append((end_s, rank, EXCHANGE, start_s, 0, round, -2, size_bytes, float(is_overlapped), label))

    def exchanges(
        self,
        ranks: Sequence[int],
        start_s: float,
        ends_s: Sequence[float],
        label: str,
        round: int,
        sizes_bytes: Sequence[int],
    ) -> None:
        """Add the parts of all ranks in one collective, in one call."""
        self.rows.extend(
            [
                (end_s, rank, EXCHANGE, start_s, 0, round, -2, size_bytes, 0.0, label)
                for rank, end_s, size_bytes in zip(ranks, ends_s, sizes_bytes, strict=True)
            ]
        )

    def waits(self, ranks: Sequence[int], starts_s: Sequence[float], end_s: float, label: str, round: int) -> None:
        """Add the times in which ranks were blocked before one collective, in one call."""
        self.rows.extend(
            [
                (end_s, rank, WAIT, start_s, 0, round, -2, 0, 0.0, label)
                for rank, start_s in zip(ranks, starts_s, strict=True)
            ]
        )

    def send(self, rank: int, to: int, time_s: float, size_bytes: int, label: str) -> None:
        """Add a message that ``rank`` sent."""
        self.rows.append((time_s, rank, SEND, time_s, 0, 0, to, size_bytes, 0.0, label))

    def receive(self, rank: int, source: int, time_s: float, size_bytes: int, label: str) -> None:
        """Add a message that ``rank`` received."""
        self.rows.append((time_s, rank, RECEIVE, time_s, 0, 0, source, size_bytes, 0.0, label))

    def note(self, rank: int, time_s: float, name: str, value: float, about: int | None = None) -> None:
        """Add a number that a strategy reports; ``about``: the rank it refers to."""
        self.rows.append((time_s, rank, NOTE, time_s, 0, 0, -2 if about is None else about, 0, float(value), name))

    def hook(self, rank: int, start_s: float, end_s: float, label: str, numbers: int = 0) -> None:
        """Add work of ``rank`` in a hook: ``label`` on ``numbers`` numbers."""
        self.rows.append((end_s, rank, HOOK, start_s, 0, 0, -2, 0, float(numbers), label))

    def start(self, rank: int, start_s: float, end_s: float, size_bytes: int) -> None:
        """Add the exchange of start values before time 0; ``size_bytes``: what ``rank`` sent."""
        self.rows.append((end_s, rank, START, start_s, 0, 0, -2, size_bytes, 0.0, "broadcast"))

    def fault(self, rank: int, start_s: float, end_s: float, label: str) -> None:
        """Add a fault of the cluster."""
        self.rows.append((end_s, rank, FAULT, start_s, 0, 0, -2, 0, 0.0, label))


class EventQueue(deque[PlainEvent], EventWriter):
    """Events that one thread writes and another takes."""

    @property
    def rows(self) -> EventQueue:  # type: ignore[override]
        return self


class Trace(EventWriter):
    """Events sorted by time, then by the other fields; the order of writing has no effect."""

    rows: list[PlainEvent]

    def __init__(self) -> None:
        self.rows = []  # the events written last
        self._runs_of_steps: list[tuple[int, int, list[float]]] = []  # consecutive steps: rank, first step, times
        self._packed: list[dict[str, Column]] = []
        self._rounds: list[dict[str, Column]] = []  # exchanges and waits of many ranks, not yet joined
        self._codes: dict[str, int] = {}  # by text
        self._sorted: dict[str, Column] | None = None  # with texts as indices into ``vocabulary``
        self._columns: dict[str, Column] | None = None  # with texts as such

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
        """Add one event of any kind."""
        self.rows.append((time_s, rank, kind, start_s, step, round, peer, size_bytes, value, label))

    def record_steps(self, rank: int, step: int, times_s: list[float]) -> None:
        """Add consecutive ``COMPUTE`` events from ``step`` on; ``times_s``: the start of the first, the end of each."""
        self._runs_of_steps.append((rank, step, times_s))

    def record_steps_of_all(self, step: int, times_s: Column) -> None:
        """Add consecutive ``COMPUTE`` events of all ranks from ``step`` on; ``times_s`` has one row per rank.

        A row has the start of the first step and the end of each.
        """
        ranks, steps = times_s.shape[0], times_s.shape[1] - 1
        if ranks < _MANY:
            self._runs_of_steps.extend((rank, step, own) for rank, own in enumerate(times_s.tolist()))
            return
        fields = {"time_s": times_s[:, 1:].ravel(), "start_s": times_s[:, :-1].ravel()}
        fields["step"] = np.tile(np.arange(step, step + steps), ranks)
        self._rounds.append(self._part(COMPUTE, np.repeat(np.arange(ranks), steps), ranks * steps, "", fields))

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
        """Add events of one kind. A field is a number, the same for all events, or an array with one entry per event.

        Arrays are not copied.
        """
        fields = {**fields, "time_s": time_s, "start_s": start_s}
        self._packed.append(self._part(kind, rank, len(time_s), label, fields))

    def _part(
        self, kind: str, ranks: int | Column | Sequence[int], count: int, label: str, fields: dict[str, Any]
    ) -> dict[str, Column]:
        given = {"peer": -2, **fields, "rank": ranks, "kind": self._code(kind), "label": self._code(label)}
        return {
            n: np.broadcast_to(np.asarray(given[n], t), count) if n in given else _zeros(t, count)
            for n, t in _TYPES.items()
        }

    def exchanges(
        self,
        ranks: Sequence[int],
        start_s: float,
        ends_s: Sequence[float],
        label: str,
        round: int,
        sizes_bytes: Sequence[int],
    ) -> None:
        if len(ranks) < _MANY:
            super().exchanges(ranks, start_s, ends_s, label, round, sizes_bytes)
            return
        fields = {"time_s": ends_s, "start_s": start_s, "round": round, "size_bytes": sizes_bytes}
        self._rounds.append(self._part(EXCHANGE, ranks, len(ranks), label, fields))

    def waits(self, ranks: Sequence[int], starts_s: Sequence[float], end_s: float, label: str, round: int) -> None:
        if len(ranks) < _MANY:
            super().waits(ranks, starts_s, end_s, label, round)
            return
        fields = {"time_s": end_s, "start_s": starts_s, "round": round}
        self._rounds.append(self._part(WAIT, ranks, len(ranks), label, fields))

    def pack_if_long(self) -> None:
        """Move events from tuples into arrays if there are many. Worlds call this regularly."""
        if len(self.rows) + len(self._runs_of_steps) + len(self._rounds) > _LONG:
            self._pack()

    def cut(self, until_s: float) -> None:
        """Remove events that end after ``until_s``: a world that stopped had written them in advance."""
        self._pack()
        for index, part in enumerate(self._packed):
            is_kept = part["time_s"] <= until_s
            if not is_kept.all():
                self._packed[index] = {name: column[is_kept] for name, column in part.items()}
                self._sorted = self._columns = None

    def __len__(self) -> int:
        steps = sum(len(times_s) - 1 for _, _, times_s in self._runs_of_steps)
        return len(self.rows) + steps + sum(len(part["rank"]) for part in chain(self._rounds, self._packed))

    def __iter__(self) -> Iterator[Event]:
        return map(Event._make, zip(*(column.tolist() for column in self.columns().values()), strict=True))

    def of(self, *kinds: str) -> list[Event]:
        """Return the events of the given kinds, in order."""
        return [event for event in self if event.kind in kinds]

    def columns(self) -> dict[str, Column]:
        """Return one array per field, ``kind`` and ``label`` as text. The result is cached until the trace grows."""
        if self._columns is None or len(self._columns["rank"]) != len(self):
            numbers = self.in_order()
            texts = np.array(self.vocabulary or [""])
            self._columns = {n: texts[c] if n in _TEXT_FIELDS else c for n, c in numbers.items()}
        return self._columns

    @property
    def vocabulary(self) -> list[str]:
        """All kinds and labels, sorted."""
        return sorted(self._codes)

    def in_order(self) -> dict[str, Column]:
        """Return one array of numbers per field, texts as indices into ``vocabulary``."""
        if self._sorted is None or len(self._sorted["rank"]) != len(self):
            self._pack()
            columns = {
                n: np.concatenate([part[n] for part in self._packed] or [np.empty(0, t)]) for n, t in _TYPES.items()
            }
            texts = self.vocabulary
            index = np.empty(len(texts), np.int32)  # codes follow the order of writing, which must have no effect
            index[[self._codes[text] for text in texts]] = np.arange(len(texts))
            for name in _TEXT_FIELDS:
                columns[name] = index[columns[name]]
            order = _order(columns)
            self._sorted = {name: column[order] for name, column in columns.items()}
        return self._sorted

    def unordered(self, names: Sequence[str], kind: str | None = None, label: str | None = None) -> list[Column]:
        """Return columns of the events of one kind and label, in any order; a long trace is not sorted for it."""
        self._pack()
        wanted = {"kind": kind, "label": label}
        codes = {name: self._codes.get(text, -1) for name, text in wanted.items() if text is not None}
        found: list[list[Column]] = [[np.empty(0, _TYPES[name])] for name in names]
        for part in self._packed:
            is_wanted = [part[name] == code for name, code in codes.items()]
            some = np.logical_and.reduce(is_wanted) if is_wanted else slice(None)
            for name, columns in zip(names, found, strict=True):
                columns.append(part[name][some])
        return [np.concatenate(columns) for columns in found]

    @property
    def digest(self) -> str:
        """SHA-256 of all fields of all events."""
        digest, columns = hashlib.sha256(), self.in_order()
        texts = self.vocabulary
        for name, column in columns.items():
            digest.update(name.encode())
            if name in _TEXT_FIELDS:
                occurs = np.bincount(column, minlength=len(texts)) > 0
                digest.update("\n".join(text for text, does in zip(texts, occurs, strict=True) if does).encode())
                column = (np.cumsum(occurs) - 1)[column]
            digest.update(column.tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the trace as compressed columns."""
        np.savez_compressed(path, allow_pickle=False, **self.columns())

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read a file of ``save`` without unpickling."""
        with np.load(path, allow_pickle=False) as stored:
            columns = [stored[name].tolist() for name in Event._fields]
        trace = cls()
        trace.rows = list(zip(*columns, strict=True))
        return trace

    def _pack(self) -> None:
        if self.rows:
            # Field by field: zip(*rows) would allocate an object per event and trigger garbage collections.
            parts: dict[str, Iterator[Any]] = {n: map(itemgetter(i), self.rows) for i, n in enumerate(_TYPES)}
            for name in _TEXT_FIELDS:
                texts = list(parts[name])
                for text in set(texts):
                    self._code(text)
                parts[name] = map(self._codes.__getitem__, texts)
            self._packed.append({n: np.fromiter(values, _TYPES[n], len(self.rows)) for n, values in parts.items()})
            self.rows.clear()
        if self._rounds:
            self._packed.append({name: np.concatenate([part[name] for part in self._rounds]) for name in _TYPES})
            self._rounds.clear()
        if self._runs_of_steps:
            self._packed.append(self._columns_of_steps())
            self._runs_of_steps.clear()

    def _columns_of_steps(self) -> dict[str, Column]:
        ranks, firsts, times_s = zip(*self._runs_of_steps, strict=True)
        lengths = np.array([len(times) for times in times_s])  # the number of steps + 1
        times = np.fromiter(chain.from_iterable(times_s), np.float64, lengths.sum())
        indices = np.arange(len(times)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # within its run of steps
        is_end = indices > 0
        columns = {name: np.zeros(is_end.sum(), kind) for name, kind in _TYPES.items()}
        columns["time_s"][:], columns["start_s"][:] = times[is_end], times[np.flatnonzero(is_end) - 1]
        columns["rank"][:] = np.repeat(ranks, lengths - 1)
        columns["step"][:] = (np.repeat(firsts, lengths) + indices - 1)[is_end]
        columns["kind"][:], columns["label"][:], columns["peer"][:] = self._code(COMPUTE), self._code(""), -2
        return columns

    def _code(self, text: str) -> int:
        return self._codes.setdefault(text, len(self._codes))


@lru_cache(maxsize=64)
def _zeros(kind: type[np.generic], count: int) -> Column:
    """Return a read-only column of zeros."""
    return np.broadcast_to(np.zeros((), kind), count)


def _order(columns: dict[str, Column]) -> Column:
    """Return the indices that sort the events by all fields: by time for the whole trace, then block by block."""
    order = np.argsort(columns["time_s"], kind="stable")
    times_s, begin = columns["time_s"][order], 0
    keys = [columns[name] for name in reversed(_TYPES) if len(order) and columns[name].min() != columns[name].max()]
    while begin < len(order) and keys:
        last = min(begin + _SORTED_AT_ONCE, len(order)) - 1
        end = int(np.searchsorted(times_s, times_s[last], "right"))  # equal times stay in one block
        some = order[begin:end]
        order[begin:end] = some[np.lexsort([key[some] for key in keys])]
        begin = end
    return order
