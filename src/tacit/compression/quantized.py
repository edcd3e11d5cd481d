"""Every coordinate travels in a few bits: ``QSGD`` rounds at random, ``Sign`` keeps one bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from tacit.compression.bits import pack, packed_bytes, unpack
from tacit.compression.compressor import (
    TINY,
    Compressed,
    Compressor,
    Memory,
    contraction_of_unbiased,
    pieces,
    require_count,
    require_finite,
    require_tensor,
    require_vector,
)
from tacit.compression.kernels import dequantize, mean_magnitude, quantize
from tacit.errors import require


@dataclass(frozen=True)
class QuantizedVector(Compressed):
    """Levels −L … L of each number, packed, and the largest magnitude of every bucket."""

    length: int
    bits: int
    bucket: int
    codes: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        require_count("length", self.length)
        require_count("bits", self.bits, 8)
        require_count("bucket", self.bucket)
        require(self.bits >= 2 and self.bucket >= 1, f"bits={self.bits}, bucket={self.bucket} are too small.")
        require_tensor("codes", self.codes, (torch.uint8,), packed_bytes(self.length, self.bits))
        require_tensor("scales", self.scales, numbers=-(-self.length // self.bucket))

    @property
    def numbers(self) -> int:
        return self.length

    def dense(self, reference: Tensor | None = None) -> Tensor:
        levels = 2 ** (self.bits - 1) - 1
        codes = self.codes.view(torch.int8)
        if self.bits < 8:
            codes = unpack(self.codes, self.bits, self.length).view(torch.int8) - levels
        return dequantize(codes, self.scales, levels, min(self.bucket, max(1, self.length)))


@dataclass(frozen=True, kw_only=True)
class QSGD(Compressor):
    """Random rounding to 2^bits − 1 levels per bucket (Alistarh et al., arXiv 1610.02132); unbiased.

    With L = 2^(bits−1) − 1 and M the largest magnitude in the bucket, v becomes M/L · (⌊L v/M⌋ or the next, so that the mean is v). Scaled by M,
    as in the paper's experiments, and not by ‖v‖₂: the steps are never coarser, and ω = min(B/4L², √B/L) for B numbers in a bucket holds for both.
    """

    bits: int = 8
    bucket: int = 512

    is_deterministic: ClassVar[bool] = False
    is_unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(
            isinstance(self.bits, int) and 2 <= self.bits <= 8,
            f"bits={self.bits} must be a whole number from 2 to 8; for one bit use Sign(), for sixteen BFloat16().",
        )
        require(
            isinstance(self.bucket, int) and self.bucket >= 1,
            f"bucket={self.bucket} must be a whole number above 0; smaller = more exact, more scales to send.",
        )

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> QuantizedVector:
        require_vector(x)
        levels = 2 ** (self.bits - 1) - 1
        codes, scales = quantize(x.detach(), levels, min(self.bucket, max(1, x.numel())), random)
        packed = codes.view(torch.uint8) if self.bits == 8 else pack((codes + levels).view(torch.uint8), self.bits)
        return QuantizedVector(x.numel(), self.bits, self.bucket, packed, scales.to(x.dtype)).owned()

    def contraction(self, dimension: int) -> float | None:
        return contraction_of_unbiased(self.variance(dimension))

    def variance(self, dimension: int) -> float:
        levels, together = (1 << self.bits - 1) - 1, min(self.bucket, dimension)
        return min(together / (4 * levels**2), math.sqrt(together) / levels)


@dataclass(frozen=True)
class SignVector(Compressed):
    """One bit and a share in a scale for each number of a segment, or the numbers themselves where the segment is exact."""

    sizes: Tensor  # of the segments, int64
    is_exact: Tensor  # which segments are, bool
    scales: Tensor  # of those that are not
    signs: Tensor  # packed bits of those that are not, end to end
    values: Tensor  # of those that are

    def __post_init__(self) -> None:
        require_tensor("sizes", self.sizes, (torch.int64,))
        require_tensor("is_exact", self.is_exact, (torch.bool,), self.sizes.numel())
        for size in self.sizes.tolist():
            require_count("size", size)
        exact = self._numbers(True)
        require_tensor("scales", self.scales, numbers=self.sizes.numel() - int(self.is_exact.sum()))
        require_tensor("signs", self.signs, (torch.uint8,), packed_bytes(self._numbers(False), 1))
        require_tensor("values", self.values, (self.scales.dtype,), exact)

    @property
    def numbers(self) -> int:
        return self._numbers(True) + self._numbers(False)

    def _numbers(self, is_exact: bool) -> int:
        return sum(size for size, exact in self._segments() if exact == is_exact)

    def _segments(self) -> list[tuple[int, bool]]:
        return list(zip(self.sizes.tolist(), self.is_exact.tolist(), strict=True))

    def dense(self, reference: Tensor | None = None) -> Tensor:
        signs = unpack(self.signs, 1, self._numbers(False))
        x = self.values.new_empty(self.numbers)
        at = sign_at = value_at = scale_at = 0
        for size, is_exact in self._segments():
            if is_exact:
                x[at : at + size] = self.values[value_at : value_at + size]
                value_at += size
            else:
                scale = self.scales[scale_at]
                x[at : at + size] = signs[sign_at : sign_at + size]
                x[at : at + size].mul_(2).sub_(1).mul_(scale)
                sign_at, scale_at = sign_at + size, scale_at + 1
            at += size
        return x


@dataclass(frozen=True, kw_only=True)
class Sign(Compressor):
    """One bit a number, ± the mean magnitude (Karimireddy et al., arXiv 1901.09847); α = ‖x‖₁²/(d‖x‖²), at least 1/d.

    ``layerwise`` takes the mean within each parameter tensor; those of fewer than 1,024 numbers are sent as they are.
    """

    layerwise: bool = False

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> SignVector:
        require_vector(x)
        require_finite(x)
        x = x.detach()
        is_layerwise = self.layerwise and len(shapes) > 0
        parts = [x[begin:end] for begin, end, _ in pieces(x.numel(), shapes)] if is_layerwise else [x]
        is_exact = [is_layerwise and part.numel() < TINY for part in parts]
        coded = [part for part, exact in zip(parts, is_exact, strict=True) if not exact]
        exact = [part for part, exact in zip(parts, is_exact, strict=True) if exact]
        flags = torch.cat([part >= 0 for part in coded]) if coded else x.new_empty(0, dtype=torch.bool)
        return SignVector(
            sizes=torch.tensor([part.numel() for part in parts], dtype=torch.int64),
            is_exact=torch.tensor(is_exact, dtype=torch.bool),
            scales=torch.tensor([mean_magnitude(part) for part in coded], dtype=x.dtype, device=x.device),
            signs=pack(flags, 1),
            values=torch.cat(exact) if exact else x.new_empty(0),
        ).owned()

    def contraction(self, dimension: int) -> float:
        return 1 / max(1, dimension)
