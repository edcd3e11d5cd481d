"""Local SGD with averaging every τ steps under PL (LUPA-SGD: Haddadpour et al., NeurIPS 2019, arXiv 1910.13598).

p workers, batches of B, variance σ²/B, F L-smooth and μ-PL, κ = L/μ, T steps of every worker, η_t = 4/(μ (t + a)):

    E[F(x̄_T) − F*] ≤ a³/(T+a)³ (F(x_0) − F*) + 4 κ σ² T (T+2a) / (μ p B (T+a)³) + 256 κ² σ² T (τ−1) / (μ p B (T+a)³)

and with periods τ_i that change, the last term is 128 κ² σ² Σ τ_i (τ_i − 1) / (μ p B (T+a)³). The error stays at
O(1/(pBT)), a linear speed-up, up to τ = O(T^{2/3} / (pB)^{1/3}). The theorem has a = α τ + 4 with a side condition on
α; a = max(8κ, τ + 4) works in practice; below 2κ the first steps are too long for the bound to hold. Step size and
rates are the paper's; the constants 4, 256 and 128 are from memory of it.

The paper allows a variance of C₁ ‖∇F‖² + σ²/B, with a condition on C₁ that we do not have. Functions whose result would
depend on it therefore raise an error for objectives with ``variance_growth`` above 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.cluster.delays import Delay
from tacit.core.specs import with_python_numbers
from tacit.errors import require
from tacit.theory.checks import check_not_negative, check_positive, check_whole, counted
from tacit.theory.server_bounds import Objective
from tacit.theory.times.renewals import round_time


@with_python_numbers
def lupa_period(*, steps: int, workers: int, batch_size: int, gap: float | None = None) -> int:
    """Return ⌈T^{2/3} / (pB)^{1/3}⌉, the longest period with linear speed-up, up to a constant.

    gap: F(x_0) − F*; if given, the result is T^{2/3} / (p · gap)^{1/3}: larger gap = shorter period.
    """
    for name, value in (("steps", steps), ("workers", workers), ("batch_size", batch_size)):
        check_whole(name, value)
    if gap is not None:
        check_positive("gap", gap)
    longest = math.pow(steps**2 / (workers * (batch_size if gap is None else gap)), 1 / 3)
    return max(1, min(steps, math.ceil(longest - 1e-9)))  # rounding must not increase a whole power


@with_python_numbers
def lupa_offset(*, objective: Objective, period: int) -> float:
    """Return a = max(8κ, τ + 4), with which the first step sizes are small enough."""
    check_whole("period", period)
    _check_variance(objective)
    return max(8 * objective.smoothness / objective.curvature, period + 4.0)


@with_python_numbers
def lupa_step_size(*, step: ArrayLike, objective: Objective, offset: float) -> NDArray[np.float64]:
    """Return η_t = 4/(μ (t + a)) of step t, counted from 0.

    The same schedule is ``InverseTime(offset=a)`` with lr = 4/(μ a).
    """
    _check_offset(offset, objective)
    return np.asarray(4 / (objective.curvature * (counted("step", step) + offset)))


@with_python_numbers
def lupa_bound(
    *, steps: ArrayLike, period: int, workers: int, batch_size: int, objective: Objective, offset: float | None = None
) -> NDArray[np.float64]:
    """Return the bound on E[F(x̄_T) − F*] after ``steps`` = T steps of every worker.

    offset: a; None: ``lupa_offset``.
    """
    counts = counted("steps", steps)
    check_whole("period", period)
    offset = lupa_offset(objective=objective, period=period) if offset is None else offset
    return _bound(counts, 256 * counts * (period - 1), workers, batch_size, objective, offset)


@with_python_numbers
def lupa_adaptive_bound(
    *, periods: Sequence[int], workers: int, batch_size: int, objective: Objective, offset: float | None = None
) -> float:
    """Return the bound after rounds of ``periods`` steps, in any order."""
    require(len(periods) > 0, "periods is empty; give at least one round.")
    for period in periods:
        check_whole("periods", period)
    offset = lupa_offset(objective=objective, period=max(periods)) if offset is None else offset
    drift = np.asarray(128.0 * sum(period * (period - 1) for period in periods))
    return float(_bound(np.asarray(float(sum(periods))), drift, workers, batch_size, objective, offset))


@with_python_numbers
def lupa_curve(
    *,
    times_s: ArrayLike,
    period: int,
    workers: int,
    compute: Delay,
    batch_size: int,
    objective: Objective,
    exchange_s: float = 0.0,
    offset: float | None = None,
    speed: Mapping[int, float] | None = None,
) -> NDArray[np.float64]:
    """Return ``lupa_bound`` at times ``times_s``, with τ steps per ``round_time`` + ``exchange_s`` seconds."""
    check_not_negative("exchange_s", exchange_s, "the duration of an average")
    round_s = round_time(period=period, workers=workers, compute=compute, speed=speed) + exchange_s
    return lupa_bound(
        steps=counted("times_s", times_s) / round_s * period,
        period=period,
        workers=workers,
        batch_size=batch_size,
        objective=objective,
        offset=offset,
    )


def _bound(
    steps: NDArray[np.float64],
    drift: NDArray[np.float64],
    workers: int,
    batch_size: int,
    objective: Objective,
    offset: float,
) -> NDArray[np.float64]:
    """Return the bound; ``drift`` is 256 T (τ−1) or 128 Σ τ_i (τ_i − 1)."""
    check_whole("workers", workers)
    check_whole("batch_size", batch_size)
    _check_variance(objective)
    _check_offset(offset, objective)
    mu, condition = objective.curvature, objective.smoothness / objective.curvature
    cube = (steps + offset) ** 3
    noise = condition * objective.variance / (mu * workers * batch_size)
    return np.asarray(
        offset**3 / cube * objective.gap
        + 4 * noise * steps * (steps + 2 * offset) / cube
        + condition * noise * drift / cube
    )


def _check_offset(offset: float, objective: Objective) -> None:
    least = max(2 * objective.smoothness / objective.curvature, 4.0)
    require(
        offset >= least and math.isfinite(offset),
        f"offset={offset:g} must be at least max(2 L/mu, 4) = {least:g}, or the first steps are too long; "
        f"use lupa_offset.",
    )


def _check_variance(objective: Objective) -> None:
    growth = objective.variance_growth
    require(
        growth == 0,
        f"variance_growth={growth:g} must be 0: these bounds of LUPA-SGD hold for a variance that does not grow with "
        f"‖∇F‖²; if ‖∇F‖² ≤ G² during the run, use variance={objective.variance:g} + {growth:g} G² and "
        f"variance_growth=0.",
    )
