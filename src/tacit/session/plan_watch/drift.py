"""The drift rule: does a run take the times that its plan predicts, and if not, who or what is different?

Times of rounds are taken in windows of five. A median that is off by more than 25 % in two windows in a row is a drift:

    network   seconds of a round after the last rank has arrived
    compute   seconds of a step of one rank

The plan's prediction is a range, because medians of five rounds with random step times differ: the 25 % count from its
ends. What changes the time between two rounds by less than 10 % is no drift, such as a rank that is still faster than
the slowest one. If something that costs more time is off in the second of the two windows only, the drift waits for one
more window, so that its main cause is named. After a drift the next one is told a minute later at the earliest, if it
lasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, NamedTuple

WINDOW: Final = 5
TOLERANCE: Final = 0.25
_IN_A_ROW: Final = 2
_LEAST: Final = 0.1
"""The least effect on the time between two rounds, as a share of the planned one."""
_SKIPPED: Final = 2
"""First rounds that do not count: connections are opened, and memory is allocated."""
_PAUSE_S: Final = 60.0
NETWORK: Final = "network"
COMPUTE: Final = "compute"


class RoundTimes(NamedTuple):
    """The times of all ranks between two rounds."""

    steps: int
    elapsed_s: float
    compute_s: tuple[float, ...]  # by rank
    hook_s: tuple[float, ...]

    @property
    def wire_s(self) -> float:
        """Seconds in which the slowest rank neither computed nor worked in hooks."""
        busy_s = max(map(sum, zip(self.compute_s, self.hook_s, strict=True)))
        return max(0.0, self.elapsed_s - busy_s)


class Range(NamedTuple):
    """A predicted number: the median, and the range of medians of five rounds."""

    low: float
    median: float
    high: float

    @classmethod
    def around(cls, value: float) -> Range:
        """Return the range of a number that is exactly known."""
        return cls(value, value, value)


@dataclass(frozen=True)
class Expected:
    """The times that a plan predicts for rounds."""

    round_s: float  # from round to round
    wire_s: Range  # of a round
    compute_s: tuple[Range, ...]  # of a step, by rank

    @classmethod
    def of(cls, predicted: Mapping[str, Any]) -> Expected | None:
        """Return the times in the prediction of a plan; None if it has none, as of strategies without rounds."""
        rounds = predicted.get("rounds")
        if not rounds:
            return None
        return cls(rounds["round_s"], Range(*rounds["wire_s"]), tuple(Range(*one) for one in rounds["compute_s"]))


@dataclass(frozen=True)
class Drift:
    """A lasting difference between a run and its plan.

    cause: "network" or "compute". rank: of the worker that computes differently. planned_s, measured_s: of a round on
    the wire, or of a step. was_as_planned: whether earlier rounds took the planned time, so that something has changed
    during the run. compute_s: of a step in the same rounds, by rank. wire_s: of a round.
    """

    cause: str
    rank: int | None
    planned_s: float
    measured_s: float
    was_as_planned: bool
    compute_s: tuple[float, ...]
    wire_s: float

    @property
    def is_over(self) -> bool:
        """Whether the measured time is the planned one again."""
        return abs(self.measured_s - self.planned_s) <= TOLERANCE * self.planned_s


Place = tuple[str, int | None]
"""What is watched: a cause, and the rank if it is "compute"."""


class DriftRule:
    """Compares the times of rounds with a plan. Deterministic: equal times give equal drifts.

    pause_s: least time between two drifts.
    """

    def __init__(self, expected: Expected, *, pause_s: float = _PAUSE_S) -> None:
        self._expected, self._window, self._pause_s = expected, list[RoundTimes](), pause_s
        self._since_last_s = pause_s  # time since the last drift
        self._planned: dict[Place, Range] = {(NETWORK, None): expected.wire_s}
        self._planned |= {(COMPUTE, rank): one for rank, one in enumerate(expected.compute_s)}
        self._reference = dict(self._planned)  # after a drift: what was measured then
        self._off: dict[Place, list[bool]] = {place: [] for place in self._planned}  # above the range, window by window
        self._was_as_planned: set[Place] = set()
        self._left_out = 0

    def add(self, times: RoundTimes) -> Drift | None:
        """Add a round; return the drift that it completes, the one that costs most time if there are several."""
        if len(times.compute_s) != len(self._expected.compute_s) or not times.steps:
            return None  # another number of workers than planned, or a round without a step
        self._since_last_s += times.elapsed_s
        if self._left_out < _SKIPPED:
            self._left_out += 1
            return None
        self._window.append(times)
        if len(self._window) < WINDOW:
            return None
        window, self._window = self._window, []
        measured = dict(self._medians(window))
        drifted = [place for place in self._planned if self._has_drifted(place, measured)]
        if not drifted or self._since_last_s < self._pause_s:
            return None
        place = max(self._off, key=lambda one: abs(self._cost_s(one, measured[one], window)) if self._off[one] else 0.0)
        if place not in drifted:  # what costs most is off for the first time: the next window tells whether it lasts
            return None
        self._since_last_s = 0.0
        for one in drifted:
            self._reference[one], self._off[one] = Range.around(measured[one]), []
        return Drift(
            cause=place[0],
            rank=place[1],
            planned_s=self._planned[place].median,
            measured_s=measured[place],
            was_as_planned=place in self._was_as_planned,
            compute_s=tuple(measured[COMPUTE, rank] for rank in range(len(self._expected.compute_s))),
            wire_s=measured[NETWORK, None],
        )

    def _medians(self, window: list[RoundTimes]) -> Iterator[tuple[Place, float]]:
        yield (NETWORK, None), median(one.wire_s for one in window)
        for rank in range(len(self._expected.compute_s)):
            yield (COMPUTE, rank), median(one.compute_s[rank] / one.steps for one in window)

    def _has_drifted(self, place: Place, medians: Mapping[Place, float]) -> bool:
        """Count one window; return whether it is the second in a row that is off in the same direction."""
        low, _, high = self._reference[place]
        measured, matters = medians[place], self._effect_s(place, medians) > _LEAST * self._expected.round_s
        above, below = measured > (1 + TOLERANCE) * high, measured < (1 - TOLERANCE) * low
        if not (matters and (above or below)):
            self._off[place] = []
            if self._reference[place] == self._planned[place]:
                self._was_as_planned.add(place)
            return False
        row = self._off[place]
        if row and row[-1] != above:
            row.clear()
        row.append(above)
        return len(row) >= _IN_A_ROW

    def _effect_s(self, place: Place, medians: Mapping[Place, float]) -> float:
        """Return the seconds per round by which a time changes the pace: of computing, that of the slowest rank."""
        if place[0] == NETWORK:
            low, _, high = self._reference[place]
            return max(medians[place] - high, low - medians[place])
        ranks = [(COMPUTE, rank) for rank in range(len(self._expected.compute_s))]
        low, high = (max(self._reference[one][end] for one in ranks) for end in (0, 2))
        slowest_s = max(medians[one] for one in ranks)
        return max(slowest_s - high, low - slowest_s) * self._steps

    @property
    def _steps(self) -> float:
        """Planned steps between two rounds, at the pace of the slowest rank."""
        slowest_s = max(one.median for one in self._expected.compute_s)
        return max(1.0, (self._expected.round_s - self._expected.wire_s.median) / slowest_s) if slowest_s else 1.0

    def _cost_s(self, place: Place, measured: float, window: list[RoundTimes]) -> float:
        """Return the seconds per round by which a time differs from the planned one."""
        steps = 1.0 if place[0] == NETWORK else median(one.steps for one in window)
        return (measured - self._planned[place].median) * steps
