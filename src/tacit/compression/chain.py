"""``Chain``: a selection of coordinates whose values are compressed too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.compression.compressor import Compressor, Memory, contraction_of_unbiased
from tacit.compression.nominal import NominalVector
from tacit.compression.sparse import Selector, SparseVector
from tacit.errors import require


@dataclass(frozen=True)
class Chain(Compressor):
    """Two compressors in sequence: ``first`` selects coordinates, ``second`` compresses their values.

    Example: ``Chain(TopK(fraction=0.01), QSGD(bits=8))``. The errors of the two are orthogonal, so α = α₁ α₂; where
    both are unbiased, 1 + ω = (1 + ω₁)(1 + ω₂). Error feedback scales a contractive selection whose values have ω₂ ≥ 1
    (two bits) by 1/(1+ω₂): α = α₁/(1+ω₂). A smaller bucket makes that less small.
    """

    first: Selector
    second: Compressor

    def __post_init__(self) -> None:
        require(
            isinstance(self.first, Selector), f"first={self.first} must select coordinates: TopK, RandomK, BlockTopK."
        )
        require(
            isinstance(self.second, Compressor) and not isinstance(self.second, Selector | Chain),
            f"second={self.second} must compress all values: QSGD, BFloat16, Sign, Dense.",
        )
        require(not self.second.needs_reference, f"second={self.second} needs a reference; chain QSGD instead.")
        both = (self.first, self.second)
        object.__setattr__(self, "is_deterministic", all(part.is_deterministic for part in both))
        object.__setattr__(self, "is_unbiased", all(part.is_unbiased for part in both))

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> SparseVector:
        indices, values = self.first.select(x, random, shapes)
        message = self.second.compress(values, random, memory)
        return SparseVector.of(indices, message if message.is_owned else message.snapshot()).owned()

    def nominal_size_bytes(
        self, numbers: int, dtype: torch.dtype = torch.float32, shapes: Sequence[torch.Size] = ()
    ) -> int:
        values = NominalVector.of(self.second, self.first.most(numbers), dtype)
        return self.first.nominal_vector(numbers, values).size_bytes

    def contraction(self, dimension: int) -> float | None:
        most = self.first.most(dimension)
        return self._contraction(
            self.variance(dimension), self.first.contraction(dimension), self.second.contraction(most)
        )

    def variance(self, dimension: int) -> float | None:
        return _variance(self.first.variance(dimension), self.second.variance(self.first.most(dimension)))

    def contracting_scale(self, dimension: int) -> float | None:
        known, omega = super().contracting_scale(dimension), self.second.variance(self.first.most(dimension))
        if known is not None or omega is None or self.first.contraction(dimension) is None:
            return known
        return 1.0 / (1.0 + omega)

    def contraction_within(self, dimension: int) -> float | None:
        omega = self.variance_within(dimension)
        most = self.first.most(dimension)
        return self._contraction(omega, self.first.contraction_within(dimension), self.second.contraction_within(most))

    def variance_within(self, dimension: int) -> float | None:
        most = self.first.most(dimension)
        return _variance(self.first.variance_within(dimension), self.second.variance_within(most))

    def _contraction(self, omega: float | None, selecting: float | None, sending: float | None) -> float | None:
        if omega is not None or self.first.is_unbiased:
            return None if omega is None else contraction_of_unbiased(omega)
        return None if selecting is None or sending is None else selecting * sending


def _variance(selecting: float | None, sending: float | None) -> float | None:
    return None if selecting is None or sending is None else (1 + selecting) * (1 + sending) - 1
