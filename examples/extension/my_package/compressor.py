"""A compressor that keeps large numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import tacit
from tacit.compression.compressor import Memory, require_finite


@dataclass(frozen=True, kw_only=True)
class Relative(tacit.Compressor):
    """Send the numbers that are at least ``share`` of the largest."""

    share: float = 0.5

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> tacit.Compressed:
        require_finite(x)
        largest = x.abs().max() if x.numel() else 0.0
        kept = torch.where(x.abs() >= self.share * largest, x, 0)
        return tacit.TopK(fraction=1.0).compress(kept, random)  # its messages hold no zeros

    def contraction(self, dimension: int) -> float:
        return 1 / max(1, dimension)  # the largest number is always sent
