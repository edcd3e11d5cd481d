# mypy: ignore-errors
"""Triton kernels for bit packing: numbers of a few bits each into bytes and back, and the gaps between indices.

32 numbers of w bits fill w words of 32 bits, so a program that holds groups of 32 numbers writes complete words and
shares none with other programs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

GROUPS, BLOCK = 64, 1024
AROUND = tl.constexpr(8)  # number of Rice parameters for which the bits are counted at once


def pack(codes: Tensor, width: int) -> Tensor:
    """Return the result of ``bits.pack``."""
    codes = codes.view(torch.uint8) if codes.dtype == torch.bool else codes
    groups = triton.cdiv(codes.numel(), 32)
    words = torch.empty(groups * width, dtype=torch.int32, device=codes.device)
    _pack[(triton.cdiv(groups, GROUPS),)](codes, words, codes.numel(), groups, WIDTH=width, GROUPS=GROUPS)
    return words.view(torch.uint8)[: (codes.numel() * width + 7) // 8]


def unpack(packed: Tensor, width: int, count: int) -> Tensor:
    """Return the result of ``bits.unpack``."""
    codes = torch.empty(count, dtype=torch.uint8 if width <= 8 else torch.int64, device=packed.device)
    _unpack[(triton.cdiv(count, BLOCK),)](packed, codes, packed.numel(), count, WIDTH=width, BLOCK=BLOCK)
    return codes


def gaps_of(positions: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gap before each position, and Σ ⌊gap / 2^r⌋ for eight r from ``first``: before each block, and of all.

    All tensors are int64.
    """
    blocks = triton.cdiv(positions.numel(), BLOCK)
    gaps = torch.empty_like(positions)
    parts = torch.empty((AROUND.value, blocks), dtype=torch.int64, device=positions.device)
    sums = torch.zeros(AROUND.value, dtype=torch.int64, device=positions.device)
    _gaps[(blocks,)](positions, gaps, parts, sums, positions.numel(), first, BLOCK=BLOCK)
    return gaps, parts.cumsum(1).sub_(parts), sums


def rice(gaps: Tensor, before: Tensor, sums: Tensor, first: int, most_bytes: int) -> Tensor:
    """Return the Rice code with the best r of those in ``sums``, the smallest of equals, padded to ``most_bytes``.

    ``first`` + 7 is at most 32.
    """
    words = torch.zeros(triton.cdiv(most_bytes, 4) + 1, dtype=torch.int32, device=gaps.device)
    _rice[(before.shape[1],)](gaps, before, sums, words, gaps.numel(), first, BLOCK=BLOCK)
    return words.view(torch.uint8)


@triton.jit
def _pack(codes, words, count, groups, WIDTH: tl.constexpr, GROUPS: tl.constexpr):
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    lane = tl.arange(0, 32)[None, :]
    at = group[:, None] * 32 + lane
    code = tl.load(codes + at, mask=at < count, other=0)
    code = code.to(tl.int32 if WIDTH <= 16 else tl.int64)
    for word in tl.static_range(WIDTH):
        shift = lane * WIDTH - 32 * word  # from the first bit of the word to the first of the number
        is_begun = (shift >= 0) & (shift < 32)
        is_ended = (shift < 0) & (shift > -WIDTH)
        part = tl.where(is_begun, code << tl.where(is_begun, shift, 0), 0)
        part += tl.where(is_ended, code >> tl.where(is_ended, -shift, 0), 0)
        if WIDTH > 16:
            part = part & 0xFFFFFFFF
        tl.store(words + group * WIDTH + word, tl.sum(part, 1).to(tl.int32), mask=group < groups)


@triton.jit
def _unpack(packed, codes, size, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bit = at.to(tl.int64) * WIDTH
    first = bit >> 3
    code = tl.zeros([BLOCK], tl.int32 if WIDTH <= 16 else tl.int64)
    for byte in tl.static_range((WIDTH + 14) // 8):
        part = tl.load(packed + first + byte, mask=(at < count) & (first + byte < size), other=0)
        code += part.to(code.dtype) << (8 * byte)
    code = (code >> (bit & 7).to(code.dtype)) & ((1 << WIDTH) - 1)
    tl.store(codes + at, code.to(codes.dtype.element_ty), mask=at < count)


@triton.jit(do_not_specialize=["first"])
def _gaps(positions, gaps, parts, sums, count, first, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    before = tl.load(positions + at - 1, mask=(at > 0) & (at < count), other=-1)
    gap = tl.load(positions + at, mask=at < count, other=0) - before - 1
    tl.store(gaps + at, gap, mask=at < count)
    for step in tl.static_range(AROUND):
        part = tl.sum(tl.where(at < count, gap >> (first + step), 0), 0)
        tl.store(parts + step * tl.num_programs(0) + tl.program_id(0), part)
        tl.atomic_add(sums + step, part, sem="relaxed")


@triton.jit(do_not_specialize=["first"])
def _rice(gaps, before, sums, words, count, first, BLOCK: tl.constexpr):
    step = tl.arange(0, AROUND).to(tl.int64)
    low_bytes = (count * (first + step) + 7) >> 3
    size_bytes = low_bytes + ((count + tl.load(sums + step) + 7) >> 3)
    best = tl.min(size_bytes * AROUND + step, 0) % AROUND
    r = first + best
    low_bits = tl.sum(tl.where(step == best, low_bytes, 0), 0) * 8
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    is_inside = at < count
    gap = tl.load(gaps + at, mask=is_inside, other=0)
    low = gap & ((tl.full([BLOCK], 1, tl.int64) << r) - 1)
    bit = at * r
    spread = low << (bit & 31)  # over two words
    tl.atomic_or(words + (bit >> 5), spread.to(tl.int32), mask=is_inside & (low > 0), sem="relaxed")
    is_over = is_inside & ((spread >> 32) != 0)
    tl.atomic_or(words + (bit >> 5) + 1, (spread >> 32).to(tl.int32), mask=is_over, sem="relaxed")
    bit = low_bits + tl.load(before + best * tl.num_programs(0) + block) + tl.cumsum(gap >> r, 0) + at
    flag = tl.full([BLOCK], 1, tl.int32) << (bit & 31).to(tl.int32)
    tl.atomic_or(words + (bit >> 5), flag, mask=is_inside, sem="relaxed")
