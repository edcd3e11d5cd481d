"""How likely a gradient is fresh: computed at the very model it is applied to.

    sync kinds       1
    async            1/P for exponential times: every worker is as likely to be next, also the one that has just got the model
    k-async          K/P for exponential times: K of the P running steps are at the newest model
    k-batch-async    1 − (1 − 1/P)^l for the l-th gradient of an update and exponential times: its worker was among the last l to push

p₀, which the error bounds ask for, is a lower bound on that probability whatever came before. For async it is at least
1/P where times are new shorter than used (hyper-exponential) and at most 1/P where they are new longer than used; with
a fixed part it can be 0.
"""

from __future__ import annotations

from tacit.cluster.delays import Delay, Exponential, HyperExponential
from tacit.core.specs import with_python_numbers
from tacit.errors import require
from tacit.theory.checks import check_whole, crew_of
from tacit.theory.times.update_times import FRESH_KINDS, gradients_of


@with_python_numbers
def fresh_probability(
    kind: str, *, workers: int, compute: Delay, k: int | None = None, push: int | None = None
) -> float:
    """Return the probability that a gradient is fresh: of the ``push``-th of an update, or the mean over all K where it
    is None.

    Exact for the sync kinds whatever the times, and for exponential times; for all others an error says so.
    """
    crew_of(workers, None, compute)
    k = gradients_of(kind, k, workers)
    if push is not None:
        check_whole("push", push)
        require(push <= k, f"push={push} must not be above k={k}: an update has that many gradients.")
    if kind in FRESH_KINDS:
        return 1.0
    require(
        isinstance(compute, Exponential),
        f"compute={compute}: no exact probability is known for kind={kind!r} but with Exponential times; "
        f"p0 gives a lower bound, and a simulation's staleness the rest.",
    )
    if kind == "k-async":
        return k / workers
    stale = [(1 - 1 / workers) ** each for each in ([push] if push else range(1, k + 1))]
    return 1 - sum(stale) / len(stale)


@with_python_numbers
def p0(kind: str, *, workers: int, compute: Delay, k: int | None = None) -> float:
    """Return the largest lower bound on a gradient's probability to be fresh that is proven: 0 for most times of the
    stale kinds.
    """
    crew_of(workers, None, compute)
    k = gradients_of(kind, k, workers)
    if kind in FRESH_KINDS:
        return 1.0
    if kind == "k-async" and (k == workers or isinstance(compute, Exponential)):
        return k / workers
    if isinstance(compute, Exponential) or (k == 1 and isinstance(compute, HyperExponential)):
        return 1 / workers
    return 0.0
