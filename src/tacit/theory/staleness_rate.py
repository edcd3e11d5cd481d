"""Error bound for a learning rate that decreases with staleness (Dutta et al., AISTATS 2018, arXiv 1803.01113).

    η_j = min(C/‖w_j − w_τ(j)‖², η_max)   ⇒   E[η_j ‖w_j − w_τ(j)‖²] ≤ C

With this condition no γ is assumed. The condition is the paper's. The constants are derived here for F L-smooth,
batches of m with E‖g − ∇F‖² ≤ σ²/m + (M_G/m) ‖∇F‖², K gradients per update, each with its own rate that does not depend
on its noise, and η_max ≤ 1/(L (M_G/(K m) + 1)):

    Σ_j E[η_j ‖∇F(w_j)‖²] / Σ_j E[η_j]  ≤  (2 (F(w_0) − F*) + J L² C) / Σ_j E[η_j] + L σ² η_max/(K m)

η_j is the mean of the K rates of update j. docs/concepts/theory.md has the derivation. Under strong convexity or PL,
‖∇F‖² ≥ 2c (F − F*), so the mean of F(w_j) − F* with the same weights is at most 1/(2c) of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tacit.errors import require
from tacit.theory.checks import check_positive, check_whole, counted
from tacit.theory.server_bounds import Objective


def staleness_rate_bound(
    *, rates: ArrayLike, c: float, maximum: float, objective: Objective, batch_size: int, k: int = 1
) -> float:
    """Return the bound on the mean of ‖∇F(w_j)‖² over all updates, weighted by their rates.

    rates: E[η_j] of each update, such as means over runs; for an update the mean of its K rates. c, maximum: as in
    ``StalenessRate``; larger c = staler gradients at full rate. k: gradients per update, 1 for async.
    """
    check_positive("c", c)
    check_positive("maximum", maximum)
    check_whole("k", k)
    check_whole("batch_size", batch_size)
    most = 1 / (objective.smoothness * (objective.variance_growth / (k * batch_size) + 1))
    require(
        maximum <= most * (1 + 1e-9),
        f"maximum={maximum:g} must not be above 1/(L (M_G/(K m) + 1)) = {most:g}, the limit of the theorem; lower it.",
    )
    each = np.atleast_1d(counted("rates", rates))
    largest, total = float(each.max(initial=0.0)), float(each.sum())
    require(total > 0, "rates must hold at least one positive rate: otherwise the model does not change.")
    require(
        largest <= maximum * (1 + 1e-9),
        f"rates={largest:g} must not be above maximum={maximum:g}; set maximum to the η_max of the run.",
    )
    stale = each.size * objective.smoothness**2 * c
    noise = objective.smoothness * objective.variance * maximum / (k * batch_size)
    return (2 * objective.gap + stale) / total + noise
