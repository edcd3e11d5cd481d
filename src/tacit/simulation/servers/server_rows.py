"""Buffered events of a run of a server without fibers, written to the trace as whole columns."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tacit.core.network import SERVER
from tacit.record.trace import CANCELLED, COMPUTE, NOTE, RECEIVE, SEND, WAIT, Column, Trace
from tacit.strategies.servers.messages import ServedModel, ServerPush, ServerRestart, ToServer

_BUFFERED: Final = 50_000  # pushes or models that are buffered before all events are written to the trace


class MessageSizes(NamedTuple):
    """Packed sizes of the messages of a run."""

    push_bytes: int
    model_bytes: int
    restart_bytes: int


class Groups:
    """Events of one kind, many of which happen at the same time: times, learners at each time, learners."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.counts: list[int] = []
        self.ranks: list[int] = []

    def add(self, now_s: float, ranks: list[int]) -> None:
        """Add one event for each of ``ranks``."""
        self.times_s.append(now_s)
        self.counts.append(len(ranks))
        self.ranks += ranks

    def add_one(self, now_s: float, rank: int) -> None:
        """Add one event."""
        self.times_s.append(now_s)
        self.counts.append(1)
        self.ranks.append(rank)

    def columns(self) -> tuple[Column, Column]:
        """Return time and learner of each event."""
        return np.repeat(np.array(self.times_s), self.counts), np.array(self.ranks, np.int32)


class ServerRows:
    """The events of a run that are not yet written."""

    def __init__(self, trace: Trace, sizes: MessageSizes, k: int) -> None:
        self._trace, self._sizes, self._k = trace, sizes, k
        self._written = 0  # updates
        self._clear()

    def _clear(self) -> None:
        self.steps: list[float] = []  # learner, start, end, number; of a step that is not cancelled
        self.pushes: list[float] = []  # learner, time
        self.arrived: list[float] = []  # learner, time; of a push
        self.idle: list[float] = []  # start and end of a time in which the server waited
        self.updates_s: list[float] = []
        self.used: list[int] = []  # learner and staleness of each gradient of an update
        self.late: list[float] = []  # learner, time; of a push that came too late
        self.sent = Groups(), Groups()  # models, restarts
        self.received = Groups(), Groups()
        self.waiting_s: list[float] = []  # since when the learner has waited for a model, as in ``received``
        self.cancelled = Groups()
        self.cancelled_started_s: list[float] = []
        self.cancelled_steps: list[int] = []

    def add_update(self, now_s: float, version: int, batch: list[tuple[int, int, int]]) -> None:
        """Add an update of the model of ``version``; write the events if many.

        batch: learner, version and step of each gradient.
        """
        if len(self.sent[0].ranks) + len(self.sent[1].ranks) > _BUFFERED or len(self.pushes) > 2 * _BUFFERED:
            self.write()
        self.updates_s.append(now_s)
        for rank, computed_at, _ in batch:
            self.used += (rank, version - computed_at)

    def write(self) -> None:
        """Write the buffered events to the trace."""
        record, sizes = self._trace.record_many, self._sizes
        ranks, starts_s, ends_s, numbers = _fields(self.steps, 4)
        record(COMPUTE, ranks, ends_s, starts_s, step=numbers)
        ranks, times_s = _fields(self.pushes, 2)
        record(SEND, ranks, times_s, times_s, peer=SERVER, size_bytes=sizes.push_bytes, label=ServerPush.kind)
        ranks, times_s = _fields(self.arrived, 2)
        record(RECEIVE, SERVER, times_s, times_s, peer=ranks, size_bytes=sizes.push_bytes, label=ServerPush.kind)
        starts_s, ends_s = _fields(self.idle, 2)
        record(WAIT, SERVER, ends_s, starts_s, label=ToServer.kind)
        ranks, times_s = _fields(self.late, 2)
        record(NOTE, SERVER, times_s, times_s, peer=ranks, value=1.0, label="late")
        self._write_updates()
        self._write_models()
        self._clear()

    def _write_updates(self) -> None:
        times_s, record = np.array(self.updates_s), self._trace.record_many
        numbers = np.arange(len(times_s)) + 1.0 + self._written
        record(NOTE, SERVER, times_s, times_s, value=numbers, label="update")
        ranks, staleness = _fields(self.used, 2)
        times_s = np.repeat(times_s, self._k)
        record(NOTE, SERVER, times_s, times_s, peer=ranks, value=staleness, label="staleness")
        self._written += len(numbers)

    def _write_models(self) -> None:
        record, sizes = self._trace.record_many, (self._sizes.model_bytes, self._sizes.restart_bytes)
        for sent, received, size_bytes, kind in zip(
            self.sent, self.received, sizes, (ServedModel.kind, ServerRestart.kind), strict=True
        ):
            times_s, ranks = sent.columns()
            record(SEND, SERVER, times_s, times_s, peer=ranks, size_bytes=size_bytes, label=kind)
            times_s, ranks = received.columns()
            record(RECEIVE, ranks, times_s, times_s, peer=SERVER, size_bytes=size_bytes, label=kind)
        times_s, ranks = self.received[0].columns()
        record(WAIT, ranks, times_s, np.array(self.waiting_s), label=ServedModel.kind)
        times_s, ranks = self.cancelled.columns()
        record(CANCELLED, ranks, times_s, np.array(self.cancelled_started_s), step=np.array(self.cancelled_steps))


def _fields(flat: list[float] | list[int], count: int) -> list[Column]:
    """Return the columns of events that a list holds one after the other, ``count`` numbers each."""
    return list(np.array(flat, np.float64).reshape(-1, count).T)
