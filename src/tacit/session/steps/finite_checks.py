"""Check of what a worker contributes to an exchange: a gradient or model with NaN or infinity is refused at its origin.

It costs one sum per exchange. Without it the sum of all workers would carry NaN to every model, and no worker could
tell whose it was.
"""

from __future__ import annotations

import math

from torch import Tensor

from tacit.core.parameter_layout import Layout
from tacit.errors import NotFinite


def require_finite(rank: int, step: int, what: str, vector: Tensor, layout: Layout) -> None:
    """Raise ``NotFinite`` with the name of a parameter if ``vector`` contains NaN or infinity."""
    if math.isfinite(float(vector.sum())):  # a finite sum has finite terms
        return
    for name, part in layout.split(vector).items():
        wrong = part[~part.isfinite()]
        if wrong.numel():
            raise NotFinite(rank, step, float(wrong[0]), f"{what} of {name}")
