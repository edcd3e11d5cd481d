"""Every period of tacit passes the public checks, and they find rules that break a promise."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

import tacit
from tacit.registry import FAMILIES
from tacit.strategies.local_sgd.periods import PeriodState
from tacit.testing import check_period

PERIODS = [
    tacit.Every(3),
    tacit.OneShot(),
    tacit.PeriodList([2, 7]),
    tacit.LinearPeriod(initial=2, rounds=5),
    tacit.LossPeriod(initial=3),
    tacit.AdaCommPeriod(initial=16),
    tacit.VariancePeriod(initial=4),
    tacit.RatePeriod(initial=4, power=2),
    tacit.PacePeriod(communication=0.2),
]
_COUNTER = itertools.count(1)


@pytest.mark.parametrize("period", PERIODS, ids=str)
def test_every_period_keeps_its_promises(period: tacit.Period) -> None:
    check_period(period)


def test_every_registered_period_is_checked() -> None:
    assert {type(period).__name__ for period in PERIODS} == {named.name for named in FAMILIES["periods"]}


@dataclass(frozen=True)
class Flawed(tacit.Period):
    flaw: str

    def init(self, steps):
        return PeriodState(2)

    def update(self, state, reduced):
        match self.flaw:
            case "fraction":
                state.period = 2.5
            case "zero":
                state.period = 0
            case "global":
                state.period = next(_COUNTER)
            case "text":
                state.memory["name"] = "x"
            case "attribute":  # a checkpoint keeps fields only
                state.times = getattr(state, "times", 0) + 1
                state.period = state.times
            case "rate":
                state.period = 1 + int(10 * reduced.learning_rate)
            case "time":
                state.period = 1 if reduced.round_s is None else 2 + int(100 * reduced.round_s)
            case "variance":
                state.period = 1 if reduced.variance is None else 2 + int(reduced.variance)


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("fraction", "state.period=2.5 must be a whole number"),
        ("zero", "state.period=0 must be a whole number, at least 1"),
        ("global", "equal rounds give other periods"),
        ("text", "the memory holds name='x'"),
        ("attribute", "a checkpoint changes the periods"),
        ("rate", "set needs_variance, needs_loss, needs_rate or reads_time"),
        ("time", "set needs_variance, needs_loss, needs_rate or reads_time"),
        ("variance", "set needs_variance, needs_loss, needs_rate or reads_time"),
    ],
)
def test_a_broken_promise_is_found(flaw: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_period(Flawed(flaw))
