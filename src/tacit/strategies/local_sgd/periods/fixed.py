"""Periods that are known before the run.

Every(τ)             τ_i = τ                     LUPA-SGD (Haddadpour et al., arXiv 1910.13598); CPSGD, the constant
                                                 baseline of ADPSGD (Jiang & Agrawal, arXiv 2007.06134)
OneShot()            one round, at the end       one-shot averaging
PeriodList([…])      τ_i = periods[i]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.errors import require
from tacit.strategies.local_sgd.periods.period import (
    UNTIL_THE_END,
    Period,
    PeriodState,
    Round,
    require_at_least_one,
)


@dataclass(frozen=True)
class Every(Period):
    """The same number of steps every time: LUPA-SGD (Haddadpour et al., arXiv 1910.13598) and CPSGD."""

    n: int  # τ

    def __post_init__(self) -> None:
        require_at_least_one("period", self.n)

    def init(self, steps: int | None) -> PeriodState:
        return PeriodState(self.n)


@dataclass(frozen=True)
class OneShot(Period):
    """No round during the run: average once, at the end."""

    def init(self, steps: int | None) -> PeriodState:
        return PeriodState(UNTIL_THE_END)


@dataclass(frozen=True)
class PeriodList(Period):
    """An explicit list of periods; the last one repeats."""

    periods: Sequence[int]

    def __post_init__(self) -> None:
        require(len(self.periods) > 0, f"periods={self.periods!r} is empty; name at least one period.")
        for period in self.periods:
            require_at_least_one("period", period)

    def init(self, steps: int | None) -> PeriodState:
        return PeriodState(self.periods[0])

    def update(self, state: PeriodState, reduced: Round) -> None:
        state.period = self.periods[min(reduced.index + 1, len(self.periods) - 1)]
