"""A period that doubles."""

from __future__ import annotations

from dataclasses import dataclass

import tacit
from tacit import PeriodState, Round


@dataclass(frozen=True, kw_only=True)
class Doubling(tacit.Period):
    """Double the period after every round, up to ``longest`` steps."""

    first: int = 1
    longest: int = 32

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.longest:
            raise ValueError(f"first={self.first} must be at least 1 and at most longest={self.longest}.")

    def init(self, steps: int | None) -> PeriodState:
        return PeriodState(self.first)

    def update(self, state: PeriodState, reduced: Round) -> None:
        state.period = min(2 * state.period, self.longest)
