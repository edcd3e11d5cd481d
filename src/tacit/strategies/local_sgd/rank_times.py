"""Times that every rank sends with a round, for period rules that read time: their extremes over ranks come back.

    round_s    seconds that the rank spent in its previous round      the smallest of all ranks
    step_s     its seconds per step since then                        the largest of all ranks

A mean over ranks holds neither the smallest nor the largest value. So an all-reduce has three places for each rank,
which holds 1 and its two times; all other ranks add 0 there. The mean of a place divided by that of its 1 is the rank's
value, whatever its weight. A rank without times, or with weight 0, has zeros in its places and does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

WIDTH: Final = 3
"""Numbers of one rank: 1 where it has times, and the times."""

_ABSENT: Final = (0.0,) * WIDTH


class RankTimes(NamedTuple):
    """The times of one rank, or their extremes over ranks; None: not known."""

    round_s: float | None = None
    step_s: float | None = None


@dataclass
class RoundClock:
    """When this rank's latest round began, and how long the rank has been in it. Checkpoints store it."""

    began_s: float | None = None
    began_step: int = 0
    spent_s: float = 0.0

    def begin(self, now_s: float, step: int) -> RankTimes:
        """Begin a round; return the times since the previous one began."""
        steps, began_s = step - self.began_step, self.began_s
        self.began_s, self.began_step = now_s, step
        if began_s is None or steps < 1:
            return RankTimes()
        computed_s = now_s - began_s - self.spent_s
        # A resumed simulation starts at time 0: what a checkpoint says about the clock is then void.
        return RankTimes(self.spent_s, computed_s / steps) if computed_s >= 0 else RankTimes()


def row_of(times: RankTimes) -> Sequence[float]:
    """Return the numbers of a rank with these times."""
    round_s, step_s = times
    return _ABSENT if round_s is None or step_s is None else (1.0, round_s, step_s)


def placed(times: RankTimes, rank: int, size: int) -> list[float]:
    """Return the numbers that ``rank`` adds to an all-reduce of ``size`` ranks."""
    numbers = [0.0] * (WIDTH * size)
    numbers[WIDTH * rank : WIDTH * (rank + 1)] = row_of(times)
    return numbers


def rows_in(means: Sequence[float]) -> Iterable[Sequence[float]]:
    """Return the numbers of each rank, as the means of an all-reduce hold them."""
    return (means[at : at + WIDTH] for at in range(0, len(means), WIDTH))


def extremes(rows: Iterable[Sequence[float]]) -> RankTimes:
    """Return the smallest ``round_s`` and the largest ``step_s`` of the ranks that have times."""
    known = [(round_s / share, step_s / share) for share, round_s, step_s in rows if share > 0]
    if not known:
        return RankTimes()
    return RankTimes(min(round_s for round_s, _ in known), max(step_s for _, step_s in known))
