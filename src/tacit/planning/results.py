"""Results of the simulations of a plan, and intervals over seeds and draws of delays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, Final

from tacit.planning.pace import Pace
from tacit.record.run import Run

_MOST_POINTS: Final = 64
"""Points of a loss curve that a trial keeps."""
_SPREAD: Final = 0.05
"""Standard deviation of the logarithm of times over seeds before any is known: those of two seeds differ by 3 to 8 % in
the median (planning study)."""
_SPREAD_COUNTS: Final = 2
"""``_SPREAD`` counts as much as this many degrees of freedom."""
_T_95: Final = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81)
"""Quantiles of Student's t for 1, 2, … degrees of freedom: 9 of 10 values lie within them on both sides."""


@dataclass(frozen=True)
class Interval:
    """A predicted number: the median of all draws, and the range in which the real one is expected.

    widened: the factor by which ``low`` and ``high`` lie outside the range of all draws, for errors of the prediction.
    for_seeds: another such factor, for seeds that were not simulated.
    mean, seeds: of all draws, and the number of seeds among them. Of few values the mean is closer to that of all seeds
    than the median.
    """

    median: float
    low: float
    high: float
    widened: float = 1.0
    for_seeds: float = 1.0
    mean: float | None = None
    seeds: int = 1

    @classmethod
    def of(cls, values: Iterable[float], widened: float = 1.0, for_seeds: float = 1.0, seeds: int = 1) -> Interval:
        """Return the range of ``values``, widened by both factors on both sides."""
        found, factor = sorted(values), widened * for_seeds
        low, high = found[0] / factor, found[-1] * factor
        return cls(median(found), low, high, widened, for_seeds, fmean(found), seeds)

    @property
    def centre(self) -> float:
        """The number by which rows are compared: the mean where it is known."""
        return self.median if self.mean is None else self.mean

    @property
    def rank(self) -> tuple[int, float]:
        """Sorts numbers of one row, such as those of several learning rates: of those with most seeds, the smallest."""
        return -self.seeds, self.centre

    def overlaps(self, other: Interval) -> bool:
        """Whether the two ranges have numbers in common, for the seeds that were simulated for both."""
        (low, high), (their_low, their_high) = self._of_known_seeds, other._of_known_seeds
        return low <= their_high and their_low <= high

    def scaled(self, ratio: float) -> Interval:
        """Return the range of ``ratio`` times the number."""
        mean = None if self.mean is None else self.mean * ratio
        return replace(self, median=self.median * ratio, low=self.low * ratio, high=self.high * ratio, mean=mean)

    @property
    def _of_known_seeds(self) -> tuple[float, float]:
        return self.low * self.for_seeds, self.high / self.for_seeds


def factor_for_seeds(values: Sequence[float]) -> float:
    """Return the factor by which the range of ``values``, one for each seed, is widened for nine of ten other seeds.

    It is the prediction interval of one more value of a normal distribution of the logarithm, whose variance is that of
    the values and of ``_SPREAD``.
    """
    if min(values) <= 0:
        return 1.0
    logs = [math.log(value) for value in values]
    freedom, mean = _SPREAD_COUNTS + len(logs) - 1, fmean(logs)
    variance = (_SPREAD_COUNTS * _SPREAD**2 + sum((one - mean) ** 2 for one in logs)) / freedom
    reach = _T_95[min(freedom, len(_T_95)) - 1] * math.sqrt(variance * (1 + 1 / len(logs)))
    return math.exp(max(0.0, reach - (max(logs) - min(logs)) / 2))


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
