"""Read the progress of workers: from the files that a run in progress appends to, or from the trace of a saved run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from tacit.record.progress import FORMAT
from tacit.record.run import Run, has_rounds
from tacit.record.trace import CANCELLED, COMPUTE, EXCHANGE, HOOK, NOTE, SEND, WAIT

_SLICES: Final = 200
"""Slices of a saved run, per worker."""
_LARGEST: Final = 1 << 24
"""Bytes of a file that are read at once."""


class Slice(NamedTuple):
    """What one worker did in ``elapsed_s`` seconds of the run's clock, up to ``time_s``."""

    time_s: float
    elapsed_s: float
    step: int  # of the worker, at the end
    steps: int  # in this time
    compute_s: float
    hook_s: float
    sent_bytes: float
    wait_s: float | None = None  # for other workers; None: not known apart from the time on the wire
    updates: int | None = None  # of the server's model
    period: float | None = None
    training_loss: float | None = None


class Evaluation(NamedTuple):
    """A loss that was measured during the run."""

    time_s: float
    step: int
    loss: float


@dataclass
class WorkerProgress:
    """All that is known about one worker. ``at``: when it last wrote, in seconds since the epoch."""

    rank: int
    header: Mapping[str, Any] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    status: str | None = None  # of a run that has ended
    at: float = 0.0


class ProgressFile:
    """Reads one worker's file from where it ended the last time. Lines that it cannot read are left out."""

    def __init__(self, path: Path, rank: int) -> None:
        self._path, self._offset = path, 0
        self._begins = False  # whether a process has just begun
        self.worker = WorkerProgress(rank)

    def read(self) -> None:
        """Read what has been appended."""
        try:
            size = self._path.stat().st_size
            if size < self._offset:  # another run has replaced it
                self._offset, self.worker = 0, WorkerProgress(self.worker.rank)
            if size == self._offset:
                return
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_LARGEST)
        except OSError:
            return
        whole = data.rfind(b"\n") + 1  # the last line may be incomplete
        self._offset += whole
        for line in data[:whole].splitlines():
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
                continue

    def _take(self, line: Mapping[str, Any]) -> None:
        worker = self.worker
        if "format" in line:
            if line["format"] == FORMAT:
                worker.header, worker.status, self._begins = line, None, True
                worker.at = _number(line["began"])
            return
        worker.at = _number(line["at"])
        if "status" in line:
            worker.status = str(line["status"])
        elif "evaluation" in line:
            time_s, loss = _number(line["time_s"]), line["evaluation"].get("loss")
            self._cut(time_s)
            if loss is not None:
                worker.evaluations.append(Evaluation(time_s, int(line["step"]), _number(loss)))
        else:
            found = _slice(line)
            self._cut(found.time_s - found.elapsed_s)
            worker.slices.append(found)

    def _cut(self, begin_s: float) -> None:
        """Drop what an earlier process wrote about times after ``begin_s``, at which this one continues."""
        if self._begins:
            self._begins, until_s = False, begin_s + 1e-6
            worker = self.worker
            worker.slices = [one for one in worker.slices if one.time_s <= until_s]
            worker.evaluations = [one for one in worker.evaluations if one.time_s < until_s and begin_s > 0]


def _slice(line: Mapping[str, Any]) -> Slice:
    names = ("time_s", "elapsed_s", "compute_s", "hook_s", "sent_bytes")
    numbers: dict[str, Any] = {name: _number(line[name]) for name in names}
    numbers |= {name: _number(line[name]) for name in ("period", "training_loss") if line.get(name) is not None}
    numbers |= {name: int(line[name]) for name in ("step", "steps", "updates") if line.get(name) is not None}
    return Slice(**numbers)


def _number(value: object) -> float:
    found = float(value)  # type: ignore[arg-type]
    if not math.isfinite(found):
        raise ValueError(f"{value} is not finite")
    return found


# A saved run.


def progress_of(run: Run) -> list[WorkerProgress]:
    """Return the progress of a saved run, from its trace."""
    columns = run.trace.columns()
    header = {
        "workers": run.workers,
        "strategy": run.strategy,
        "steps": run.steps,
        "seed": run.seed,
        "has_rounds": has_rounds(columns),
        "predicted": run.predicted,
        **{name: run.record.get(name) for name in ("parameters", "parameter_bytes", "dtype")},
    }
    workers = [
        WorkerProgress(rank, header, list(_slices(columns, rank, run)), status=run.status)
        for rank in range(run.workers)
    ]
    if workers:
        workers[0].evaluations = [
            Evaluation(row["time_s"], row["step"], row["loss"]) for row in run.history if row["loss"] is not None
        ]
    return workers


def _slices(columns: Mapping[str, np.ndarray], rank: int, run: Run) -> Iterator[Slice]:
    kinds, ends_s, starts_s = columns["kind"], columns["time_s"], columns["start_s"]
    mine = columns["rank"] == rank
    ours = mine | (columns["rank"] < 0) if rank == 0 else mine  # the server's bytes count with rank 0
    computes = mine & ((kinds == COMPUTE) | (kinds == CANCELLED))
    end_s, count = float(ends_s[ours].max(initial=0.0)), int(computes.sum())
    if not count or end_s <= 0:
        return
    edges = np.linspace(0.0, end_s, 1 + min(_SLICES, count))
    edges[-1] = np.nextafter(end_s, np.inf)

    def total(chosen: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return np.histogram(ends_s[chosen], edges, weights=weights[chosen])[0]

    def seconds(chosen: np.ndarray) -> np.ndarray:
        """Return the seconds of each slice that the chosen events cover; an event may cover several slices."""
        covered_s = _since(starts_s[chosen], edges) - _since(ends_s[chosen], edges)
        return np.asarray(np.maximum(0.0, np.diff(covered_s)))

    steps = np.histogram(ends_s[computes], edges)[0]
    parts = [
        seconds(computes),
        seconds(mine & (kinds == HOOK)),
        total(ours & ((kinds == SEND) | (kinds == EXCHANGE)), columns["size_bytes"]),
        seconds(mine & (kinds == WAIT)),
    ]
    period = _latest(columns, mine & (kinds == NOTE) & (columns["label"] == "period"), edges)
    updates = _counted(columns, edges) if rank == 0 else None
    done = np.cumsum(steps)
    for i in range(len(steps)):
        compute_s, hook_s, sent, wait_s = (float(part[i]) for part in parts)
        yield Slice(
            float(edges[i + 1]),
            float(edges[i + 1] - edges[i]),
            int(done[i]),
            int(steps[i]),
            compute_s,
            hook_s,
            sent,
            wait_s,
            None if updates is None else int(updates[i]),
            period[i],
        )


def _since(moments_s: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return, for each edge, the sum over the earlier moments of the seconds from the moment to the edge."""
    in_order = np.sort(moments_s)
    sums = np.concatenate([[0.0], np.cumsum(in_order)])
    earlier = np.searchsorted(in_order, edges)
    return np.asarray(earlier * edges - sums[earlier])


def _latest(columns: Mapping[str, np.ndarray], chosen: np.ndarray, edges: np.ndarray) -> Sequence[float | None]:
    """Return the last noted value before the end of each slice."""
    places = np.searchsorted(columns["time_s"][chosen], edges[1:], "right")
    values = columns["value"][chosen]
    return [float(values[place - 1]) if place else None for place in places]


def _counted(columns: Mapping[str, np.ndarray], edges: np.ndarray) -> np.ndarray | None:
    """Return the server's updates before the end of each slice; None without a server."""
    chosen = (columns["kind"] == NOTE) & (columns["label"] == "update")
    return np.searchsorted(columns["time_s"][chosen], edges[1:], "right") if chosen.any() else None
