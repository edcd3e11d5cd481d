"""Period rules of LocalSGD, one file per method: how many local steps to take before the next round."""

from tacit.strategies.local_sgd.periods.ada_lupa import LinearPeriod, LossPeriod
from tacit.strategies.local_sgd.periods.adacomm import AdaCommPeriod
from tacit.strategies.local_sgd.periods.adpsgd import VariancePeriod
from tacit.strategies.local_sgd.periods.fixed import Every, OneShot, PeriodList
from tacit.strategies.local_sgd.periods.pace import PacePeriod
from tacit.strategies.local_sgd.periods.period import (
    UNTIL_THE_END,
    Period,
    PeriodState,
    Round,
    first_period,
    next_period,
)
from tacit.strategies.local_sgd.periods.rate import RatePeriod

__all__ = [  # noqa: RUF022 - `tacit list` shows rules in this order, the simplest first
    "Every",
    "OneShot",
    "PeriodList",
    "LinearPeriod",
    "LossPeriod",
    "AdaCommPeriod",
    "VariancePeriod",
    "RatePeriod",
    "PacePeriod",
    "Period",
    "PeriodState",
    "Round",
    "UNTIL_THE_END",
    "first_period",
    "next_period",
]
