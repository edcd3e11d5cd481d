"""Check of a vector before it is compressed: all its numbers are finite."""

from __future__ import annotations

import math

from torch import Tensor

from tacit.core.worker import Worker
from tacit.errors import NotFinite


def require_finite(worker: Worker, what: str, vector: Tensor) -> None:
    """Raise ``NotFinite`` with the name of a parameter if ``vector`` contains NaN or infinity."""
    if math.isfinite(float(vector.sum())):  # a finite sum has finite terms
        return
    for name, part in worker.layout.split(vector).items():
        wrong = part[~part.isfinite()]
        if wrong.numel():
            raise NotFinite(worker.rank, worker.step + 1, float(wrong[0]), f"{what} of {name}")
