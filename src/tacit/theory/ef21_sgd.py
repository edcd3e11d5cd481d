"""EF21 with stochastic gradients: EF21-SGD (Fatkhullin et al., arXiv 2110.03294).

Rank i sends C(ĝ_i − g_i), ĝ_i the gradient of a batch of B with E ĝ_i = ∇f_i and E‖ĝ_i − ∇f_i‖² ≤ σ²/B. Symbols as in
``tacit.theory.ef21``; θ and β are those of half the contraction, α/2:

    E G^{t+1} ≤ (1−θ) G^t + β L̃² ‖x^{t+1} − x^t‖² + N,          N = (2/α − α/2) σ²/B
    γ ≤ 1/(L + L̃ √(β/θ))     (1/T) Σ E‖∇f(x^t)‖² ≤ 2 (f(x⁰) − f_inf)/(γ T) + G⁰/(θ T) + N/θ

θ ≥ α/4, so the floor N/θ is at most 8 σ²/(α² B): an error of ε² needs batches of the order of σ²/(α² ε²) and T of the
order of L̃/(α ε²), which are the paper's orders. The constants are derived in docs/concepts/theory.md; the
paper has free parameters instead.
"""

from __future__ import annotations

import math

from tacit.errors import require
from tacit.theory.checks import check_not_negative, check_positive, check_whole
from tacit.theory.ef21 import ef21_distortion_bound, ef21_gradient_bound, ef21_step_size, ef21_theta


def ef21_sgd_step_size(*, smoothness: float, mean_smoothness: float, contraction: float) -> float:
    """Return the largest γ that the theorem permits, about half of ``ef21_step_size``; arguments as there."""
    ef21_theta(contraction)  # an error names the given contraction, not half of it
    return ef21_step_size(smoothness=smoothness, mean_smoothness=mean_smoothness, contraction=contraction / 2)


def ef21_sgd_noise(*, variance: float, batch_size: int, contraction: float) -> float:
    """Return N = (2/α − α/2) σ²/B, the distortion that the noise of the batches adds in each step.

    variance: σ² of one sample's gradient. batch_size: B, of each rank.
    """
    ef21_theta(contraction)
    check_not_negative("variance", variance, "a mean of squares")
    check_whole("batch_size", batch_size)
    return (2 / contraction - contraction / 2) * variance / batch_size


def ef21_sgd_distortion_bound(
    *,
    distortion: float,
    move_squared: float,
    mean_smoothness: float,
    contraction: float,
    variance: float,
    batch_size: int,
) -> float:
    """Return the bound on E G^{t+1}: (1−θ) G^t + β L̃² ‖x^{t+1} − x^t‖² + N."""
    noise = ef21_sgd_noise(variance=variance, batch_size=batch_size, contraction=contraction)
    return noise + ef21_distortion_bound(
        distortion=distortion, move_squared=move_squared, mean_smoothness=mean_smoothness, contraction=contraction / 2
    )


def ef21_sgd_gradient_bound(
    *,
    gap: float,
    step_size: float,
    steps: int,
    contraction: float,
    variance: float,
    batch_size: int,
    distortion: float = 0.0,
) -> float:
    """Return the bound on the mean of E‖∇f(x^t)‖² over t = 0 … T−1: 2 gap/(γT) + G⁰/(θT) + N/θ.

    gap: f(x⁰) − f_inf. step_size: γ, at most ``ef21_sgd_step_size``. distortion: E G⁰, σ²/B if the first messages are
    uncompressed.
    """
    noise = ef21_sgd_noise(variance=variance, batch_size=batch_size, contraction=contraction)
    transient = ef21_gradient_bound(
        gap=gap, step_size=step_size, steps=steps, contraction=contraction / 2, distortion=distortion
    )
    return transient + noise / ef21_theta(contraction / 2)


def ef21_sgd_batch_size(*, target: float, variance: float, contraction: float) -> int:
    """Return the smallest B of each rank whose floor N/θ is at most half of ``target``; at most ⌈16 σ²/(α² ε²)⌉.

    target: ε², the required mean of ‖∇f‖². The other half remains for the terms that decrease with T.
    """
    check_positive("target", target)
    floor = ef21_sgd_noise(variance=variance, batch_size=1, contraction=contraction) / ef21_theta(contraction / 2)
    require(math.isfinite(floor / target), f"target={target:g} is too small for variance={variance:g}; raise it.")
    return max(1, math.ceil(2 * floor / target * (1 - 1e-12)))
