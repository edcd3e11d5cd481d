"""How far models are apart, from a few numbers of each.

    s = Σ over the coordinates i ≡ b (mod m) of ±x_i,  for b = 0 … m − 1, the signs being drawn anew each time and the same on all ranks

A sketch is linear, and ‖s‖² is on average ‖x‖², with a relative standard deviation of about √(2/m) at most, unless a
few coordinates of one residue outweigh all others (Alon, Matias & Szegedy 1996; Charikar, Chen & Farach-Colton 2002).
So the variance of the ranks' sketches estimates that of their models, however little of the models themselves is said.
Vectors of at most m numbers are told exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

NUMBERS: Final = 256
"""m: a kilobyte, and 9 % of standard deviation."""


def sketch(vector: Tensor, shared_random: np.random.Generator) -> Tensor:
    """Return at most ``NUMBERS`` numbers that stand for ``vector``; all ranks must draw alike from ``shared_random``."""
    vector = vector.to(torch.promote_types(vector.dtype, torch.float32))
    numbers = vector.numel()
    packed = np.frombuffer(shared_random.bytes((numbers + 7) // 8), np.uint8)
    signs = torch.from_numpy(np.unpackbits(packed, count=numbers)).to(vector.device, vector.dtype).mul_(2).sub_(1)
    rows = -(-numbers // NUMBERS)
    if rows <= 1:
        return signs.mul_(vector)
    table = vector.new_zeros(rows * NUMBERS)
    torch.mul(signs, vector, out=table[:numbers])
    return table.view(rows, NUMBERS).sum(0)


def variance_of(sketches: Sequence[Tensor], weights: Sequence[float]) -> float:
    """Return the estimate of Σ w_i‖x_i − x̄‖² / Σ w_i, x̄ being the weighted mean."""
    table = torch.stack([one.double() for one in sketches])
    shares = table.new_tensor(weights)
    total = float(shares.sum())
    if total == 0.0:
        return 0.0
    shares = (shares / total).unsqueeze(1)
    return float(((table - (shares * table).sum(0)).square() * shares).sum())
