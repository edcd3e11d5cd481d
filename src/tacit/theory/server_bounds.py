"""Error bounds of K-of-P servers, per update and over time (Dutta et al., AISTATS 2018, arXiv 1803.01113).

F is c-strongly convex and L-smooth; a mini-batch of m has E‖g − ∇F‖² ≤ σ²/m + (M_G/m) ‖∇F‖². J updates with K gradients
each and step η:

    E[F(w_J) − F*] ≤ floor + (1 − η c γ')^J (F(w_0) − F* − floor),     floor = η L σ² / (2 c γ' K m)
    (1/J) Σ_j E‖∇F(w_j)‖² ≤ 2 (F(w_0) − F*)/(η γ' J) + L η σ²/(γ' K m)     without convexity

    all kinds      η ≤ 1/(2L (M_G/(K m) + 1))
    sync kinds     γ' = 1
    stale kinds    γ' = 1 − γ + p₀/2,      E‖∇F(w_j) − ∇F(w_stale)‖² ≤ γ E‖∇F(w_j)‖², γ ≤ 1

γ is an assumption about the run and unknown in advance, so curves of stale kinds hold for an assumed γ. The two bounds
are from memory of the paper, not checked against its text; the condition on η is derived here. With g the mean of the K
gradients of one update,

    E‖g‖² ≤ σ²/(K m) + (M_G/(K m) + 1) (1/K) Σ_l E‖∇F(w_τ(l))‖²

because the square of a mean is at most the mean of the squares. Stale gradients may all be equal, so the 1 cannot be
replaced by 1/K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.cluster.delays import Delay
from tacit.core.specs import Spec, with_python_numbers
from tacit.errors import require
from tacit.theory.checks import check_not_negative, check_positive, check_whole, counted
from tacit.theory.times.freshness import p0 as proven_p0
from tacit.theory.times.update_times import FRESH_KINDS, gradients_of, update_time, update_time_bounds


@dataclass(frozen=True, kw_only=True)
class Objective(Spec):
    """The constants of a problem that the bounds need."""

    gap: float  # F(w_0) − F*
    smoothness: float  # L
    variance: float  # σ²: of the gradient of one sample, a batch of m has σ²/m
    convexity: float | None = None  # c of strong convexity or μ of the PL condition; None: neither holds
    variance_growth: float = 0.0  # M_G: increase of the variance per ‖∇F‖²

    def __post_init__(self) -> None:
        check_not_negative("gap", self.gap, "F(w_0) − F*")
        check_positive("smoothness", self.smoothness)
        check_not_negative("variance", self.variance, "a mean of squares")
        check_not_negative("variance_growth", self.variance_growth, "a mean of squares")
        if self.convexity is not None:
            check_positive("convexity", self.convexity)
            require(
                self.convexity <= self.smoothness * (1 + 1e-9),
                f"convexity={self.convexity:g} must not be above smoothness={self.smoothness:g}: c ≤ L always holds.",
            )

    @property
    def curvature(self) -> float:
        """``convexity``; raise if it is None."""
        if self.convexity is None:
            raise ValueError("convexity=None: this bound needs strong convexity or PL; use gradient_bound otherwise.")
        return self.convexity


@with_python_numbers
def largest_step_size(kind: str, *, k: int, objective: Objective, batch_size: int) -> float:
    """Return the largest η for which the bounds hold, 1/(2L (M_G/(K m) + 1)).

    k: gradients per update, P for "sync".
    """
    _check_update(kind, k, batch_size)
    return 1 / (2 * objective.smoothness * (objective.variance_growth / (k * batch_size) + 1))


@with_python_numbers
def error_bound(
    kind: str,
    *,
    updates: ArrayLike,
    k: int,
    objective: Objective,
    step_size: float,
    batch_size: int,
    gamma: float | None = None,
    p0: float = 0.0,
) -> NDArray[np.float64]:
    """Return the bound on E[F(w_J) − F*] after ``updates`` = J updates (a number or an array).

    k: gradients per update, P for "sync". gamma: γ of the stale kinds, larger = staler. p0: see ``theory.p0``, larger =
    fresher.
    """
    pull, noise = _pull_and_noise(kind, k, objective, step_size, batch_size, gamma, p0)
    contraction = step_size * objective.curvature * pull  # at most 3/4: η ≤ 1/(2L), c ≤ L, γ' ≤ 3/2
    floor = noise / (2 * objective.curvature)
    return np.asarray(floor + (1 - contraction) ** counted("updates", updates) * (objective.gap - floor))


@with_python_numbers
def gradient_bound(
    kind: str,
    *,
    updates: ArrayLike,
    k: int,
    objective: Objective,
    step_size: float,
    batch_size: int,
    gamma: float | None = None,
    p0: float = 0.0,
) -> NDArray[np.float64]:
    """Return the bound on the mean of E‖∇F(w_j)‖² over ``updates`` updates, which needs no convexity.

    Arguments as in ``error_bound``.
    """
    pull, noise = _pull_and_noise(kind, k, objective, step_size, batch_size, gamma, p0)
    count = counted("updates", updates)
    require(bool(np.all(count > 0)), "updates=0: a mean over no update is undefined; start with 1.")
    return np.asarray(2 * objective.gap / (step_size * pull * count) + noise)


@with_python_numbers
def error_curve(
    kind: str,
    *,
    times_s: ArrayLike,
    workers: int,
    compute: Delay,
    objective: Objective,
    step_size: float,
    batch_size: int,
    k: int | None = None,
    speed: Mapping[int, float] | None = None,
    gamma: float | None = None,
    p0: float | None = None,
) -> NDArray[np.float64]:
    """Return ``error_bound`` at times ``times_s``, with J = t/E[T] updates.

    If E[T] has no closed form (K-async for most delays), it is simulated with a fixed seed. p0: None: ``theory.p0``.
    """
    gradients = gradients_of(kind, k, workers)
    lower_s, upper_s = update_time_bounds(kind, workers=workers, compute=compute, k=k, speed=speed)
    method = "exact" if lower_s == upper_s else "simulated"
    per_update_s = update_time(kind, workers=workers, compute=compute, k=k, speed=speed, method=method)
    if p0 is None:
        p0 = proven_p0(kind, workers=workers, compute=compute, k=k) if kind not in FRESH_KINDS and not speed else 0.0
    return error_bound(
        kind,
        updates=counted("times_s", times_s) / per_update_s,
        k=gradients,
        objective=objective,
        step_size=step_size,
        batch_size=batch_size,
        gamma=gamma,
        p0=p0,
    )


def _pull_and_noise(
    kind: str, k: int, objective: Objective, step_size: float, batch_size: int, gamma: float | None, p0: float
) -> tuple[float, float]:
    """Return γ' and η L σ²/(γ' K m)."""
    check_positive("step_size", step_size)
    most = largest_step_size(kind, k=k, objective=objective, batch_size=batch_size)
    require(
        step_size <= most * (1 + 1e-9),
        f"step_size={step_size:g} must not be above {most:g}, the limit of the theorem; "
        f"use largest_step_size({kind!r}, …).",
    )
    pull = _pull(kind, gamma, p0)
    return pull, step_size * objective.smoothness * objective.variance / (pull * k * batch_size)


def _pull(kind: str, gamma: float | None, p0: float) -> float:
    if kind in FRESH_KINDS:
        require(
            gamma in (None, 0),
            f"gamma={gamma} belongs to the stale kinds; {kind!r} has no stale gradients, omit gamma.",
        )
        return 1.0
    if gamma is None:
        raise ValueError(
            f"gamma=None: kind={kind!r} needs the γ ≤ 1 of E‖∇F(w_j) − ∇F(w_stale)‖² ≤ γ E‖∇F(w_j)‖²; give a value."
        )
    for name, value in (("gamma", gamma), ("p0", p0)):
        require(0 <= value <= 1, f"{name}={value:g} must be between 0 and 1.")
    pull = 1 - gamma + p0 / 2
    require(pull > 0, f"gamma={gamma:g} with p0={p0:g} gives no bound: 1 − γ + p₀/2 must be above 0; lower gamma.")
    return pull


def _check_update(kind: str, k: int, batch_size: int) -> None:
    check_whole("k", k)
    gradients_of(kind, k, k)
    check_whole("batch_size", batch_size)
