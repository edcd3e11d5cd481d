"""Seconds per update of a server that waits for K of P (Dutta et al., AISTATS 2018, arXiv 1803.01113).

X: time of one mini-batch. X_{K:P}: the K-th smallest of P.   H_n = 1 + 1/2 + … + 1/n.

    kind             general X                                     exp(mean m)            Δ + exp(mean m)
    sync             E[X_{P:P}]                                    m H_P                  Δ + m H_P
    k-sync           E[X_{K:P}]                                    m (H_P − H_{P−K})      Δ + m (H_P − H_{P−K})
    k-batch-sync     K-th end of P renewals, all begun afresh      K m / P                numerically
    async            E[X] / P                                      m / P                  (Δ + m) / P
    k-async          between bounds                                m (H_P − H_{P−K})      between bounds
    k-batch-async    K E[X] / P                                    K m / P                K (Δ + m) / P

Messages take no time here, and cancelled steps end at once. K-async is exact for exponential and hyper-exponential
times (each kind of step is memoryless), for constant ones from a common start (E[X] / ⌊P/K⌋), and for K = 1 and K = P.
For all others a simulation gives E[T] to a fraction of a percent (``method="simulated"``), and these bounds are proven:

    K E[X]/P ≤ E[T] ≤ E[X_{K:K}]      nobody is faster than never waiting; the K who have just begun are all done by then
    E[T] ≤ E[X_{K:P}]                 new longer than used: what is left of a step is shorter than a new one
    E[T] ≥ E[X_{K:P}]                 new shorter than used: longer
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from tacit.cluster.delays import Constant, Delay, Exponential, HyperExponential, ShiftedExponential, SlowSpells
from tacit.core.specs import with_python_numbers
from tacit.errors import nearest, require
from tacit.theory.checks import Crew, check_whole, crew_of, never_waiting_s
from tacit.theory.times.hyper_exponential import k_async_time
from tacit.theory.times.order_statistics import expected_order_statistic
from tacit.theory.times.renewals import expected_kth_batch
from tacit.theory.times.simulated import simulated_k_async_time

FRESH_KINDS: Final = ("sync", "k-sync", "k-batch-sync")
STALE_KINDS: Final = ("async", "k-async", "k-batch-async")
_NEW_LONGER_THAN_USED: Final = (Constant, Exponential, ShiftedExponential)
_NEW_SHORTER_THAN_USED: Final = (Exponential, HyperExponential)


class TimeBounds(NamedTuple):
    """Between what the expected seconds per update lie; equal where they are known."""

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

    kind: "sync", "k-sync", "k-batch-sync", "async", "k-async" or "k-batch-async". k: larger = fewer, better updates; of
    batches it may be above P. speed: as in ``Cluster``, {3: 0.2} for a worker 3 that is five times slower. method:
    "exact" raises an error where no exact value is known (K-async for most times). "simulated" is for async and
    K-async: 50,000 updates of 32 workers take about 0.2 s; equal ``seed``, equal result. The standard error is about
    0.3 % for times with a coefficient of variation of 1; it grows with that coefficient, and without a variance
    (``Pareto`` with shape ≤ 2) expect a few percent.
    """
    require(method in ("exact", "simulated"), f"method={method!r} is unknown; 'exact' or 'simulated'.")
    if method == "simulated":
        return _simulated(kind, gradients_of(kind, k, workers), compute, crew_of(workers, speed, compute), seed)
    bounds = update_time_bounds(kind, workers=workers, compute=compute, k=k, speed=speed)
    require(
        bounds.lower_s == bounds.upper_s,
        f"kind={kind!r} has no known exact time for compute={compute}: it lies between {bounds.lower_s:.4g} and {bounds.upper_s:.4g} s; "
        f"update_time_bounds returns both, and update_time(…, method='simulated') estimates it.",
    )
    return bounds.lower_s


@with_python_numbers
def update_time_bounds(
    kind: str, *, workers: int, compute: Delay, k: int | None = None, speed: Mapping[int, float] | None = None
) -> TimeBounds:
    """Return what the expected seconds per update lie between; arguments as of ``update_time``."""
    crew = crew_of(workers, speed, compute)
    k = gradients_of(kind, k, workers)
    exact_s = _exact(kind, k, workers, compute, crew)
    bounds = TimeBounds(exact_s, exact_s) if exact_s is not None else _k_async_bounds(k, compute, crew)
    require(
        math.isfinite(bounds.upper_s),
        f"compute={compute} makes the expected time of kind={kind!r} with k={k} of {workers} infinite; "
        f"wait for fewer (a smaller k, not in an asynchronous kind), or give times with a lighter tail.",
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
    """Return how many updates of ``kind`` fit into one of ``over``; ``k`` goes to those of the two that have one.

    Async over sync: P E[X_{P:P}] / E[X], which is P H_P for exponential times.
    """
    fast_s, slow_s = (
        update_time(each, workers=workers, compute=compute, k=k if each.startswith("k-") else None, speed=speed)
        for each in (kind, over)
    )
    return slow_s / fast_s


def gradients_of(kind: str, k: int | None, workers: int) -> int:
    """Return K, the gradients in one update, after checking that ``kind`` may have it."""
    require(kind in FRESH_KINDS + STALE_KINDS, f"kind={kind!r} is unknown{nearest(kind, FRESH_KINDS + STALE_KINDS)}")
    if kind in ("sync", "async"):
        only = workers if kind == "sync" else 1
        require(k in (None, only), f"k={k} with kind={kind!r} must be {only} or left out; 'k-{kind}' takes any.")
        return only
    if k is None:
        raise ValueError(f"k=None: kind={kind!r} needs to know how many gradients make an update.")
    check_whole("k", k)
    require(
        "batch" in kind or k <= workers,
        f"k={k} must not be above workers={workers}: every worker counts once; {kind.replace('k-', 'k-batch-')!r} counts batches.",
    )
    return k


def _exact(kind: str, k: int, workers: int, compute: Delay, crew: Crew) -> float | None:
    match kind:
        case "sync" | "k-sync":
            return expected_order_statistic(compute, k, crew)
        case "k-batch-sync":
            return expected_kth_batch(compute, k, crew)
        case "async" | "k-batch-async":
            return never_waiting_s(compute, crew, k)
    if k == 1:
        return never_waiting_s(compute, crew, k)
    if k == workers or isinstance(compute, Exponential):
        return expected_order_statistic(compute, k, crew)
    if len(crew) == 1:
        pace = crew[0][0]
        match compute:
            case Constant(mean_s=mean_s):
                return mean_s / (workers // k) / pace
            case HyperExponential(means_s=means_s, weights=weights):
                time_s = k_async_time(means_s, weights, k, workers)
                return None if time_s is None else time_s / pace
    return None


def _simulated(kind: str, k: int, compute: Delay, crew: Crew, seed: int) -> float:
    require(
        kind in ("async", "k-async"),
        f"method='simulated' is for 'async' and 'k-async'; kind={kind!r} has an exact time, leave method out.",
    )
    require(isinstance(seed, int) and seed >= 0, f"seed={seed} must be a whole number, at least 0.")
    require(
        not isinstance(compute, SlowSpells),
        f"compute={compute} has steps that depend on each other, which this simulation does not model; use tacit.simulate(…, timing_only=True).",
    )
    require(
        math.isfinite(compute.expected_s),
        f"compute={compute} has no finite mean, so updates of kind={kind!r} take infinitely long; give times with one.",
    )
    return max(never_waiting_s(compute, crew, k), simulated_k_async_time(compute, k, crew, seed))


def _k_async_bounds(k: int, compute: Delay, crew: Crew) -> TimeBounds:
    lower_s = never_waiting_s(compute, crew, k)
    first_s = expected_order_statistic(compute, k, crew)
    if isinstance(compute, _NEW_LONGER_THAN_USED):
        return TimeBounds(lower_s, first_s)
    if isinstance(compute, _NEW_SHORTER_THAN_USED):
        lower_s = max(lower_s, first_s)
    return TimeBounds(lower_s, expected_order_statistic(compute, k, _slowest(k, crew)))


def _slowest(k: int, crew: Crew) -> Crew:
    """Return the ``k`` slowest of the workers."""
    chosen: list[tuple[float, int]] = []
    for speed, count in crew:
        taken = min(count, k - sum(n for _, n in chosen))
        if taken:
            chosen.append((speed, taken))
    return tuple(chosen)
