"""The ratio of losses that LossPeriod and AdaCommPeriod use."""

from __future__ import annotations

import math

from tacit.errors import require
from tacit.strategies.local_sgd.periods.period import PeriodState, Round


def loss_ratio(state: PeriodState, reduced: Round, f_star: float) -> float | None:
    """Return (F(x̄) − f*) / (F(x̄₀) − f*), or None where this round has no finite loss.

    F(x̄₀) is the loss of the first round that has one; the state keeps it.
    """
    if reduced.first_loss is None or not math.isfinite(reduced.first_loss):
        return None
    start = state.memory.setdefault("first_loss", reduced.first_loss)
    require(
        start > f_star, f"f_star={f_star} is not below the first loss {start:.6g}; it must bound the loss from below."
    )
    return (reduced.first_loss - f_star) / (start - f_star)


def without_rounding(value: float) -> float:
    """Return ``value`` to twelve digits, so that the ceiling of 2.0000000000000004 is 2."""
    return float(f"{value:.12g}")
