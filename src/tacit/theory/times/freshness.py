"""Probability that a gradient is fresh: computed at the model that it is applied to.

    sync kinds       1
    async            1/P for exponential times: the next push is equally likely from all workers
    k-async          K/P for exponential times: K of the P running steps are at the newest model
    k-batch-async    1 − (1 − 1/P)^l for exponential times and the l-th gradient of an update: its worker was among the
                     last l that pushed

The error bounds need p₀, a lower bound on this probability given any past. For async it is at least 1/P if times are
new shorter than used (hyper-exponential) and at most 1/P if they are new longer than used. If times have a constant
part, it can be 0.
"""

from __future__ import annotations

from tacit.cluster.delays import Delay, Exponential, HyperExponential
from tacit.core.specs import with_python_numbers
from tacit.errors import require
from tacit.theory.checks import check_whole, group_by_speed
from tacit.theory.times.update_times import FRESH_KINDS, gradients_of


@with_python_numbers
def fresh_probability(
    kind: str, *, workers: int, compute: Delay, k: int | None = None, push: int | None = None
) -> float:
    """Return the probability that a gradient is fresh.

    push: which gradient of an update; None: the mean over all K. Exact for the sync kinds with any times, and for
    exponential times; raise an error otherwise.
    """
    group_by_speed(workers, None, compute)
    k = gradients_of(kind, k, workers)
    if push is not None:
        check_whole("push", push)
        require(push <= k, f"push={push} must not be above k={k}: an update has that many gradients.")
    if kind in FRESH_KINDS:
        return 1.0
    require(
        isinstance(compute, Exponential),
        f"compute={compute}: an exact probability for kind={kind!r} is known only for Exponential times; "
        f"use p0 for a lower bound, or the staleness of a simulation.",
    )
    if kind == "k-async":
        return k / workers
    stale = [(1 - 1 / workers) ** each for each in ([push] if push else range(1, k + 1))]
    return 1 - sum(stale) / len(stale)


@with_python_numbers
def p0(kind: str, *, workers: int, compute: Delay, k: int | None = None) -> float:
    """Return the largest proven lower bound on the probability that a gradient is fresh; often 0 for stale kinds."""
    group_by_speed(workers, None, compute)
    k = gradients_of(kind, k, workers)
    if kind in FRESH_KINDS:
        return 1.0
    if kind == "k-async" and (k == workers or isinstance(compute, Exponential)):
        return k / workers
    if isinstance(compute, Exponential) or (k == 1 and isinstance(compute, HyperExponential)):
        return 1 / workers
    return 0.0
