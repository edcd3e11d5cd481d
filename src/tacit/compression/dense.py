"""Compressors that send every number: ``Dense`` without loss, ``BFloat16`` in two bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from tacit.compression.compressor import (
    FLOATS,
    Compressed,
    Compressor,
    Memory,
    absent,
    require_finite,
    require_tensor,
    require_vector,
)
from tacit.compression.kernels.magnitudes import peak
from tacit.errors import require

_LARGEST: Final = torch.finfo(torch.bfloat16).max
DTYPES: Final = {str(dtype).removeprefix("torch."): dtype for dtype in FLOATS}


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype in messages, a key of ``DTYPES``."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class DenseVector(Compressed, wire="dense"):
    """All numbers."""

    values: Tensor

    def __post_init__(self) -> None:
        require_tensor("values", self.values)

    @property
    def numbers(self) -> int:
        return self.values.numel()

    def dense(self, reference: Tensor | None = None) -> Tensor:
        return self.values.clone()


@dataclass(frozen=True)
class BFloat16Vector(Compressed, wire="bf16"):
    """All numbers, rounded to bfloat16."""

    values: Tensor
    dtype: str  # of the vector

    def __post_init__(self) -> None:
        require_tensor("values", self.values, (torch.bfloat16,))
        require(self.dtype in DTYPES, f"dtype={self.dtype!r} must be one of {', '.join(DTYPES)}.")

    @property
    def numbers(self) -> int:
        return self.values.numel()

    def dense(self, reference: Tensor | None = None) -> Tensor:
        return self.values.to(DTYPES[self.dtype], copy=True)


@dataclass(frozen=True)
class Dense(Compressor):
    """No compression: every number without loss."""

    is_unbiased: ClassVar[bool] = True

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> DenseVector:
        require_vector(x)
        require_finite(x)
        return DenseVector(x.detach())

    def nominal_size_bytes(
        self, numbers: int, dtype: torch.dtype = torch.float32, shapes: Sequence[torch.Size] = ()
    ) -> int:
        return DenseVector(absent(numbers, dtype)).size_bytes

    def contraction(self, dimension: int) -> float:
        return 1.0

    def variance(self, dimension: int) -> float:
        return 0.0


@dataclass(frozen=True)
class BFloat16(Compressor):
    """Every number rounded to bfloat16: two bytes each, eight bits of significand.

    α = 1 − 2⁻¹⁶ for numbers in its normal range, 10⁻³⁸ to 3.4·10³⁸; smaller ones lose digits, larger ones (of float64)
    raise ``ValueError``.
    """

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> BFloat16Vector:
        require_vector(x)
        largest = peak(x.detach())
        values = x.detach().to(torch.bfloat16, copy=True)
        if largest > _LARGEST:
            require(largest <= torch.finfo(torch.float32).max, f"{largest:.6g} is too large for bfloat16; use Dense().")
            values.clamp_(-_LARGEST, _LARGEST)  # the last half step of float32 would round to infinity
        return BFloat16Vector(values, name_of(x.dtype)).owned()

    def nominal_size_bytes(
        self, numbers: int, dtype: torch.dtype = torch.float32, shapes: Sequence[torch.Size] = ()
    ) -> int:
        return BFloat16Vector(absent(numbers, torch.bfloat16), name_of(dtype)).size_bytes

    def contraction(self, dimension: int) -> float:
        return 1 - 2.0**-16
