"""Base class of period rules: how many local steps to take before the next round.

A rule is a function of numbers: it uses neither worker nor network. Every rank computes the next period from the
*reduced* values of a round alone, so all ranks compute the same period without further communication.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Final

from tacit.core.specs import Spec
from tacit.errors import require

UNTIL_THE_END: Final = 2**31
"""A period longer than any run: the next round is the last one, at the end of the run."""


@dataclass(slots=True)
class Round:
    """The values of a round that are equal on all ranks."""

    index: int  # number of rounds before this one
    step: int  # completed steps, those of this period included
    learning_rate: float  # γ of the last step
    variance: float | None = None  # (1/n) Σ ‖w_i − w̄‖² just before averaging; None: the rule does not ask for it
    first_loss: float | None = None  # F(x̄), from the first step after the previous averaging; None: not known


@dataclass
class PeriodState:
    """The current period and the numbers that a rule keeps between rounds; checkpoints store both."""

    period: int
    memory: dict[str, float] = field(default_factory=dict)


class Period(Spec, ABC):
    """Base class of periods: the number of steps between two rounds of ``LocalSGD``.

    Derive a frozen dataclass. Override ``init``, which returns the first period, and ``update``, which sets the next
    after every round, unless the period is constant. All ranks must compute the same period: use the state and the
    ``Round`` alone. Set ``needs_variance``, ``needs_loss`` or ``needs_rate`` for the numbers of the ``Round`` that
    ``update`` reads. ``tacit.testing.check_period`` tests the result.

    >>> from dataclasses import dataclass
    >>> import tacit
    >>> @dataclass(frozen=True)
    ... class Doubling(tacit.Period):
    ...     first: int = 1
    ...     def init(self, steps):
    ...         return tacit.PeriodState(self.first)
    ...     def update(self, state, reduced):
    ...         state.period *= 2
    >>> run = tacit.simulate(tacit.workloads.quadratic(dimension=3), tacit.LocalSGD(period=Doubling()), steps=15)
    >>> run.summary()["rounds"]
    4
    """

    needs_variance: ClassVar[bool] = False
    needs_loss: ClassVar[bool] = False
    needs_rate: ClassVar[bool] = False

    @abstractmethod
    def init(self, steps: int | None) -> PeriodState:
        """Return the state before the first round of a run of ``steps`` steps (None: unknown)."""

    def begins_like(self, steps: int, longer: int) -> bool:
        """Return whether the periods of a run of ``longer`` steps begin with those of a run of ``steps`` steps."""
        return self.init(steps) == self.init(longer)

    def update(self, state: PeriodState, reduced: Round) -> None:
        """Set ``state.period`` to the number of steps until the next round. Without override it stays as it is."""


def first_period(rule: Period, steps: int | None) -> PeriodState:
    """Return ``rule.init(steps)``; raise ``TypeError`` or ``ValueError`` where it is no valid state."""
    return _checked(rule, rule.init(steps))


def next_period(rule: Period, state: PeriodState, reduced: Round) -> None:
    """Call ``rule.update``; raise ``TypeError`` or ``ValueError`` where it sets no valid period."""
    returned: object = rule.update(state, reduced)  # type: ignore[func-returns-value]
    if returned is not None:
        raise TypeError(f"{rule}: update returned {returned!r}; it must set state.period and return nothing.")
    _checked(rule, state)


def _checked(rule: Period, state: PeriodState) -> PeriodState:
    if type(state) is PeriodState and type(state.period) is int and state.period >= 1:
        return state  # without the text of an error, which takes longer than the rule
    if not isinstance(state, PeriodState):
        raise TypeError(f"{rule}: init returned {state!r}; it must return a tacit.PeriodState, such as PeriodState(4).")
    require_at_least_one(f"{rule}: state.period", state.period)
    return state


def require_at_least_one(name: str, value: int) -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number of at least 1."""
    way_out = "; to average after every step use AllReduce()." if name == "period" else "."
    require(isinstance(value, int) and value >= 1, f"{name}={value} must be a whole number, at least 1{way_out}")
