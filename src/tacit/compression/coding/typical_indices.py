"""The size of coded indices that is to be expected, without positions: for timing-only simulations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tacit.compression.coding.bits import packed_bytes
from tacit.compression.coding.indices import CodedIndices, Coding, width_of
from tacit.compression.compressor import absent


def typical_indices(parts: Sequence[tuple[int, int]]) -> CodedIndices:
    """Return indices of the expected size without positions, coded as ``encode`` would.

    parts: of consecutive parts of the vector, how many coordinates are selected, and their length. Selected coordinates
    are spread at random within their part, so that gaps are geometric: P(gap ≥ m) = (1 − k/d)^m.
    """
    count, length = sum(selected for selected, _ in parts), sum(size for _, size in parts)
    raw_bytes = packed_bytes(count, width_of(length))
    sizes = {(Coding.RAW, 0): raw_bytes, (Coding.BITMAP, 0): packed_bytes(length, 1)}
    if count == length:
        sizes = {(Coding.ALL, 0): 0}
    elif raw_bytes > packed_bytes(count, 1):
        for r in range(width_of(length) + 1):
            sizes[Coding.DELTA, r] = packed_bytes(count, r) + math.ceil(_unary_bits(parts, r) / 8)
    else:
        del sizes[Coding.BITMAP, 0]
    coding, parameter = min(sizes, key=sizes.__getitem__)
    return CodedIndices(length, count, coding, parameter, absent(sizes[coding, parameter], torch.uint8))


def _unary_bits(parts: Sequence[tuple[int, int]], r: int) -> float:
    """Return the expected number of bits of ⌊gap / 2^r⌋ in unary, over all gaps."""
    bits = 0.0
    for selected, size in parts:
        is_longer = (1 - selected / size) ** (1 << r) if selected < size else 0.0  # P(gap ≥ 2^r)
        bits += selected * (1 + is_longer / (1 - is_longer)) if selected else 0.0
    return bits
