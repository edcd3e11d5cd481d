"""Check of what a worker contributes to an exchange: a gradient or model with NaN or infinity is refused at its origin.

It costs one sum per exchange. Without it the sum of all workers would carry NaN to every model, and no worker could
tell whose it was.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from tacit.core.parameter_layout import Layout
from tacit.errors import NotFinite

_HALVES: Final = (torch.float16, torch.bfloat16)


def has_wrong_numbers(vector: Tensor) -> bool:
    """Return whether ``vector`` contains NaN or infinity."""
    total = vector.sum(dtype=torch.float32 if vector.dtype in _HALVES else None)
    return not (math.isfinite(float(total)) or bool(vector.isfinite().all()))  # a finite sum has finite terms


def require_finite(rank: int, step: int, what: str, vector: Tensor, layout: Layout) -> None:
    """Raise ``NotFinite`` with the name of a parameter if ``vector``, ``what`` of ``rank``, contains NaN or infinity."""
    if not has_wrong_numbers(vector):
        return
    for name, part in layout.split(vector).items():
        wrong = part[~part.isfinite()]
        if wrong.numel():
            raise NotFinite(rank, step, float(wrong[0]), f"{what} of {name}")
