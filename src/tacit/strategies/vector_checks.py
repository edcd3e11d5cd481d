"""Checks that all numbers of a vector are finite, at the cost of one sum."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from tacit.core.worker import Worker
from tacit.errors import NotFinite

_HALVES: Final = (torch.float16, torch.bfloat16)


def has_wrong_numbers(vector: Tensor) -> bool:
    """Return whether ``vector`` contains NaN or infinity."""
    total = vector.sum(dtype=torch.float32 if vector.dtype in _HALVES else None)
    return not (math.isfinite(float(total)) or bool(vector.isfinite().all()))  # a finite sum has finite terms


def require_finite(worker: Worker, what: str, vector: Tensor) -> None:
    """Raise ``NotFinite`` with the name of a parameter if ``vector`` contains NaN or infinity."""
    if math.isfinite(float(vector.sum())):  # a finite sum has finite terms
        return
    for name, part in worker.layout.split(vector).items():
        wrong = part[~part.isfinite()]
        if wrong.numel():
            raise NotFinite(worker.rank, worker.step + 1, float(wrong[0]), f"{what} of {name}")
