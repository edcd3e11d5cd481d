"""ADA-LUPA: periods that grow during the run (Haddadpour et al., NeurIPS 2019, arXiv 1910.13598).

    LinearPeriod    τ_i = τ₀ (1 + α i),  α = 2/(E+1) · T/(E τ₀)                 E rounds in T steps, i = 0 … E−1
    LossPeriod      τ_i = ⌈((F(x̄₀) − f*) / (F(x̄_i) − f*))^{1/3}⌉ τ₀             the paper's poster has f* = 0

The experiments of the paper (§5) use the linear form. Late rounds matter less, because the steps are smaller then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from tacit.core.specs import ALWAYS_SPELLED
from tacit.strategies.local_sgd.periods.loss_ratio import loss_ratio, without_rounding
from tacit.strategies.local_sgd.periods.period import (
    UNTIL_THE_END,
    Period,
    PeriodState,
    Round,
    require_at_least_one,
)


@dataclass(frozen=True, kw_only=True)
class LinearPeriod(Period):
    """ADA-LUPA's linear schedule: τ_i = τ₀(1 + α i), α = 2/(E+1) · T/(E τ₀), for E rounds in T steps.

    Periods are truncated to whole numbers. Round number E takes what is left of T. Source: arXiv 1910.13598, §5.
    """

    initial: int = field(default=8, metadata=ALWAYS_SPELLED)  # τ₀
    rounds: int = field(default=10, metadata=ALWAYS_SPELLED)  # E, the number of rounds in the run

    def __post_init__(self) -> None:
        require_at_least_one("initial", self.initial)
        require_at_least_one("rounds", self.rounds)

    def schedule(self, steps: int) -> list[float]:
        """Return τ_0 … τ_{E−1} before truncation, as §5 of the paper prints them."""
        growth = 2 / (self.rounds + 1) * steps / (self.rounds * self.initial)  # α
        return [self.initial * (1 + growth * i) for i in range(self.rounds)]

    def init(self, steps: int | None) -> PeriodState:
        if steps is None:
            raise ValueError("steps=None: LinearPeriod needs the number of steps; pass steps=… when the run starts.")
        return PeriodState(self._period(0, steps), {"steps": steps})

    def update(self, state: PeriodState, reduced: Round) -> None:
        state.period = self._period(reduced.index + 1, int(state.memory["steps"]))

    def _period(self, index: int, steps: int) -> int:
        return int(self.schedule(steps)[index]) if index < self.rounds - 1 else UNTIL_THE_END


@dataclass(frozen=True, kw_only=True)
class LossPeriod(Period):
    """ADA-LUPA's loss rule: τ_i = ⌈((F(x̄₀) − f*) / (F(x̄_i) − f*))^{1/3}⌉ τ₀ (arXiv 1910.13598).

    F(x̄) is estimated from the mini-batch losses of the first step after an averaging: each rank's loss on its own
    data, taken at the averaged model, averaged over ranks with their weights. It travels with the next round. So the
    period after round i is computed from F(x̄_{i−1}), and the second period is always τ₀. F(x̄₀) is the loss at the
    common start; after ``warmup_steps``, at the last average of the warm-up. With ``overlap_steps`` it is the loss of
    the first step after the average was applied. A round in which no rank has such a loss leaves the period as it is.
    """

    initial: int = field(default=8, metadata=ALWAYS_SPELLED)  # τ₀
    f_star: float = 0.0  # f*, a lower bound of the loss

    needs_loss: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_at_least_one("initial", self.initial)

    def init(self, steps: int | None) -> PeriodState:
        return PeriodState(self.initial)

    def update(self, state: PeriodState, reduced: Round) -> None:
        ratio = loss_ratio(state, reduced, self.f_star)
        if ratio is None:
            return
        if ratio > 0:
            state.period = math.ceil(without_rounding((1 / ratio) ** (1 / 3))) * self.initial
        else:
            state.period = UNTIL_THE_END
