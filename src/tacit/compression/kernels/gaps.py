"""The gaps before ascending indices, and their Rice code: the low r bits of each packed, then the rest in unary."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from tacit.compression.coding.bits import pack, packed_bytes
from tacit.compression.kernels.backend import on_device_of, uses_triton

_BELOW: Final = 3
_WIDEST: Final = 25
"""Largest guess for which the kernel's eight r fit into the 32 bits that it writes at once."""


class Gaps:
    """The number of coordinates between each index and the one before it.

    ``r`` is a guess of the best number of low bits. A GPU counts the bits for a few r around it and encodes with the
    best of these in one launch, before the CPU waits.
    """

    def __init__(self, positions: Tensor, length: int, r: int) -> None:
        self._first, self._code = r, None
        if not uses_triton(positions, torch.int64) or r > _WIDEST:
            self._gaps = torch.diff(positions, prepend=positions.new_full((1,), -1)) - 1
            self._sums = [self._sum(r)]
            return
        from tacit.compression.kernels import triton_bits

        count, self._first = positions.numel(), max(0, r - _BELOW)
        most_bytes = packed_bytes(count, r) + packed_bytes(count + (length - count >> r), 1)  # the best is no larger
        with on_device_of(positions):
            self._gaps, before, sums = triton_bits.gaps_of(positions, self._first)
            self._code = triton_bits.rice(self._gaps, before, sums, self._first, most_bytes)
        self._sums = sums.tolist()

    def unary_bits(self, r: int) -> int:
        """Return the number of bits of the unary part: Σ (⌊gap / 2^r⌋ + 1)."""
        is_known = 0 <= r - self._first < len(self._sums)
        return self._gaps.numel() + (self._sums[r - self._first] if is_known else self._sum(r))

    def size_bytes(self, r: int) -> int:
        """Return the size in bytes of the code with ``r`` low bits."""
        return packed_bytes(self._gaps.numel(), r) + packed_bytes(self.unary_bits(r), 1)

    def _sum(self, r: int) -> int:
        gaps = self._gaps.numpy() if self._gaps.is_cpu else self._gaps  # a tenth of torch's time for a short vector
        return int((gaps >> r).sum())

    def coded(self, r: int) -> Tensor:
        """Return the code with ``r`` low bits, as bytes."""
        if self._code is not None:
            coded = min(range(self._first, self._first + len(self._sums)), key=self.size_bytes)  # the kernel's choice
            if coded == r:
                return self._code[: self.size_bytes(r)]
        flags = torch.zeros(self.unary_bits(r), dtype=torch.bool, device=self._gaps.device)
        flags[((self._gaps >> r) + 1).cumsum(0) - 1] = True
        return torch.cat([pack(self._gaps & ((1 << r) - 1), r), pack(flags, 1)])
