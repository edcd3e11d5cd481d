"""The cubic lattice with modulo coding (algorithms §2.4; Davies et al., ICLR 2021, arXiv 2002.09268).

With side s and q = 2^bits, the sender's point is s·p, p = round(x/s); p = c + q·h, and only c in [0, q) travels. The receiver takes the point of
that class nearest to its own y: h' = round((y/s − c)/q), z = s·(c + q·h'). If |x − y| < s(q − 1)/2 everywhere, h' = h and |z − x| ≤ s/2; if not,
some h' is wrong, and nothing in c shows it. So a check value travels too: Σ w_i·h_i modulo 2³², with odd weights w_i that hash the position. One
wrong coordinate (by less than 2³² classes) always changes it; several leave it as it was with probability of about 2⁻³¹. A plain sum would not
do: half of all pairs of overflows cancel in it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from tacit.compression.fused.backend import on_device_of, require_flat, spans, uses_triton

FURTHEST: Final = 2.0**31
"""Coordinates of points are 32-bit integers: |x| must stay below so many sides."""


class LatticeCode(NamedTuple):
    """What ``lattice_encode`` returns."""

    codes: Tensor
    """c of each coordinate, uint8."""
    check: Tensor
    """The check value, one int32."""
    is_in_range: Tensor
    """One bool: every |x| is finite and below 2³¹ sides. If not, the codes mean nothing."""


def lattice_encode(x: Tensor, side: float, bits: int) -> LatticeCode:
    """Return the classes of the lattice points nearest to ``x`` (ties to even), and what the receiver needs to tell an overflow."""
    require_flat(x, "x")
    inverse = _inverse(side, bits)
    if uses_triton(x):
        from tacit.compression.fused import triton_lattice

        with on_device_of(x):
            return LatticeCode(*triton_lattice.encode(x, inverse, bits))
    return encode_reference(x, inverse, bits)


def lattice_decode(codes: Tensor, reference: Tensor, side: float, bits: int, check: Tensor) -> tuple[Tensor, Tensor]:
    """Return the vector sent, as seen from ``reference`` and in its dtype, and one bool: whether any coordinate overflowed.

    Where it did, that coordinate is off by a multiple of side·2^bits: do not use the vector.
    """
    require_flat(reference, "reference")
    inverse = _inverse(side, bits)
    if codes.dtype != torch.uint8 or codes.shape != reference.shape:
        raise ValueError(
            f"{codes.dtype} codes of shape {tuple(codes.shape)} do not fit a reference of shape "
            f"{tuple(reference.shape)}; they must be uint8, one for each coordinate."
        )
    if uses_triton(reference):
        from tacit.compression.fused import triton_lattice

        with on_device_of(codes):
            vector, found = triton_lattice.decode(codes, reference, side, inverse, bits)
    else:
        vector, found = decode_reference(codes, reference, side, inverse, bits)
    return vector, found != check


def _inverse(side: float, bits: int) -> float:
    """Return 1/side: all multiply by it, so that every device rounds alike."""
    if not 1 <= bits <= 8:
        raise ValueError(f"bits={bits} must be between 1 and 8: a code is a byte at most.")
    if not (2.0**-120 < side < 2.0**120):
        raise ValueError(f"side={side} must be positive and within the range of float32.")
    return 1 / side


def encode_reference(x: Tensor, inverse: float, bits: int) -> LatticeCode:
    """Do what the kernel does, in torch."""
    codes = torch.empty(x.numel(), dtype=torch.uint8, device=x.device)
    check = torch.zeros((), dtype=torch.int32, device=x.device)
    is_in_range = torch.ones((), dtype=torch.bool, device=x.device)
    for begin, end in spans(x):
        scaled = x[begin:end] * inverse
        least, most = torch.aminmax(scaled)
        is_in_range &= (least > -FURTHEST) & (most < FURTHEST)  # false for a NaN
        points = scaled.round_().to(torch.int32)
        codes[begin:end] = points & (2**bits - 1)
        check += weights(begin, end, x.device).mul_(points.bitwise_right_shift_(bits)).sum(dtype=torch.int32)
    return LatticeCode(codes, check, is_in_range)


def decode_reference(codes: Tensor, reference: Tensor, side: float, inverse: float, bits: int) -> tuple[Tensor, Tensor]:
    """Return the vector and its check value, as the kernel does, in torch."""
    vector = torch.empty_like(reference)
    check = torch.zeros((), dtype=torch.int32, device=reference.device)
    for begin, end in spans(reference):
        scaled = reference[begin:end] * inverse
        classes = scaled.sub_(codes[begin:end]).mul_(2.0**-bits).round_().to(torch.int32)
        check += weights(begin, end, reference.device).mul_(classes).sum(dtype=torch.int32)
        points = classes.mul_(2**bits).add_(codes[begin:end])
        torch.mul(points.to(reference.dtype), side, out=vector[begin:end])
    return vector, check


def weights(begin: int, end: int, device: torch.device) -> Tensor:
    """Return the odd weights of positions ``begin`` to ``end``, int32, wrapping."""
    weight = torch.arange(begin, end, dtype=torch.int32, device=device).mul_(-1640531527)  # 2^32 over the golden ratio
    weight ^= weight >> 15
    return weight.mul_(-2048144777).bitwise_or_(1)  # a prime of xxHash
