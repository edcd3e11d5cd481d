"""Compressors that send every number in a few bits: ``QSGD`` rounds at random, ``Sign`` keeps one bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from tacit.compression.coding.bits import pack, pack_rows, packed_bytes, unpack, unpack_rows
from tacit.compression.compressor import (
    Compressed,
    Compressor,
    Memory,
    absent,
    check_length,
    contraction_of_unbiased,
    has_methods_of,
    require_count,
    require_finite,
    require_tensor,
    require_vector,
    wide,
)
from tacit.compression.kernels.backend import PIECE
from tacit.compression.kernels.magnitudes import mean_magnitude
from tacit.compression.kernels.quantization import are_short, dequantize, dequantize_rows, quantize, quantize_rows
from tacit.core.specs import ALWAYS_SPELLED
from tacit.errors import require


@dataclass(frozen=True)
class QuantizedVector(Compressed, wire="qsgd"):
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
        if self.bits < 2 or self.bucket < 1:
            raise ValueError(f"bits={self.bits} must be at least 2, and bucket={self.bucket} at least 1.")
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

    @classmethod
    def add_all_into(cls, messages: Sequence[Self], target: Tensor, scales: Sequence[float]) -> None:
        first = messages[0]
        alike = {(one.length, one.bits, one.bucket, one.scales.dtype, one.codes.is_cpu) for one in messages}
        is_plain = len(alike) == 1 and first.codes.is_cpu and target.is_cpu and first.length <= PIECE
        if not is_plain or not has_methods_of(first, QuantizedVector, "dense", "add_into"):
            return super().add_all_into(messages, target, scales)
        check_length(cls, first.length, target.numel())
        at_once = max(1, PIECE // max(1, first.length))  # so that they stay in the cache
        for begin in range(0, len(messages) if first.length else 0, at_once):
            vectors = _decoded(messages[begin : begin + at_once]).to(target.dtype)
            for vector, scale in zip(vectors.unbind(), scales[begin : begin + at_once], strict=True):
                target.add_(vector if scale == 1.0 else vector.mul_(scale))
        return None


def _decoded(messages: Sequence[QuantizedVector]) -> Tensor:
    """Return the vectors of messages that differ in nothing else."""
    first = messages[0]
    levels = 2 ** (first.bits - 1) - 1
    codes = unpack_rows(torch.stack([one.codes for one in messages]), first.bits, first.length).view(torch.int8)
    if first.bits < 8:
        codes = codes - levels
    scales = torch.stack([one.scales for one in messages])
    return dequantize_rows(codes, scales, levels, min(first.bucket, first.length))


@dataclass(frozen=True, kw_only=True)
class QSGD(Compressor):
    """Random rounding to 2^bits − 1 levels per bucket (Alistarh et al., arXiv 1610.02132); unbiased.

    With L = 2^(bits−1) − 1 and M the largest magnitude in the bucket, v becomes M/L · ⌊L v/M⌋ or M/L · (⌊L v/M⌋ + 1),
    at random with mean v. The scale is M, as in the paper's experiments, and not ‖v‖₂: the steps are never coarser, and
    ω = min(B/4L², √B/L) for B numbers in a bucket holds for both. ``compiled`` uses ``torch.compile`` on the CPU: less
    than half the time for long vectors, after up to a minute of compilation, which needs a C++ compiler.
    """

    bits: int = field(default=8, metadata=ALWAYS_SPELLED)
    bucket: int = 512
    compiled: bool = False

    is_deterministic: ClassVar[bool] = False
    is_unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(
            isinstance(self.bits, int) and 2 <= self.bits <= 8,
            f"bits={self.bits} must be a whole number from 2 to 8; for one bit use Sign(), for sixteen BFloat16().",
        )
        require(
            isinstance(self.bucket, int) and self.bucket >= 1,
            f"bucket={self.bucket} must be a whole number above 0; smaller is more exact and sends more scales.",
        )

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> QuantizedVector:
        require_vector(x)
        levels = 2 ** (self.bits - 1) - 1
        seed = int(random.integers(2**63))
        if not x.numel():  # a range without numbers, where ranks outnumber buckets
            nothing = torch.empty(0, dtype=torch.uint8, device=x.device)
            return QuantizedVector(0, self.bits, self.bucket, nothing, x.new_empty(0)).owned()
        codes, scales = quantize(x.detach(), levels, min(self.bucket, max(1, x.numel())), seed, self.compiled)
        packed = codes.view(torch.uint8) if self.bits == 8 else pack((codes + levels).view(torch.uint8), self.bits)
        message = QuantizedVector(x.numel(), self.bits, self.bucket, packed, scales.to(x.dtype)).owned()
        require_finite(scales, x)  # last: it waits for a GPU
        return message

    def compress_rows(
        self,
        rows: Tensor,
        randoms: Sequence[np.random.Generator],
        memories: Sequence[Memory],
        shapes: Sequence[torch.Size] = (),
    ) -> Sequence[Compressed]:
        n, levels, bucket = rows.shape[1], 2 ** (self.bits - 1) - 1, min(self.bucket, max(1, rows.shape[1]))
        is_plain = has_methods_of(self, QSGD, "compress") and not self.compiled
        if not is_plain or not are_short(rows, bucket) or not math.isfinite(float(rows.sum(dtype=wide(rows.dtype)))):
            return super().compress_rows(rows, randoms, memories, shapes)
        seeds = [int(random.integers(2**63)) for random in randoms]
        codes, scales = quantize_rows(rows.detach(), levels, bucket, seeds)
        packed = codes.view(torch.uint8) if self.bits == 8 else pack_rows((codes + levels).view(torch.uint8), self.bits)
        each = zip(packed.unbind(), scales.to(rows.dtype).unbind(), strict=True)
        return [QuantizedVector(n, self.bits, self.bucket, *one).owned() for one in each]

    def nominal_size_bytes(
        self, numbers: int, dtype: torch.dtype = torch.float32, shapes: Sequence[torch.Size] = ()
    ) -> int:
        codes = absent(packed_bytes(numbers, self.bits), torch.uint8)
        scales = absent(-(-numbers // self.bucket), dtype)
        return QuantizedVector(numbers, self.bits, self.bucket, codes, scales).size_bytes

    def contraction(self, dimension: int) -> float | None:
        return contraction_of_unbiased(self.variance(dimension))

    def variance(self, dimension: int) -> float:
        levels, together = (1 << self.bits - 1) - 1, min(self.bucket, dimension)
        return min(together / (4 * levels**2), math.sqrt(together) / levels)


@dataclass(frozen=True)
class SignVector(Compressed, wire="sign"):
    """One bit for each number, and one common magnitude."""

    length: int
    scale: Tensor  # one number, in the dtype of the vector
    signs: Tensor  # packed bits; 1: not negative

    def __post_init__(self) -> None:
        require_count("length", self.length)
        require_tensor("scale", self.scale, numbers=1)
        require_tensor("signs", self.signs, (torch.uint8,), packed_bytes(self.length, 1))

    @property
    def numbers(self) -> int:
        return self.length

    def dense(self, reference: Tensor | None = None) -> Tensor:
        signs = unpack(self.signs, 1, self.length)
        if signs.is_cpu:  # an eighth of the time of ``where``, which is faster on a GPU
            return signs.to(self.scale.dtype).mul_(2).sub_(1).mul_(self.scale)
        return torch.where(signs.view(torch.bool), self.scale, -self.scale)


@dataclass(frozen=True, kw_only=True)
class Sign(Compressor):
    """Signs times the mean magnitude (Karimireddy et al., arXiv 1901.09847); α = ‖x‖₁²/(d‖x‖²), at least 1/d."""

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> SignVector:
        require_vector(x)
        x = x.detach()
        scale = torch.tensor([mean_magnitude(x)], dtype=x.dtype, device=x.device)
        return SignVector(x.numel(), scale, pack(x >= 0, 1)).owned()

    def nominal_size_bytes(
        self, numbers: int, dtype: torch.dtype = torch.float32, shapes: Sequence[torch.Size] = ()
    ) -> int:
        return SignVector(numbers, absent(1, dtype), absent(packed_bytes(numbers, 1), torch.uint8)).size_bytes

    def contraction(self, dimension: int) -> float:
        return 1 / max(1, dimension)
