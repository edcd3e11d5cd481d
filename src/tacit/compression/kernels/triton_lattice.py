# mypy: ignore-errors
"""Triton kernels for the lattice: one pass each, which also sums the check value."""

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 8192, 8
# PTX rounds and converts in one instruction; the interpreter and GPUs of other vendors use arithmetic.
IS_PTX = torch.version.cuda is not None and os.environ.get("TRITON_INTERPRET") != "1"


def encode(x: Tensor, inverse: float, bits: int, seed: int | None) -> tuple[Tensor, Tensor]:
    """Return the result of ``encode_in_torch``, to the bit where there is no seed."""
    codes = torch.empty(x.numel(), dtype=torch.int32 if bits > 8 else torch.uint8, device=x.device)
    found = torch.zeros(2, dtype=torch.int32, device=x.device)
    _encode[(triton.cdiv(x.numel(), BLOCK),)](
        x,
        codes,
        found,
        x.numel(),
        inverse,
        0 if seed is None else seed,
        BITS=bits,
        IS_RANDOM=seed is not None,
        BLOCK=BLOCK,
        IS_PTX=IS_PTX,
        num_warps=WARPS,
        enable_fp_fusion=False,
    )
    return codes, found


def decode(codes: Tensor, reference: Tensor, side: float, inverse: float, bits: int) -> tuple[Tensor, Tensor]:
    """Return the result of ``decode_in_torch``, to the bit."""
    x = torch.empty_like(reference)
    found = torch.zeros(2, dtype=torch.int32, device=reference.device)
    _decode[(triton.cdiv(reference.numel(), BLOCK),)](
        codes,
        reference,
        x,
        found,
        reference.numel(),
        side,
        inverse,
        BITS=bits,
        BLOCK=BLOCK,
        IS_PTX=IS_PTX,
        num_warps=WARPS,
        enable_fp_fusion=False,
    )
    return x, found


@triton.jit
def _nearest(x, IS_PTX: tl.constexpr):
    """Return the integer nearest to ``x``, ties to even."""
    if IS_PTX:
        nearest = tl.inline_asm_elementwise(
            "cvt.rni.s32.f32 $0, $1;", "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        size = tl.abs(x)
        whole = (size + 8388608.0) - 8388608.0  # adding 2^23 leaves no room for a fraction
        whole = tl.where(size < 8388608.0, whole, size)
        nearest = tl.where(x < 0, -whole, whole).to(tl.int32)
    return nearest


@triton.jit
def _weight(at):
    weight = at * -1640531527
    weight = weight ^ (weight >> 15)
    return (weight * -2048144777) | 1


@triton.jit
def _total(x, IS_PTX: tl.constexpr):
    """Return the sum modulo 2^32; the interpreter raises on overflow."""
    return tl.sum(x, 0) if IS_PTX else tl.sum(x.to(tl.int64), 0).to(tl.int32)


@triton.jit
def _tell_outside(scaled, found):
    is_outside = (tl.abs(scaled) < 2147483648.0).to(tl.int32) == 0  # a NaN is outside too
    if tl.max(is_outside.to(tl.int32), 0) > 0:
        tl.atomic_add(found + 1, 1, sem="relaxed")


@triton.jit(do_not_specialize=["seed"])
def _encode(
    x,
    codes,
    found,
    n,
    inverse,
    seed,
    BITS: tl.constexpr,
    IS_RANDOM: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_PTX: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    scaled = tl.load(x + at, mask=at < n, other=0.0) * inverse
    if IS_RANDOM:
        coin = ((tl.randint(seed, at) >> 8) & 0xFFFF).to(tl.float32) * (1.0 / 65536.0) + (1.0 / 131072.0)
        point = tl.floor(scaled + coin).to(tl.int32)
        point = tl.where(at < n, point, 0)
    else:
        point = _nearest(scaled, IS_PTX)
    tl.store(codes + at, (point & ((1 << BITS) - 1)).to(codes.dtype.element_ty), mask=at < n)
    tl.atomic_add(found, _total(_weight(at) * (point >> BITS), IS_PTX), sem="relaxed")
    _tell_outside(scaled, found)


@triton.jit
def _decode(
    codes, reference, x, found, n, side, inverse, BITS: tl.constexpr, BLOCK: tl.constexpr, IS_PTX: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    code = tl.load(codes + at, mask=at < n, other=0).to(tl.int32)
    scaled = tl.load(reference + at, mask=at < n, other=0.0) * inverse
    turns = _nearest((scaled - code.to(tl.float32)) * (1.0 / (1 << BITS)), IS_PTX)
    tl.store(x + at, (code + (turns << BITS)).to(tl.float32) * side, mask=at < n)
    tl.atomic_add(found, _total(tl.where(at < n, _weight(at) * turns, 0), IS_PTX), sem="relaxed")
    _tell_outside(scaled, found)
