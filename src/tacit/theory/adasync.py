"""AdaSync's rules for K during a run (Dutta, Wang & Joshi, IEEE JSAIT 2021, arXiv 2003.10579).

Over an interval of t seconds the bound on the mean ‖∇F‖² is u(K) = 2 F E[T_K]/(η t) + L η σ²/(m K), F the loss at its
start. Its minimum:

    "square-root"    E[T_K] = K/(P μ), the batch kinds:                      K = K_0 √(F_0/F)
    "quadratic"      E[T_K] = log(P/(P−K))/μ, K-sync and K-async under exp:  K²/(P−K) = A,  A = K_0²/(P−K_0) · F_0/F,
                                                                             K = (−A + √(A² + 4 A P))/2, always below P

We do not know which of the two the paper prints for K-async; the derivation gives the quadratic one. They differ little
while K ≪ P.
"""

from __future__ import annotations

import math
from typing import Final

from tacit.core.specs import with_python_numbers
from tacit.errors import nearest, require
from tacit.theory.checks import check_whole

RULES: Final = ("square-root", "quadratic")


@with_python_numbers
def next_k(rule: str, initial: int, workers: int, loss_ratio: float) -> float:
    """Return K for a loss of 1/``loss_ratio`` of the initial loss; neither rounded nor limited to P.

    rule: "square-root" or "quadratic". initial: K_0. loss_ratio: F_0/F, of losses above F* if F* is known; larger =
    larger K; may be infinite.
    """
    require(rule in RULES, f"rule={rule!r} is unknown{nearest(rule, RULES)}")
    check_whole("initial", initial)
    check_whole("workers", workers)
    require(
        initial <= workers, f"initial={initial} must not be above workers={workers}; start small, AdaSync increases it."
    )
    require(
        loss_ratio > 0,
        f"loss_ratio={loss_ratio:g} must be positive: it is F_0/F of losses above their minimum f_star.",
    )
    if rule == "square-root":
        return initial * math.sqrt(loss_ratio)
    require(
        initial < workers,
        f"initial={initial} must be below workers={workers} for rule='quadratic', which does not change K = P; "
        f"lower initial, or use 'square-root'.",
    )
    a = initial**2 / (workers - initial) * loss_ratio
    return 2 * workers / (1 + math.sqrt(1 + 4 * workers / a))  # the same root, without cancellation for large A
