"""Checks of a period: ``check_period(mine)`` tests what ``LocalSGD`` expects of a rule.

from tacit.testing import check_period

def test_mine_is_a_period():
    check_period(Mine(initial=4))
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from tacit.core.state_io import restore, store
from tacit.registry import parse
from tacit.strategies.local_sgd.periods import Period, PeriodState, Round
from tacit.strategies.local_sgd.periods.period import first_period, next_period

STEPS: Final = 400
_SHOWN: Final = 12


def check_period(period: Period, *, steps: int = STEPS) -> None:
    """Raise ``AssertionError`` where ``period`` breaks a promise, on rounds with falling, constant and missing numbers.

    The checks: it prints as the call that makes it; every period is a whole number, at least 1; equal rounds give equal
    periods, so that all ranks agree; the memory holds plain numbers; a state that went through a checkpoint continues
    as before; numbers that the rule does not ask for (``needs_…``, ``reads_time``) have no influence.
    """
    assert parse(str(period)) == period, f"{period} does not read back what it prints."
    for name, rounds in _scenarios(period):
        periods = _periods(period, steps, rounds)
        assert periods == _periods(period, steps, rounds), f"{period}: {name}: equal rounds give other periods."
        resumed = _periods(period, steps, rounds, checkpoint_at=2)
        shown = f"{periods[:_SHOWN]}, resumed {resumed[:_SHOWN]}"
        assert periods == resumed, (
            f"{period}: {name}: a checkpoint changes the periods: {shown}; keep all in the state."
        )
    undemanding = [_periods(period, steps, rounds) for _, rounds in _unasked(period)]
    assert all(periods == undemanding[0] for periods in undemanding), (
        f"{period}: the periods depend on a number that the rule does not ask for; "
        f"set needs_variance, needs_loss, needs_rate or reads_time."
    )


Numbers = tuple[float, float | None, float | None, float | None, float | None]
"""The learning rate, the variance, the first loss and the times of a round and of a step."""


def _scenarios(period: Period) -> Iterator[tuple[str, list[Numbers]]]:
    """Yield names and numbers of rounds; what the rule does not ask for is missing."""
    rounds = range(STEPS)
    falling = [(0.1, 1 / (1 + i), 2 * math.exp(-i / 9), 0.1 / (1 + i), 0.02) for i in rounds]
    yield "falling numbers", [_asked(period, numbers) for numbers in falling]
    yield "constant numbers", [_asked(period, (0.1, 0.5, 1.0, 0.1, 0.02)) for _ in rounds]
    lower = [(0.1 if i < 5 else 0.01, 0.5 + i % 3, 1.0 + i % 2, 0.1 + i % 5, 0.02 + i % 2) for i in rounds]
    yield "a lower rate", [_asked(period, numbers) for numbers in lower]
    yield "a rate of 0", [_asked(period, (0.1 * (i % 2), 0.5, 1.0, 0.1, 0.02)) for i in rounds]
    if period.needs_loss:
        yield "a missing loss", [_asked(period, (0.1, 0.5, None if i % 2 else 1.0, 0.1, 0.02)) for i in rounds]
    if period.reads_time:
        yield "missing times", [(0.1, None, None, *((None, None) if i % 2 else (0.1, 0.02))) for i in rounds]
        yield "steps that take no time", [_asked(period, (0.1, 0.5, 1.0, 0.1, 0.0)) for _ in rounds]
        yield "rounds that take no time", [_asked(period, (0.1, 0.5, 1.0, 0.0, 0.02)) for _ in rounds]


def _unasked(period: Period) -> Iterator[tuple[str, list[Numbers]]]:
    """Yield rounds that differ only in numbers that the rule does not ask for."""
    for factor in (1.0, 3.0):
        rate, variance, loss, seconds = (
            1.0 if needs else factor
            for needs in (period.needs_rate, period.needs_variance, period.needs_loss, period.reads_time)
        )
        yield (
            f"{factor}",
            [
                (0.1 * rate, variance / (1 + i), loss * math.exp(-i / 9), 0.1 * seconds, 0.02 / seconds)
                for i in range(STEPS)
            ],
        )


def _asked(period: Period, numbers: Numbers) -> Numbers:
    rate, variance, loss, *times = numbers
    round_s, step_s = times if period.reads_time else (None, None)
    return rate, variance if period.needs_variance else None, loss if period.needs_loss else None, round_s, step_s


def _periods(period: Period, steps: int, rounds: list[Numbers], checkpoint_at: int | None = None) -> list[int]:
    """Return the periods of a run of ``steps``; at round ``checkpoint_at`` the state goes through a checkpoint."""
    state = _valid(first_period, period, steps)
    step, found = 0, []
    for index, numbers in enumerate(rounds):
        _check_state(period, state)
        found.append(state.period)
        step += state.period
        if step >= steps:
            break
        if index == checkpoint_at:
            state = restore(period.init(steps), copy.deepcopy(store(state)), None)
        _valid(next_period, period, state, Round(index, step, *numbers))
    return found


def _valid(call: Callable[..., Any], *arguments: object) -> Any:
    """Return the result of ``call``; a wrong state is an ``AssertionError``."""
    try:
        return call(*arguments)
    except (TypeError, ValueError) as error:
        raise AssertionError(str(error)) from error


def _check_state(period: Period, state: PeriodState) -> None:
    now = state.period
    assert type(now) is int and now >= 1, f"{period}: the period {now!r} is not a whole number, at least 1."
    for name, value in state.memory.items():
        assert isinstance(value, int | float), f"{period}: the memory holds {name}={value!r}; keep plain numbers there."
