"""AdaComm: a period that shrinks with the loss (Wang & Joshi 2018, arXiv 1810.08313).

    τ_l = ⌈√((F(x̄_l) − f*) / (F(x̄₀) − f*)) τ₀⌉        the paper has f* = 0

Long periods save time while the loss is large; short ones lower the floor of the error at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from tacit.core.specs import ALWAYS_SPELLED
from tacit.strategies.local_sgd.periods.loss_ratio import loss_ratio, without_rounding
from tacit.strategies.local_sgd.periods.period import Period, PeriodState, Round, require_at_least_one


@dataclass(frozen=True, kw_only=True)
class AdaCommPeriod(Period):
    """AdaComm: τ_l = ⌈√(F(x̄_l) / F(x̄₀)) τ₀⌉, adapted every ``interval_rounds`` (Wang & Joshi, arXiv 1810.08313).

    F(x̄) is estimated as in ``LossPeriod``: mini-batch losses of the first step after an averaging, at the averaged
    model, one round old.
    """

    initial: int = field(default=16, metadata=ALWAYS_SPELLED)  # τ₀
    interval_rounds: int = 1  # rounds between two changes of the period
    f_star: float = 0.0  # f*, a lower bound of the loss

    needs_loss: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_at_least_one("initial", self.initial)
        require_at_least_one("interval_rounds", self.interval_rounds)

    def init(self, steps: int | None) -> PeriodState:
        return PeriodState(self.initial)

    def update(self, state: PeriodState, reduced: Round) -> None:
        ratio = loss_ratio(state, reduced, self.f_star)
        if ratio is not None and (reduced.index + 1) % self.interval_rounds == 0:
            state.period = max(1, math.ceil(without_rounding(math.sqrt(max(0.0, ratio)) * self.initial)))
