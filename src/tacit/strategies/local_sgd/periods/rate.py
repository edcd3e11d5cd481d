"""Periods that grow as the learning rate falls: STL-SGD and QSR.

    H = max(H₀, ⌊H₀ (η₀ / η)^p⌋), at most ``maximum``         η: the rate of the last step;  η₀: the largest rate so far

    p = 1      STL-SGD for shuffled data: twice the period for half the rate (Shen et al., AAAI 2021, arXiv 2006.06377)
    p = 1/2    STL-SGD for workers with different data: √2 times the period for half the rate
    p = 2      QSR, H = max(H_base, ⌊(α / η)²⌋) with H_base = H₀ and α = η₀ √H₀ (Gu et al., ICLR 2024, arXiv 2310.14423)

Between two rounds models diverge by about η H, so a lower rate allows a longer period. Neither paper has a ``maximum``.
QSR keeps the period of the peak rate during a warm-up of the rate (from memory). So does η₀, the largest rate so far.
STL-SGD changes rate and period in stages; here the period follows any schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Final

from tacit.core.specs import ALWAYS_SPELLED
from tacit.errors import require
from tacit.strategies.local_sgd.periods.period import Period, PeriodState, Round, require_at_least_one

_ROUNDING: Final = 1e-6
"""Relative error of a rate that travelled in float32; without it ⌊40⌋ may come out as 39."""


@dataclass(frozen=True, kw_only=True)
class RatePeriod(Period):
    """STL-SGD (power 1, arXiv 2006.06377) and QSR (power 2, arXiv 2310.14423): longer periods for lower learning rates.

    H = max(H₀, ⌊H₀(η₀/η)^power⌋), at most ``maximum``. η is the learning rate of the last step before a round, averaged
    over ranks. η₀ is the largest η of all rounds so far: while the rate rises, the period is ``initial``. A rate of 0
    after a positive one gives ``maximum``. A rate that is not finite leaves the period as it is.
    """

    initial: int = field(default=4, metadata=ALWAYS_SPELLED)  # H₀
    power: float = field(default=1, metadata=ALWAYS_SPELLED)  # p; larger = longer periods at low rates
    maximum: int = 64

    needs_rate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_at_least_one("initial", self.initial)
        require_at_least_one("maximum", self.maximum)
        way_out = f"for a constant period use Every({self.initial})."
        require(0 < self.power < math.inf, f"power={self.power} must be positive and finite; {way_out}")
        too_small = f"maximum={self.maximum} must be at least initial={self.initial}; {way_out}"
        require(self.maximum >= self.initial, too_small)

    def init(self, steps: int | None) -> PeriodState:
        return PeriodState(self.initial, {"largest_rate": 0.0})

    def update(self, state: PeriodState, reduced: Round) -> None:
        rate = reduced.learning_rate  # η
        if not math.isfinite(rate):
            return
        largest = state.memory["largest_rate"] = max(state.memory["largest_rate"], rate)  # η₀
        if rate <= 0:
            state.period = self.maximum if largest > 0 else self.initial
            return
        growth = self.power * (math.log(largest) - math.log(rate))  # log (η₀/η)^p, which cannot overflow
        if growth >= math.log(self.maximum / self.initial):
            state.period = self.maximum
        else:
            state.period = int(self.initial * math.exp(growth) * (1 + _ROUNDING))
