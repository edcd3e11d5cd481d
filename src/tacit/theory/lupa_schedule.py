"""The conditions on changing periods τ_1 … τ_E of ADA-LUPA-SGD (Haddadpour et al., NeurIPS 2019, arXiv 1910.13598).

p workers, batches of B, T steps of every worker. Under these conditions the error stays at O(1/(pBT)), the linear
speed-up:

    (i)   Σ τ_i = T          (ii)  Σ τ_i (τ_i − 1) = O(T²)          (iii) (max τ_i)³ = O(T²/(pB))

The paper gives no constants in O(·); here both are one parameter c. With c ≥ 1, (i) implies (ii), because Σ τ_i² ≤ (Σ
τ_i)². The schedules of the paper's experiments (T = 5469, p = 4, B = 128) need a large c for (iii): τ = 91 needs c =
12.9, linear growth in 10 rounds c = 21,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.errors import require
from tacit.theory.checks import check_positive, check_whole


@dataclass(frozen=True)
class ScheduleCondition:
    """One condition on a schedule of periods: the compared values, and whether it is met."""

    name: str
    rule: str
    value: float
    limit: float
    is_met: bool

    @property
    def ratio(self) -> float:
        """``value`` / ``limit``: above 1, the factor by which the limit is exceeded."""
        return self.value / self.limit

    def __str__(self) -> str:
        verdict = "met" if self.is_met else "not met"
        return f"{self.name} {self.rule}: {verdict}, {self.value:g} is {self.ratio:.4g} of {self.limit:g}"


def lupa_schedule_conditions(
    *, periods: Sequence[int], steps: int, workers: int, batch_size: int, constant: float = 1.0
) -> tuple[ScheduleCondition, ScheduleCondition, ScheduleCondition]:
    """Return conditions (i), (ii) and (iii) for rounds of ``periods`` steps.

    steps: T, of every worker. constant: c, which stands for O(·) in (ii) and (iii); larger = weaker conditions.
    """
    require(len(periods) > 0, "periods is empty; give at least one round.")
    for period in periods:
        check_whole("periods", period)
    for name, value in (("steps", steps), ("workers", workers), ("batch_size", batch_size)):
        check_whole(name, value)
    check_positive("constant", constant)
    total, drift, longest = sum(periods), sum(period * (period - 1) for period in periods), max(periods)
    most_drift, most_cubed = constant * steps**2, constant * steps**2 / (workers * batch_size)
    return (
        ScheduleCondition("(i)", "Σ τ_i = T", total, steps, total == steps),
        ScheduleCondition("(ii)", "Σ τ_i (τ_i − 1) ≤ c T²", drift, most_drift, drift <= most_drift),
        ScheduleCondition("(iii)", "(max τ_i)³ ≤ c T²/(pB)", longest**3, most_cubed, longest**3 <= most_cubed),
    )
