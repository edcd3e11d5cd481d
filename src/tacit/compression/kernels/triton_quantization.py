# mypy: ignore-errors
"""Triton kernels for QSGD.

Philox gives four words at a time, so each program reads its buckets in four quarters and uses all words.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS, WARPS = 4096, 4  # per program, about
ROUNDS = tl.constexpr(7)  # Philox-4x32-7 passes BigCrush (Salmon et al., SC 2011); 10 is the usual margin


def encode(x: Tensor, levels: int, bucket: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the result of ``quantize_in_torch`` with coins from a counter: the same for each ``seed`` on every GPU."""
    buckets = triton.cdiv(x.numel(), bucket)
    quarter = triton.cdiv(bucket, 4)
    width = triton.next_power_of_2(quarter)
    rows = max(1, ELEMENTS // (4 * width))
    codes = torch.empty(x.numel(), dtype=torch.int8, device=x.device)
    scales = torch.empty(buckets, dtype=torch.float32, device=x.device)
    _encode[(triton.cdiv(buckets, rows),)](
        x,
        codes,
        scales,
        x.numel(),
        buckets,
        seed,
        LEVELS=levels,
        BUCKET=bucket,
        QUARTER=quarter,
        WIDTH=width,
        ROWS=rows,
        num_warps=WARPS,
    )
    return codes, scales


def decode(codes: Tensor, scales: Tensor, levels: int, bucket: int) -> Tensor:
    """Return the result of ``dequantize_in_torch``, to the bit."""
    x = torch.empty(codes.numel(), dtype=torch.float32, device=codes.device)
    _decode[(triton.cdiv(x.numel(), ELEMENTS),)](
        codes, scales, x, x.numel(), LEVELS=levels, BUCKET=bucket, BLOCK=ELEMENTS, num_warps=WARPS
    )
    return x


@triton.jit
def _magnitude(x):
    """Return |x| as an integer in the same order, NaN above all."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _round(x, grow, scale, word, LEVELS: tl.constexpr):
    coin = (word >> 8).to(tl.float32) * (1.0 / 16777216.0)
    level = tl.floor(x * grow * scale + coin)
    return tl.minimum(tl.maximum(level, -LEVELS), LEVELS).to(tl.int32).to(tl.int8)


@triton.jit(do_not_specialize=["seed"])
def _encode(
    x,
    codes,
    scales,
    n,
    buckets,
    seed,
    LEVELS: tl.constexpr,
    BUCKET: tl.constexpr,
    QUARTER: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)[None, :]
    at0 = rows[:, None] * BUCKET + columns
    at1 = at0 + QUARTER
    at2 = at1 + QUARTER
    at3 = at2 + QUARTER
    is_in = (columns < QUARTER) & (rows[:, None] < buckets)
    is0 = is_in & (columns < BUCKET) & (at0 < n)
    is1 = is_in & (columns + QUARTER < BUCKET) & (at1 < n)
    is2 = is_in & (columns + 2 * QUARTER < BUCKET) & (at2 < n)
    is3 = is_in & (columns + 3 * QUARTER < BUCKET) & (at3 < n)
    x0 = tl.load(x + at0, mask=is0, other=0.0)
    x1 = tl.load(x + at1, mask=is1, other=0.0)
    x2 = tl.load(x + at2, mask=is2, other=0.0)
    x3 = tl.load(x + at3, mask=is3, other=0.0)
    largest = tl.maximum(tl.maximum(_magnitude(x0), _magnitude(x1)), tl.maximum(_magnitude(x2), _magnitude(x3)))
    norm = tl.max(largest, 1).to(tl.float32, bitcast=True)
    tl.store(scales + rows, norm, mask=rows < buckets)
    grow = tl.where(norm < 1e-30, 1.2676506002282294e30, 1.0)  # 2^100: the inverse of a tiny norm would be infinite
    scale = tl.where(norm > 0, LEVELS / (norm * grow), 0.0)
    grow = grow[:, None]
    scale = scale[:, None]
    word0, word1, word2, word3 = tl.randint4x(seed, rows[:, None] * WIDTH + columns, ROUNDS)
    tl.store(codes + at0, _round(x0, grow, scale, word0, LEVELS), mask=is0)
    tl.store(codes + at1, _round(x1, grow, scale, word1, LEVELS), mask=is1)
    tl.store(codes + at2, _round(x2, grow, scale, word2, LEVELS), mask=is2)
    tl.store(codes + at3, _round(x3, grow, scale, word3, LEVELS), mask=is3)


@triton.jit
def _decode(codes, scales, x, n, LEVELS: tl.constexpr, BUCKET: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    code = tl.load(codes + at, mask=at < n, other=0).to(tl.float32)
    scale = tl.load(scales + at // BUCKET, mask=at < n, other=0.0)
    tl.store(x + at, tl.div_rn(code, tl.full([BLOCK], LEVELS, tl.float32)) * scale, mask=at < n)
