"""Coded indices of many messages at once, equal to ``encode`` of each."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tacit.compression.coding.bits import packed_bytes
from tacit.compression.coding.indices import CodedIndices, Coding, encode, width_of


def encode_rows(positions: Tensor, length: int) -> list[CodedIndices]:
    """Return each row of ascending ``positions`` (int64, on the CPU) within ``length`` numbers in its smallest coding.

    Gap codes are made together for all rows with the same parameter, the other codings row by row.
    """
    count, width = positions.shape[1], width_of(length)
    rows = positions.unbind()
    if count == length or packed_bytes(count, width) <= packed_bytes(count, 1):
        return [encode(row, length) for row in rows]
    gaps = np.diff(positions.numpy(), axis=1, prepend=-1) - 1
    if length < 2**31:
        gaps = gaps.astype(np.int32)  # faster, and their sum is less than the length
    shifts = np.arange(width + 1, dtype=gaps.dtype)
    unary_bits = count + (gaps >> shifts[:, None, None]).sum(axis=2, dtype=gaps.dtype).astype(np.int64)  # by r and row
    low_bytes = np.array([packed_bytes(count, r) for r in range(width + 1)])
    sizes_bytes = low_bytes[:, None] + (unary_bits + 7) // 8
    parameters = sizes_bytes.argmin(axis=0)  # the first, hence the smallest, of equal sizes
    others_bytes = min(packed_bytes(count, width), packed_bytes(length, 1))
    is_gap_coded = sizes_bytes.min(axis=0) < others_bytes
    coded: dict[int, CodedIndices] = {}
    for r in set(parameters[is_gap_coded].tolist()):
        places = np.flatnonzero(is_gap_coded & (parameters == r))
        codes, own_bytes = _rice_codes(gaps[places], r, int(unary_bits[r, places].max())), sizes_bytes[r, places]
        is_own = np.arange(codes.shape[1]) < own_bytes[:, None]
        parts = torch.from_numpy(codes[is_own]).split_with_sizes(own_bytes.tolist())
        for place, code in zip(places.tolist(), parts, strict=True):
            coded[place] = CodedIndices(length, count, Coding.DELTA, r, code, rows[place])
    return [coded[place] if place in coded else encode(row, length) for place, row in enumerate(rows)]


def _rice_codes(gaps: np.ndarray, r: int, most_unary_bits: int) -> np.ndarray:
    """Return the Rice codes of the rows of ``gaps``, filled with zeros to the longest one."""
    low_bits = (gaps[:, :, None] >> np.arange(r, dtype=gaps.dtype) & 1).astype(np.uint8).reshape(len(gaps), -1)
    unary = np.zeros((len(gaps), most_unary_bits), dtype=np.uint8)
    ends = ((gaps >> r) + 1).cumsum(axis=1, dtype=np.int64) - 1
    np.put_along_axis(unary, ends, 1, axis=1)
    packed = [np.packbits(bits, axis=1, bitorder="little") for bits in (low_bits, unary)]
    return np.concatenate(packed, axis=1)
