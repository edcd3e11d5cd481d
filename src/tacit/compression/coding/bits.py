"""Bit packing: numbers of a few bits each in bytes, the first number in the lowest bits of the first byte."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tacit.compression.kernels.backend import MOST, on_device_of, uses_triton

_WHOLE: Final = (torch.uint8, torch.int64, torch.int32, torch.bool)
_FEW: Final = 256
"""Largest count that is packed through single bits, in few calls; longer vectors are shifted lane by lane."""


def packed_bytes(count: int, width: int) -> int:
    """Return the size in bytes of ``count`` numbers of ``width`` bits."""
    return (count * width + 7) // 8


def pack(codes: Tensor, width: int) -> Tensor:
    """Return whole numbers below 2^width, or flags for a width of 1, as uint8; at most 40 bits each."""
    if width == 8:
        return codes.to(torch.uint8)
    if width == 0 or not codes.numel():
        return torch.empty(0, dtype=torch.uint8, device=codes.device)
    if uses_triton(codes, *_WHOLE):
        from tacit.compression.kernels import triton_bits

        with on_device_of(codes):
            return triton_bits.pack(codes.contiguous(), width)
    if width == 1 and codes.is_cpu:
        return torch.from_numpy(np.packbits(codes.to(torch.bool).numpy(), bitorder="little"))
    if codes.is_cpu and codes.numel() <= _FEW:
        planes = codes.numpy()[:, None] >> np.arange(width) & 1
        return torch.from_numpy(np.packbits(planes.astype(np.uint8), bitorder="little"))
    group, stride = _repeat(width)
    rows = -(-codes.numel() // group)
    lanes = codes.to(_shift_dtype(width))
    if lanes.numel() < rows * group:
        lanes = torch.cat([lanes, lanes.new_zeros(rows * group - lanes.numel())])
    lanes = lanes.view(rows, group)
    packed = torch.zeros(rows, stride, dtype=torch.uint8, device=codes.device)
    for lane in range(group):
        first, shift = divmod(lane * width, 8)
        shifted = lanes[:, lane] << shift
        for byte in range(packed_bytes(1, shift + width)):
            packed[:, first + byte] |= (shifted >> 8 * byte if byte else shifted).to(torch.uint8)  # its lowest byte
    return packed.view(-1)[: packed_bytes(codes.numel(), width)]


def unpack(packed: Tensor, width: int, count: int) -> Tensor:
    """Return the ``count`` numbers that ``pack`` packed; uint8 up to 8 bits each, else int64."""
    if width == 8:
        return packed if packed.numel() == count else packed[:count]
    if width == 0 or not count:
        return torch.zeros(count, dtype=torch.uint8, device=packed.device)
    if uses_triton(packed, *_WHOLE) and count <= MOST:
        from tacit.compression.kernels import triton_bits

        with on_device_of(packed):
            return triton_bits.unpack(packed.contiguous(), width, count)
    if width == 1 and packed.is_cpu:
        return torch.from_numpy(np.unpackbits(packed.numpy(), count=count, bitorder="little"))
    if packed.is_cpu and count <= _FEW:
        planes = np.unpackbits(packed.numpy(), count=count * width, bitorder="little").reshape(count, width)
        return torch.from_numpy(planes @ (1 << np.arange(width))).to(torch.uint8 if width < 8 else torch.int64)
    group, stride = _repeat(width)
    rows = -(-count // group)
    if packed.numel() < rows * stride:
        packed = torch.cat([packed, packed.new_zeros(rows * stride - packed.numel())])
    padded = packed[: rows * stride].view(rows, stride)
    codes = torch.empty(rows, group, dtype=torch.uint8 if width < 8 else torch.int64, device=packed.device)
    for lane in range(group):
        first, shift = divmod(lane * width, 8)
        code = padded[:, first].to(_shift_dtype(width))
        for byte in range(1, packed_bytes(1, shift + width)):
            code = code | padded[:, first + byte].to(_shift_dtype(width)) << 8 * byte
        codes[:, lane] = (code >> shift) & ((1 << width) - 1)
    return codes.view(-1)[:count]


def pack_rows(codes: Tensor, width: int) -> Tensor:
    """Return a matrix whose rows are those of ``codes``, each packed as ``pack`` does."""
    rows, count = codes.shape
    group, _ = _repeat(width)
    return pack(_filled(codes, group).reshape(-1), width).view(rows, -1)[:, : packed_bytes(count, width)]


def unpack_rows(packed: Tensor, width: int, count: int) -> Tensor:
    """Return a matrix whose rows are the ``count`` numbers of each row of ``packed``, as ``unpack`` returns them."""
    group, stride = _repeat(width)
    filled = _filled(packed, stride)
    numbers = filled.numel() // stride * group
    return unpack(filled.reshape(-1), width, numbers).view(len(packed), -1)[:, :count]


def _filled(rows: Tensor, multiple: int) -> Tensor:
    """Return ``rows`` with zeros behind each, up to a multiple of ``multiple`` numbers."""
    lacking = -rows.shape[1] % multiple
    return torch.nn.functional.pad(rows, (0, lacking)) if lacking else rows


def _repeat(width: int) -> tuple[int, int]:
    """Return the period of the pattern of shifts, in numbers and in bytes."""
    group = 8 // math.gcd(8, width)
    return group, width * group // 8


def _shift_dtype(width: int) -> torch.dtype:
    """Return the smallest dtype that holds a number shifted by up to seven bits."""
    if 8 % width == 0:
        return torch.uint8  # a number never crosses a byte
    return torch.int32 if width <= 24 else torch.int64
