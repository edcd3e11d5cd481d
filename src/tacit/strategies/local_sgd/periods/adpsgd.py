"""ADPSGD: a period that keeps the variance among workers near a target (Jiang & Agrawal, arXiv 2007.06134).

    S_k = (1/n) Σ ‖w_i − w̄‖²                       variance of the parameters just before averaging
    k < K_s:   C₂ ← running mean of S_k / γ_k      sampling; the period stays p_init
    k ≥ K_s:   p ← p + 1  if S_k < 0.7 γ_k C₂
               p ← p − 1  if S_k > 1.3 γ_k C₂

The variance falls with γ², its target with γ: so the period grows after each cut of the learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tacit.core.specs import ALWAYS_SPELLED
from tacit.errors import require
from tacit.strategies.local_sgd.periods.period import Period, PeriodState, Round, require_at_least_one


@dataclass(frozen=True, kw_only=True)
class VariancePeriod(Period):
    """ADPSGD: keep the variance among workers near C₂ γ by changing the period by one (arXiv 2007.06134).

    While sampling, the period is ``initial`` and C₂ is the running mean of S/γ. Later, S < ``lower`` γ C₂ makes the
    period one step longer and S > ``upper`` γ C₂ one step shorter. S is the variance among workers just before
    averaging, γ the learning rate.
    """

    initial: int = field(default=4, metadata=ALWAYS_SPELLED)  # p_init
    sampling_steps: int | None = None  # K_s; None: a quarter of the run's steps
    lower: float = 0.7
    upper: float = 1.3

    needs_variance: ClassVar[bool] = True
    needs_rate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_at_least_one("initial", self.initial)
        require(
            self.sampling_steps is None or self.sampling_steps >= self.initial,
            f"sampling_steps={self.sampling_steps} must hold at least one period of {self.initial}.",
        )
        require(0 < self.lower < self.upper, f"lower={self.lower} must be positive and below upper={self.upper}.")

    def init(self, steps: int | None) -> PeriodState:
        if self.sampling_steps is None and steps is None:
            raise ValueError(
                "steps=None: VariancePeriod samples for a quarter of the run; pass steps=… when the run starts, "
                "or sampling_steps=… to VariancePeriod."
            )
        sampling = self.sampling_steps if self.sampling_steps is not None else (steps or 0) / 4
        return PeriodState(self.initial, {"sampling_steps": sampling, "samples": 0, "c2": 0.0})

    def update(self, state: PeriodState, reduced: Round) -> None:
        assert reduced.variance is not None
        memory, gamma = state.memory, reduced.learning_rate
        if gamma == 0:
            return  # a schedule that pauses training gives no evidence about the period
        # k < K_s in the paper counts steps from 0: this round ended step k = reduced.step − 1.
        if reduced.step - 1 < memory["sampling_steps"] or memory["samples"] == 0:
            memory["samples"] += 1
            memory["c2"] += (reduced.variance / gamma - memory["c2"]) / memory["samples"]
        elif reduced.variance < self.lower * gamma * memory["c2"]:
            state.period += 1
        elif reduced.variance > self.upper * gamma * memory["c2"]:
            state.period = max(1, state.period - 1)
