"""Expected seconds per update of K-of-P servers (Dutta et al., AISTATS 2018, arXiv 1803.01113).

X: time of one mini-batch. X_{K:P}: the K-th smallest of P.   H_n = 1 + 1/2 + … + 1/n.

    kind             general X                                     exp(mean m)            Δ + exp(mean m)
    sync             E[X_{P:P}]                                    m H_P                  Δ + m H_P
    k-sync           E[X_{K:P}]                                    m (H_P − H_{P−K})      Δ + m (H_P − H_{P−K})
    k-batch-sync     K-th event of P renewal processes             K m / P                numerically
    async            E[X] / P                                      m / P                  (Δ + m) / P
    k-async          between bounds                                m (H_P − H_{P−K})      between bounds
    k-batch-async    K E[X] / P                                    K m / P                K (Δ + m) / P

Messages take no time in this model, and cancelled steps end at once. K-async is exact for exponential and
hyper-exponential times (each kind of step is memoryless), for constant times from a common start (E[X] / ⌊P/K⌋), and
for K = 1 and K = P. For other times a simulation gives E[T] to a fraction of a percent (``method="simulated"``), and
these bounds are proven:

    K E[X]/P ≤ E[T] ≤ E[X_{K:K}]      lower: no worker waits; upper: the K newest steps have all finished
    E[T] ≤ E[X_{K:P}]                 new longer than used: the rest of a step is shorter than a new one
    E[T] ≥ E[X_{K:P}]                 new shorter than used: the rest of a step is longer than a new one
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from tacit.cluster.delays import Constant, Delay, Exponential, HyperExponential, ShiftedExponential, SlowSpells
from tacit.core.specs import with_python_numbers
from tacit.errors import nearest, require
from tacit.theory.checks import SpeedGroups, check_whole, group_by_speed, time_without_waiting_s
from tacit.theory.times.hyper_exponential import k_async_time
from tacit.theory.times.order_statistics import expected_order_statistic
from tacit.theory.times.renewals import expected_kth_batch
from tacit.theory.times.simulated import simulated_k_async_time

FRESH_KINDS: Final = ("sync", "k-sync", "k-batch-sync")
STALE_KINDS: Final = ("async", "k-async", "k-batch-async")
_NEW_LONGER_THAN_USED: Final = (Constant, Exponential, ShiftedExponential)
_NEW_SHORTER_THAN_USED: Final = (Exponential, HyperExponential)


class TimeBounds(NamedTuple):
    """Lower and upper bound of the expected seconds per update; equal if the value is known."""

    lower_s: float
    upper_s: float


@with_python_numbers
def update_time(
    kind: str,
    *,
    workers: int,
    compute: Delay,
    k: int | None = None,
    speed: Mapping[int, float] | None = None,
    method: str = "exact",
    seed: int = 0,
) -> float:
    """Return the expected seconds per update, in the long run.

    kind: "sync", "k-sync", "k-batch-sync", "async", "k-async" or "k-batch-async". k: larger = fewer, better updates;
    for the batch kinds it may be above P. speed: as in ``Cluster``, {3: 0.2} if worker 3 is five times slower. method:
    "exact" raises an error if no exact value is known (K-async for most delays). "simulated" is for async and K-async:
    50,000 updates of 32 workers take about 0.2 s; equal ``seed``, equal result. The standard error is about 0.3 % for
    times with a coefficient of variation of 1 and grows with it; without a variance (``Pareto`` with shape ≤ 2) it is
    a few percent.
    """
    require(method in ("exact", "simulated"), f"method={method!r} is unknown; use 'exact' or 'simulated'.")
    if method == "simulated":
        return _simulated(kind, gradients_of(kind, k, workers), compute, group_by_speed(workers, speed, compute), seed)
    bounds = update_time_bounds(kind, workers=workers, compute=compute, k=k, speed=speed)
    require(
        bounds.lower_s == bounds.upper_s,
        f"kind={kind!r} has no known exact time for compute={compute}: it lies between {bounds.lower_s:.4g} and "
        f"{bounds.upper_s:.4g} s; use update_time_bounds for both, or update_time(…, method='simulated').",
    )
    return bounds.lower_s


@with_python_numbers
def update_time_bounds(
    kind: str, *, workers: int, compute: Delay, k: int | None = None, speed: Mapping[int, float] | None = None
) -> TimeBounds:
    """Return bounds of the expected seconds per update; arguments as in ``update_time``."""
    by_speed = group_by_speed(workers, speed, compute)
    k = gradients_of(kind, k, workers)
    exact_s = _exact(kind, k, workers, compute, by_speed)
    bounds = TimeBounds(exact_s, exact_s) if exact_s is not None else _k_async_bounds(k, compute, by_speed)
    require(
        math.isfinite(bounds.upper_s),
        f"compute={compute} makes the expected time of kind={kind!r} with k={k} of {workers} infinite; "
        f"lower k in a synchronous kind, or use times with a lighter tail.",
    )
    return bounds


@with_python_numbers
def speed_up(
    kind: str,
    *,
    over: str,
    workers: int,
    compute: Delay,
    k: int | None = None,
    speed: Mapping[int, float] | None = None,
) -> float:
    """Return the time per update of ``over`` divided by that of ``kind``; ``k`` applies to those that take one.

    Async over sync: P E[X_{P:P}] / E[X], which is P H_P for exponential times.
    """
    fast_s, slow_s = (
        update_time(each, workers=workers, compute=compute, k=k if each.startswith("k-") else None, speed=speed)
        for each in (kind, over)
    )
    return slow_s / fast_s


def gradients_of(kind: str, k: int | None, workers: int) -> int:
    """Check that ``kind`` permits ``k``; return K, the number of gradients per update."""
    require(kind in FRESH_KINDS + STALE_KINDS, f"kind={kind!r} is unknown{nearest(kind, FRESH_KINDS + STALE_KINDS)}")
    if kind in ("sync", "async"):
        only = workers if kind == "sync" else 1
        require(k in (None, only), f"k={k} with kind={kind!r} must be {only} or omitted; 'k-{kind}' takes any.")
        return only
    if k is None:
        raise ValueError(f"k=None: kind={kind!r} needs the number of gradients per update.")
    check_whole("k", k)
    require(
        "batch" in kind or k <= workers,
        f"k={k} must not be above workers={workers}: every worker counts once; "
        f"use {kind.replace('k-', 'k-batch-')!r} to count batches.",
    )
    return k


def _exact(kind: str, k: int, workers: int, compute: Delay, by_speed: SpeedGroups) -> float | None:
    match kind:
        case "sync" | "k-sync":
            return expected_order_statistic(compute, k, by_speed)
        case "k-batch-sync":
            return expected_kth_batch(compute, k, by_speed)
        case "async" | "k-batch-async":
            return time_without_waiting_s(compute, by_speed, k)
    if k == 1:
        return time_without_waiting_s(compute, by_speed, k)
    if k == workers or isinstance(compute, Exponential):
        return expected_order_statistic(compute, k, by_speed)
    if len(by_speed) == 1:
        pace = by_speed[0][0]
        match compute:
            case Constant(mean_s=mean_s):
                return mean_s / (workers // k) / pace
            case HyperExponential(means_s=means_s, weights=weights):
                time_s = k_async_time(means_s, weights, k, workers)
                return None if time_s is None else time_s / pace
    return None


def _simulated(kind: str, k: int, compute: Delay, by_speed: SpeedGroups, seed: int) -> float:
    require(
        kind in ("async", "k-async"),
        f"method='simulated' is for 'async' and 'k-async'; kind={kind!r} has an exact time, omit method.",
    )
    require(isinstance(seed, int) and seed >= 0, f"seed={seed} must be a whole number, at least 0.")
    require(
        not isinstance(compute, SlowSpells),
        f"compute={compute} has steps that depend on each other, which this simulation does not model; "
        f"use tacit.simulate(…, timing_only=True).",
    )
    require(
        math.isfinite(compute.expected_s),
        f"compute={compute} has no finite mean, so kind={kind!r} takes infinitely long; use times with a finite mean.",
    )
    return max(time_without_waiting_s(compute, by_speed, k), simulated_k_async_time(compute, k, by_speed, seed))


def _k_async_bounds(k: int, compute: Delay, by_speed: SpeedGroups) -> TimeBounds:
    lower_s = time_without_waiting_s(compute, by_speed, k)
    first_s = expected_order_statistic(compute, k, by_speed)
    if isinstance(compute, _NEW_LONGER_THAN_USED):
        return TimeBounds(lower_s, first_s)
    if isinstance(compute, _NEW_SHORTER_THAN_USED):
        lower_s = max(lower_s, first_s)
    return TimeBounds(lower_s, expected_order_statistic(compute, k, _slowest(k, by_speed)))


def _slowest(k: int, by_speed: SpeedGroups) -> SpeedGroups:
    """Return the ``k`` slowest workers."""
    chosen: list[tuple[float, int]] = []
    for speed, count in by_speed:
        taken = min(count, k - sum(n for _, n in chosen))
        if taken:
            chosen.append((speed, taken))
    return tuple(chosen)
