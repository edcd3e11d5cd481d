"""Periods: how many local steps to take before the next round. Pure numbers in, a number out; no worker, no network.

Every rank computes the next period from the *reduced* values of a round alone, so all ranks agree without asking.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tacit.core.specs import ALWAYS_SPELLED, Spec
from tacit.errors import require

UNTIL_THE_END = 2**31
"""A period longer than any run: the last round, at the end, is the next one."""


def _at_least_one(name: str, value: int) -> None:
    way_out = "; to average after every step use AllReduce()." if name == "period" else "."
    require(isinstance(value, int) and value >= 1, f"{name}={value} must be a whole number, at least 1{way_out}")


@dataclass(slots=True)
class Round:
    """What every rank knows after a round."""

    index: int  # rounds before this one
    step: int  # completed steps, this period's included
    learning_rate: float  # γ of the last step
    variance: float | None = None  # (1/n) Σ ‖w_i − w̄‖² just before averaging
    first_loss: float | None = None  # F(x̄), from the first step after the previous averaging; None: not known


@dataclass
class PeriodState:
    """The current period and what a rule must remember; plain numbers, checkpointable."""

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
    >>> from tacit.strategies.local_sgd.periods import PeriodState
    >>> @dataclass(frozen=True)
    ... class Doubling(tacit.Period):
    ...     first: int = 1
    ...     def init(self, steps):
    ...         return PeriodState(self.first)
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
        """Return the state before the first round of a run of ``steps`` (None: unknown)."""

    def update(self, state: PeriodState, reduced: Round) -> None:
        """Set ``state.period`` to the number of steps until the next round."""


@dataclass(frozen=True)
class Every(Period):
    """The same number of steps every time: LUPA-SGD (Haddadpour et al., arXiv 1910.13598) and CPSGD."""

    n: int

    def __post_init__(self) -> None:
        _at_least_one("period", self.n)

    def init(self, steps: int | None) -> PeriodState:
        return PeriodState(self.n)


@dataclass(frozen=True)
class OneShot(Period):
    """Never during the run: average once, at the end."""

    def init(self, steps: int | None) -> PeriodState:
        return PeriodState(UNTIL_THE_END)


@dataclass(frozen=True)
class PeriodList(Period):
    """An explicit list of periods; the last one repeats."""

    periods: Sequence[int]

    def __post_init__(self) -> None:
        require(len(self.periods) > 0, "periods is empty; name at least one period.")
        for period in self.periods:
            _at_least_one("period", period)

    def init(self, steps: int | None) -> PeriodState:
        return PeriodState(self.periods[0])

    def update(self, state: PeriodState, reduced: Round) -> None:
        state.period = self.periods[min(reduced.index + 1, len(self.periods) - 1)]


@dataclass(frozen=True, kw_only=True)
class LinearPeriod(Period):
    """ADA-LUPA as its experiments run it: τ_i = τ₀(1 + α i), α = 2/(E+1) · T/(E τ₀), for E rounds in T steps (arXiv
    1910.13598).

    Truncated to integers; round number E absorbs what is left of T.
    """

    initial: int = field(default=8, metadata=ALWAYS_SPELLED)  # τ₀
    rounds: int = field(default=10, metadata=ALWAYS_SPELLED)  # E, the wanted number of communications

    def __post_init__(self) -> None:
        _at_least_one("initial", self.initial)
        _at_least_one("rounds", self.rounds)

    def schedule(self, steps: int) -> list[float]:
        """Return τ_0 … τ_{E−1} before truncation, as §5 of the paper prints them."""
        growth = 2 / (self.rounds + 1) * steps / (self.rounds * self.initial)
        return [self.initial * (1 + growth * i) for i in range(self.rounds)]

    def init(self, steps: int | None) -> PeriodState:
        if steps is None:
            raise ValueError("LinearPeriod needs the number of steps; say steps=… when the run starts.")
        return PeriodState(self._period(0, steps), {"steps": steps})

    def update(self, state: PeriodState, reduced: Round) -> None:
        state.period = self._period(reduced.index + 1, int(state.memory["steps"]))

    def _period(self, index: int, steps: int) -> int:
        return int(self.schedule(steps)[index]) if index < self.rounds - 1 else UNTIL_THE_END


@dataclass(frozen=True, kw_only=True)
class LossPeriod(Period):
    """ADA-LUPA's loss rule: τ_i = ⌈((F(x̄₀) − f*) / (F(x̄_i) − f*))^{1/3}⌉ τ₀ (arXiv 1910.13598; the poster prints f* =
    0).

    F(x̄) is estimated from the mini-batch losses of the first step after an averaging: each rank's loss on its own
    data, taken at the averaged model, averaged over ranks with their weights. It travels with the next round, so the
    period after round i is computed from F(x̄_{i−1}) and the second period is always τ₀. F(x̄₀) is the loss at the
    common start; after ``warmup_steps``, at the last average of the warm-up. With ``overlap_steps`` it is the loss of
    the first step after the average was applied. A round in which no rank has such a loss leaves the period as it is.
    """

    initial: int = field(default=8, metadata=ALWAYS_SPELLED)  # τ₀
    f_star: float = 0.0  # a lower bound of the loss

    needs_loss: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _at_least_one("initial", self.initial)

    def init(self, steps: int | None) -> PeriodState:
        return PeriodState(self.initial)

    def update(self, state: PeriodState, reduced: Round) -> None:
        ratio = _loss_ratio(state, reduced, self.f_star)
        if ratio is None:
            return
        state.period = math.ceil(_cube_root(1 / ratio)) * self.initial if ratio > 0 else UNTIL_THE_END


@dataclass(frozen=True, kw_only=True)
class AdaCommPeriod(Period):
    """AdaComm, the rival that shrinks: τ_l = ⌈√(F(x̄_l) / F(x̄₀)) τ₀⌉ (Wang & Joshi 2018, arXiv 1810.08313), adapted
    every ``interval_rounds``.

    F(x̄) is estimated as in ``LossPeriod``: mini-batch losses of the first step after an averaging, at the averaged
    model, one round old.
    """

    initial: int = field(default=16, metadata=ALWAYS_SPELLED)  # τ₀
    interval_rounds: int = 1
    f_star: float = 0.0

    needs_loss: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _at_least_one("initial", self.initial)
        _at_least_one("interval_rounds", self.interval_rounds)

    def init(self, steps: int | None) -> PeriodState:
        return PeriodState(self.initial)

    def update(self, state: PeriodState, reduced: Round) -> None:
        ratio = _loss_ratio(state, reduced, self.f_star)
        if ratio is not None and (reduced.index + 1) % self.interval_rounds == 0:
            state.period = max(1, math.ceil(_trimmed(math.sqrt(max(0.0, ratio)) * self.initial)))


@dataclass(frozen=True, kw_only=True)
class VariancePeriod(Period):
    """ADPSGD (Jiang & Agrawal, arXiv 2007.06134): keep the parameters' variance near C₂ γ by changing the period by
    one.

    While sampling, the period stays ``initial`` and C₂ is the running mean of S/γ; then S < 0.7 γ C₂ makes it one
    longer and S > 1.3 γ C₂ one shorter. S is the variance among workers just before averaging, γ the learning rate, so
    the period climbs after each cut of the rate.
    """

    initial: int = field(default=4, metadata=ALWAYS_SPELLED)  # p_init
    sampling_steps: int | None = None  # K_s; None: a quarter of the run's steps
    lower: float = 0.7
    upper: float = 1.3

    needs_variance: ClassVar[bool] = True
    needs_rate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _at_least_one("initial", self.initial)
        require(
            self.sampling_steps is None or self.sampling_steps >= self.initial,
            f"sampling_steps={self.sampling_steps} must hold at least one period of {self.initial}.",
        )
        require(0 < self.lower < self.upper, f"lower={self.lower} must be positive and below upper={self.upper}.")

    def init(self, steps: int | None) -> PeriodState:
        if self.sampling_steps is None and steps is None:
            raise ValueError("VariancePeriod samples for a quarter of the run: say steps=…, or sampling_steps=… here.")
        sampling = self.sampling_steps if self.sampling_steps is not None else (steps or 0) / 4
        return PeriodState(self.initial, {"sampling_steps": sampling, "samples": 0, "c2": 0.0})

    def update(self, state: PeriodState, reduced: Round) -> None:
        assert reduced.variance is not None
        memory, gamma = state.memory, reduced.learning_rate
        if gamma == 0:
            return  # a schedule that pauses training says nothing about the period
        # k < K_s in the paper counts steps from 0: this round ended step k = reduced.step − 1.
        if reduced.step - 1 < memory["sampling_steps"] or memory["samples"] == 0:
            memory["samples"] += 1
            memory["c2"] += (reduced.variance / gamma - memory["c2"]) / memory["samples"]
        elif reduced.variance < self.lower * gamma * memory["c2"]:
            state.period += 1
        elif reduced.variance > self.upper * gamma * memory["c2"]:
            state.period = max(1, state.period - 1)


def _loss_ratio(state: PeriodState, reduced: Round, f_star: float) -> float | None:
    """Return (F(x̄) − f*) / (F(x̄₀) − f*), with F(x̄₀) from the first round that brings a loss; None where this round
    brings none.
    """
    if reduced.first_loss is None:
        return None
    start = state.memory.setdefault("first_loss", reduced.first_loss)
    require(
        start > f_star, f"f_star={f_star} is not below the first loss {start:.6g}; it must bound the loss from below."
    )
    return (reduced.first_loss - f_star) / (start - f_star)


def _cube_root(value: float) -> float:
    return _trimmed(value ** (1 / 3))


def _trimmed(value: float) -> float:
    """Return ``value`` less its last bits, so that a ceiling of 2.0000000000000004 is 2."""
    return float(f"{value:.12g}")
