"""The variance among models, estimated from a few numbers of each model.

    s_b = Σ ±x_i over the coordinates i ≡ b (mod m),  b = 0 … m − 1

The signs are drawn for each round, the same on all ranks. A sketch is linear, and ‖s‖² is ‖x‖² on average, with a
relative standard deviation of about √(2/m) at most, unless a few coordinates of one residue outweigh all others (Alon,
Matias & Szegedy 1996; Charikar, Chen & Farach-Colton 2002). So the variance of the sketches estimates the variance of
the models, however strongly the models themselves are compressed. For vectors of at most m numbers it is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

SKETCH_LENGTH: Final = 256
"""m: one kilobyte in float32, and a standard deviation of 9 %."""


def sketch(vector: Tensor, shared_random: np.random.Generator) -> Tensor:
    """Return at most ``SKETCH_LENGTH`` numbers for ``vector``; ``shared_random`` must draw the same on all ranks."""
    vector = vector.to(torch.promote_types(vector.dtype, torch.float32))
    length = vector.numel()
    packed = np.frombuffer(shared_random.bytes((length + 7) // 8), np.uint8)
    signs = torch.from_numpy(np.unpackbits(packed, count=length)).to(vector.device, vector.dtype).mul_(2).sub_(1)
    rows = -(-length // SKETCH_LENGTH)
    if rows <= 1:
        return signs.mul_(vector)
    table = vector.new_zeros(rows * SKETCH_LENGTH)
    torch.mul(signs, vector, out=table[:length])
    return table.view(rows, SKETCH_LENGTH).sum(0)


def variance_of(sketches: Sequence[Tensor], weights: Sequence[float]) -> float:
    """Return the estimate of Σ w_i‖x_i − x̄‖² / Σ w_i, x̄ being the weighted mean; 0 where all weights are 0."""
    table = torch.stack([one.double() for one in sketches])
    shares = table.new_tensor(weights)
    total = float(shares.sum())
    if total == 0.0:
        return 0.0
    shares = (shares / total).unsqueeze(1)
    return float(((table - (shares * table).sum(0)).square() * shares).sum())
