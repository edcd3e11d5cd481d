"""E[X_{k:P}]: the mean time until k of P workers that start together have finished one step.

    identical workers       ∫₀¹ q(v) v^{P−k} (1−v)^{k−1} dv / B(P−k+1, k),   q(v): the time exceeded with probability v
    Δ + exp(mean m)         Δ + m (H_P − H_{P−k}),   H_n = 1 + 1/2 + … + 1/n
    Pareto(x_m, a)          x_m Γ(P+1) Γ(P−k+1−1/a) / (Γ(P−k+1) Γ(P+1−1/a)),   infinite unless a (P−k+1) > 1
    any workers             ∫₀^∞ P(fewer than k have finished by t) dt

The first integral is over w = log(v/(1−v)), where its integrand is smooth and bell-shaped and the trapezoidal rule
converges geometrically. scipy is not used: ``scipy.integrate.quad`` agrees to 2e-15 and was slower in 7 of 8 cases, and
up to P = 10,000 ``digamma`` has an error of 2e-12 in H_P − H_{P−k}, the sum one of 4e-15.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from tacit.cluster.delays import Constant, Delay, Exponential, Pareto, Recorded, Seconds, ShiftedExponential
from tacit.core.specs import with_python_numbers
from tacit.errors import require
from tacit.theory.checks import SpeedGroups, check_whole, group_by_speed
from tacit.theory.times.counting import fewer_than

_POINTS: Final = 4001
_NODES: Final = 16_001


@with_python_numbers
def order_statistic(compute: Delay, *, k: int, workers: int, speed: Mapping[int, float] | None = None) -> float:
    """Return the mean of the ``k``-th smallest of ``workers`` independent times; it can be infinite.

    speed: as in ``Cluster``, {3: 0.2} if worker 3 is five times slower. Exact for identical workers with exponential,
    shifted exponential, Pareto, constant and recorded times; otherwise by quadrature, to about 1e-10 for identical
    workers and 2e-5 for others.
    """
    by_speed = group_by_speed(workers, speed, compute)
    check_whole("k", k)
    require(k <= workers, f"k={k} must not be above workers={workers}: there is no {k}-th of {workers}.")
    return expected_order_statistic(compute, k, by_speed)


def expected_order_statistic(compute: Delay, k: int, by_speed: SpeedGroups) -> float:
    """Return E[X_{k:P}]; the arguments must be valid."""
    workers, (pace, _) = sum(count for _, count in by_speed), by_speed[0]
    match compute:
        case Constant(mean_s=mean_s):
            times = np.repeat([mean_s / speed for speed, _ in by_speed], [count for _, count in by_speed])
            return float(np.sort(times)[k - 1])
        case Recorded():
            return _between_steps(compute, k, by_speed)
        case Pareto(shape=shape) if shape * (workers - k + 1) <= 1:
            return math.inf
    if len(by_speed) > 1:
        return _between_nodes(compute, k, by_speed)
    match compute:
        case Exponential(mean_s=tail_s):
            return tail_s * _harmonic(workers, k) / pace
        case ShiftedExponential(shift_s=shift_s, tail_mean_s=tail_s):
            return (shift_s + tail_s * _harmonic(workers, k)) / pace
        case Pareto(minimum_s=minimum_s, shape=shape):
            return minimum_s * _pareto(shape, k, workers) / pace
    return by_quadrature(compute, k, workers) / pace


def by_quadrature(compute: Delay, k: int, workers: int) -> float:
    """Return E[X_{k:P}] of identical workers of speed 1, for a smooth distribution with a tail lighter than 1/x²."""
    a, b = workers - k + 1, k
    centre, width = math.log(a / b), math.sqrt(1 / a + 1 / b)
    w = np.linspace(centre - 12 * width - 120 / a, centre + 12 * width + 120 / b, _POINTS)
    logs = -a * np.logaddexp(0, -w) - b * np.logaddexp(0, w)
    weights = np.exp(logs - logs.max())
    times = compute.tail_quantile(np.exp(-np.logaddexp(0, -w)))
    return float((weights * times).sum() / weights.sum())


def _between_nodes(compute: Delay, k: int, by_speed: SpeedGroups) -> float:
    """Return ∫ P(X_{k:P} > t) dt by the trapezoidal rule between quantiles of the times of each speed."""
    shares = np.exp(-np.logaddexp(0, -np.linspace(-160.0, 36.0, _NODES)))
    quantiles = compute.tail_quantile(shares)
    nodes = np.unique(np.concatenate([[0.0], *(quantiles / speed for speed, _ in by_speed)]))
    alive = _survival(compute, k, by_speed, nodes)
    return float(((alive[1:] + alive[:-1]) / 2 * np.diff(nodes)).sum())


def _between_steps(compute: Recorded, k: int, by_speed: SpeedGroups) -> float:
    """Return ∫ P(X_{k:P} > t) dt for recorded times, between which P is constant."""
    nodes = np.unique(np.concatenate([[0.0], *(compute.values / speed for speed, _ in by_speed)]))
    middles = (nodes[1:] + nodes[:-1]) / 2  # at the recorded times themselves rounding decides
    return float((_survival(compute, k, by_speed, middles) * np.diff(nodes)).sum())


def _survival(compute: Delay, k: int, by_speed: SpeedGroups, times_s: Seconds) -> Seconds:
    def law(speed: float) -> Seconds:
        alive = compute.survival(times_s * speed)
        return np.stack([alive, 1 - alive])

    return fewer_than(k, [(law(speed), count) for speed, count in by_speed])


def _harmonic(workers: int, k: int) -> float:
    """Return H_P − H_{P−k}."""
    return sum(1 / n for n in range(workers - k + 1, workers + 1))


def _pareto(shape: float, k: int, workers: int) -> float:
    left = workers - k + 1
    logs = math.lgamma(workers + 1) + math.lgamma(left - 1 / shape) - math.lgamma(left)
    return math.exp(logs - math.lgamma(workers + 1 - 1 / shape))
