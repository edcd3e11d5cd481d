"""EF21's theorems (Richtárik, Sokolov & Fatkhullin, NeurIPS 2021, arXiv 2106.05203).

L: smoothness of f = (1/n) Σ f_i. L̃ = √((1/n) Σ L_i²). α: contraction of the compressor. The distortion is
G^t = (1/n) Σ ‖g_i^t − ∇f_i(x^t)‖².

    θ = 1 − √(1−α),   β = (1−α) / (1 − √(1−α)),   √(β/θ) = (1 + √(1−α))/α − 1
    E G^{t+1} ≤ (1−θ) G^t + β L̃² ‖x^{t+1} − x^t‖²
    nonconvex  γ ≤ 1/(L + L̃ √(β/θ))                       E‖∇f(x̂_T)‖² ≤ 2 (f(x⁰) − f_inf)/(γ T) + G⁰/(θ T)
    PL (μ)     γ ≤ min{1/(L + L̃ √(2β/θ)), θ/(2μ)}          E Ψ^T ≤ (1 − γμ)^T Ψ⁰,  Ψ^t = f(x^t) − f* + (γ/θ) G^t

The theorems hold for EF21 with any contractive compressor, and for EF21+ with a deterministic one.
"""

from __future__ import annotations

import math

from tacit.core.specs import with_python_numbers
from tacit.errors import require
from tacit.theory.checks import check_positive


@with_python_numbers
def ef21_theta(contraction: float) -> float:
    """Return θ = 1 − √(1−α), the fraction of the distortion that each message removes."""
    _check_contraction(contraction)
    return contraction / (1 + math.sqrt(1 - contraction))  # avoids cancellation for small α


@with_python_numbers
def ef21_beta(contraction: float) -> float:
    """Return β = (1−α)/θ, the factor by which a step of the model increases the distortion."""
    return (1 - contraction) / ef21_theta(contraction)


@with_python_numbers
def ef21_step_size(*, smoothness: float, mean_smoothness: float, contraction: float, pl: float | None = None) -> float:
    """Return the largest γ that the theorem permits: 1/(L + L̃ √(β/θ)), or that of the linear rate if ``pl`` is given.

    pl: μ of the PL condition. smoothness: L. mean_smoothness: L̃ = √(mean L_i²), at least L. contraction: α,
    k/d for Top-k.
    """
    check_positive("smoothness", smoothness)
    require(
        mean_smoothness >= smoothness * (1 - 1e-9),
        f"mean_smoothness={mean_smoothness:g} must be at least smoothness={smoothness:g}: "
        f"it is √(mean L_i²), and L ≤ mean L_i.",
    )
    theta, beta = ef21_theta(contraction), ef21_beta(contraction)
    if pl is None:
        return 1 / (smoothness + mean_smoothness * math.sqrt(beta / theta))
    check_positive("pl", pl)
    require(pl <= smoothness * (1 + 1e-9), f"pl={pl:g} must not be above smoothness={smoothness:g}: μ ≤ L.")
    return min(1 / (smoothness + mean_smoothness * math.sqrt(2 * beta / theta)), theta / (2 * pl))


@with_python_numbers
def ef21_gradient_bound(
    *, gap: float, step_size: float, steps: int, contraction: float, distortion: float = 0.0
) -> float:
    """Return the nonconvex bound on the mean of ‖∇f(x^t)‖² over t = 0 … T−1: 2 gap/(γT) + G⁰/(θT).

    gap: f(x⁰) − f_inf. step_size: γ, at most ``ef21_step_size``. distortion: G⁰, 0 if the first messages are
    uncompressed gradients.
    """
    _check_run(gap, step_size, distortion)
    require(isinstance(steps, int) and steps >= 1, f"steps={steps} must be a whole number, at least 1.")
    return 2 * gap / (step_size * steps) + distortion / (ef21_theta(contraction) * steps)


@with_python_numbers
def ef21_pl_rate(*, step_size: float, pl: float) -> float:
    """Return 1 − γμ, the factor by which Ψ = f − f* + (γ/θ) G decreases at least in every step."""
    check_positive("step_size", step_size)
    check_positive("pl", pl)
    require(
        step_size * pl < 1,
        f"step_size={step_size:g} times pl={pl:g} must be below 1; use ef21_step_size(…, pl=…).",
    )
    return 1 - step_size * pl


@with_python_numbers
def ef21_distortion_bound(
    *, distortion: float, move_squared: float, mean_smoothness: float, contraction: float
) -> float:
    """Return the bound on G^{t+1}: (1−θ) G^t + β L̃² ‖x^{t+1} − x^t‖²."""
    require(
        distortion >= 0 and move_squared >= 0,
        f"distortion={distortion:g} and move_squared={move_squared:g} must not be negative: they are squares.",
    )
    check_positive("mean_smoothness", mean_smoothness)
    return (1 - ef21_theta(contraction)) * distortion + ef21_beta(contraction) * mean_smoothness**2 * move_squared


def _check_run(gap: float, step_size: float, distortion: float) -> None:
    require(gap >= 0, f"gap={gap:g} must not be negative: it is f(x⁰) − f_inf, with f_inf a lower bound of f.")
    require(distortion >= 0, f"distortion={distortion:g} must not be negative: it is a mean of squares.")
    check_positive("step_size", step_size)


def _check_contraction(contraction: float) -> None:
    require(
        0 < contraction <= 1,
        f"contraction={contraction:g} must be above 0 and at most 1: it is α in E‖C(x) − x‖² ≤ (1−α)‖x‖², "
        f"k/d for Top-k and 1/(1+ω) for an unbiased compressor scaled by 1/(1+ω).",
    )
