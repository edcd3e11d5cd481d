"""Search for NaN and infinity in a vector, at the cost of one sum."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

_HALVES: Final = (torch.float16, torch.bfloat16)


def has_wrong_numbers(vector: Tensor) -> bool:
    """Return whether ``vector`` contains NaN or infinity."""
    total = vector.sum(dtype=torch.float32 if vector.dtype in _HALVES else None)
    return not (math.isfinite(float(total)) or bool(vector.isfinite().all()))  # a finite sum has finite terms
