"""Results of the simulations of a plan, and intervals over seeds and draws of delays."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from tacit.planning.pace import Pace
from tacit.record.run import Run

_MOST_POINTS: Final = 64
"""Points of a loss curve that a trial keeps."""


@dataclass(frozen=True)
class Interval:
    """A predicted number: the median of all draws, and the range in which the real one is expected.

    widened: the factor by which ``low`` and ``high`` lie outside the range of all draws.
    """

    median: float
    low: float
    high: float
    widened: float = 1.0

    @classmethod
    def of(cls, values: Iterable[float], widened: float = 1.0) -> Interval:
        """Return the range of ``values``, widened by a factor on both sides."""
        found = sorted(values)
        return cls(median(found), found[0] / widened, found[-1] * widened, widened)

    def overlaps(self, other: Interval) -> bool:
        """Whether the two ranges have numbers in common."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Trial:
    """One simulated training: at which step it reached the target, or the best loss that it reached instead.

    lr: None for a script, which chooses its own. time_s: where time was simulated together with the gradients.
    bytes_sent: likewise. curve: steps, times (None if they were not simulated) and losses up to the target, thinned.
    """

    lr: float | None
    seed: int
    steps: int | None
    best_loss: float
    time_s: float | None = None
    bytes_sent: float | None = None
    status: str = "finished"
    curve: tuple[tuple[int, float | None, float], ...] = ()

    @classmethod
    def of(cls, run: Run, lr: float | None, target_loss: float | None) -> Trial:
        """Return the trial that ``run`` is; without a target its last row counts as reached."""
        rows = [row for row in run.history if row["loss"] is not None]
        best = min((row["loss"] for row in rows), default=math.inf)
        if target_loss is not None:
            reached = next((row for row in rows if row["loss"] <= target_loss), None)
        else:
            reached = rows[-1] if rows and run.status == "finished" else None
        is_timed = bool(rows) and math.isfinite(rows[-1]["time_s"])  # curves without a network have no times
        return cls(
            lr=lr,
            seed=run.seed,
            steps=None if reached is None else reached["step"],
            best_loss=best if target_loss is not None or reached is None else reached["loss"],
            time_s=reached["time_s"] if reached is not None and is_timed else None,
            bytes_sent=reached["bytes_sent"] if reached is not None and is_timed else None,
            status=run.status,
            curve=_thinned(rows if reached is None else rows[: rows.index(reached) + 1], is_timed=is_timed),
        )

    def times_s(self, paces: Iterable[Pace]) -> list[float]:
        """Return the time to the target for each draw of delays; none if the target was not reached."""
        if self.steps is None:
            return []
        return [self.time_s] if self.time_s is not None else [one.seconds(self.steps) for one in paces]


def _thinned(rows: list[dict[str, Any]], *, is_timed: bool) -> tuple[tuple[int, float | None, float], ...]:
    """Return some rows of a history, the first and the last among them."""
    every = max(1, math.ceil(len(rows) / _MOST_POINTS))
    chosen = [row for place, row in enumerate(reversed(rows)) if place % every == 0 or place == len(rows) - 1]
    return tuple((row["step"], row["time_s"] if is_timed else None, row["loss"]) for row in reversed(chosen))
