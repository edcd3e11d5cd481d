"""Progress of a run while it goes on: one file per worker, to which lines of JSON are appended.

``progress/rank-N.jsonl`` in the folder of the run has three kinds of lines:

    header      a process begins: format, rank, workers, strategy, steps, sizes; of rank 0 also what a plan predicts
    slice       what the worker did since the line before: steps, seconds of computing and of hooks, bytes sent
    evaluation  numbers that the user or the loop has measured
    status      the run has ended: finished, interrupted, failed

Files are only appended to. After ``resume`` a second header follows: lines of later times than the checkpoint are void.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tacit.record.run import number

FORMAT: Final = 1
FOLDER: Final = "progress"
_FASTEST_S: Final = 0.5
_SLOWEST_S: Final = 10.0
"""Shortest and longest time between two lines."""
_SHARE: Final = 1e-3
"""The time between two lines, as a share of the time of the run so far."""
_log: Final = logging.getLogger("tacit")


class Totals(NamedTuple):
    """What a worker has done since its process began."""

    steps: int
    compute_s: float
    hook_s: float
    sent_bytes: int


NOTHING: Final = Totals(0, 0.0, 0.0, 0)


def progress_file(folder: Path, rank: int) -> Path:
    """Return the path of a worker's progress in the folder of a run."""
    return folder / FOLDER / f"rank-{rank}.jsonl"


def interval_s(time_s: float) -> float:
    """Return the seconds between two lines of a run that has taken ``time_s`` so far."""
    return min(_SLOWEST_S, max(_FASTEST_S, _SHARE * time_s))


class ProgressWriter:
    """Appends one worker's progress: a line every half second, in long runs every ten.

    Rank 0 creates the folder at once. A worker that does not see it, on another machine, writes nothing. An error of
    the disk during the run ends the file, not the run.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any], totals: Callable[[], Totals]) -> None:
        self._header = {"format": FORMAT, "began": time.time(), **header}
        self._path, self._totals = progress_file(folder, int(header["rank"])), totals
        self._before, self._before_s = NOTHING, 0.0
        self._loss_sum, self._losses = 0.0, 0
        self._due = 0.0  # on the clock of the machine, which goes on during evaluations
        self._has_begun = self._has_ended = False
        if header["rank"] == 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._begin()

    def continue_from(self, time_s: float) -> None:
        """Take note that the run continues from a checkpoint at ``time_s``."""
        self._before, self._before_s, self._due = self._totals(), time_s, 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time for ``add``."""
        return time.monotonic() >= self._due

    def observe(self, loss: float | None) -> None:
        """Add a mean training loss."""
        if loss is not None:
            self._loss_sum, self._losses = self._loss_sum + loss, self._losses + 1

    def add(self, step: int, time_s: float, *, updates: int | None = None, period: float | None = None) -> None:
        """Write what happened up to ``time_s``. updates: of the server's model."""
        now, before = self._totals(), self._before
        line: dict[str, Any] = {"at": time.time(), "step": step, "time_s": time_s, "elapsed_s": time_s - self._before_s}
        line |= {name: after - was for name, after, was in zip(Totals._fields, now, before, strict=True)}
        if updates is not None:
            line["updates"] = updates
        if period is not None:
            line["period"] = number(period)
        if self._losses:
            line["training_loss"] = number(self._loss_sum / self._losses)
        self._loss_sum, self._losses = 0.0, 0
        self._before, self._before_s = now, time_s
        self._due = time.monotonic() + interval_s(time_s)
        self._write(line)

    def evaluated(self, step: int, time_s: float, measured: Mapping[str, float | None]) -> None:
        """Write an evaluation."""
        numbers = {name: number(value) for name, value in measured.items()}
        self._write({"at": time.time(), "step": step, "time_s": time_s, "evaluation": numbers})

    def end(self, status: str) -> None:
        """Write how the run ended."""
        self._write({"at": time.time(), "status": status})

    def _begin(self) -> None:
        """Write the header. Other ranks do so at the end of a step: rank 0 has created the folder by then."""
        self._has_begun, self._has_ended = True, not self._path.parent.is_dir()
        self._write(self._header)

    def _write(self, line: Mapping[str, Any]) -> None:
        """Append a line. The file is closed again, so that a network file system shows it to others."""
        if not self._has_begun:
            self._begin()
        if self._has_ended:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
        except OSError as error:
            self._has_ended = True
            _log.warning("no more progress is written to %s: %s.", self._path, error.strerror or error)
