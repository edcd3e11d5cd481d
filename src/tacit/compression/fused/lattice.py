"""The cubic lattice with modulo coding (algorithms §2.4; Davies et al., ICLR 2021, arXiv 2002.09268).

With side s and q = 2^bits, the sender's point is s·p, p = round(x/s); p = c + q·h, and only c in [0, q) travels. The receiver takes the point of
that class nearest to its own y: h' = round((y/s − c)/q), z = s·(c + q·h'). If |x − y| < s(q − 1)/2 everywhere, h' = h and |z − x| ≤ s/2; if not,
some h' is wrong, and nothing in c shows it. So a check value travels too: Σ wᵢ·hᵢ modulo 2³², with odd weights wᵢ that hash the position. One
wrong coordinate always changes it, since |h| and |h'| are kept below 2³¹; several leave it as it was with probability of about 2⁻³¹. A plain sum
would not do: half of all pairs of overflows cancel in it. Integers add up in any order, so every device gets the same value.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from tacit.compression.compressor import wide
from tacit.compression.fused.backend import Coins, on_device_of, spans, uses_triton

FARTHEST: Final = 2.0**31
"""Points and what they are decoded to are 32-bit integers: |x| must stay below so many sides."""


class Encoded(NamedTuple):
    """What ``encode`` returns."""

    codes: Tensor
    """c of each coordinate: uint8 up to 8 bits, else int32."""
    check: int
    """The check value, from −2³¹ to 2³¹ − 1."""
    is_in_range: bool
    """Every |x| is finite and below ``FARTHEST`` sides. If not, the codes mean nothing."""


class Decoded(NamedTuple):
    """What ``decode`` returns."""

    x: Tensor
    check: int
    """The check value of what was decoded: that of the sender if no coordinate overflowed."""
    is_in_range: bool
    """The reference is finite and near enough to zero; if not, the vector means nothing."""


def encode(x: Tensor, side: float, bits: int, seed: int | None = None) -> Encoded:
    """Return the classes of the lattice points nearest to ``x`` (ties to even; with a ``seed``, of one of the two around it, without bias)."""
    x = x.contiguous()
    if uses_triton(x):
        from tacit.compression.fused import triton_lattice

        with on_device_of(x):
            codes, found = triton_lattice.encode(x, 1 / side, bits, seed)
    else:
        codes, found = encode_in_torch(x, 1 / side, bits, seed)
    return Encoded(codes, *_told(found))


def decode(codes: Tensor, reference: Tensor, side: float, bits: int, dtype: torch.dtype) -> Decoded:
    """Return the vector sent, as seen from ``reference`` and in ``dtype``; check it.

    Where the check value is not the sender's, some coordinate is off by a multiple of side·2^bits: do not use the vector.
    """
    reference = reference.to(torch.promote_types(wide(dtype), wide(reference.dtype))).contiguous()
    if uses_triton(reference):
        from tacit.compression.fused import triton_lattice

        with on_device_of(reference):
            x, found = triton_lattice.decode(codes, reference, side, 1 / side, bits)
    else:
        x, found = decode_in_torch(codes, reference, side, 1 / side, bits)
    x = x.to(dtype)
    return Decoded(x, *_told(found))


def _told(found: Tensor) -> tuple[int, bool]:
    """Return the check value and whether nothing was out of range: the one wait for a GPU."""
    both = int(found.view(torch.int64))
    return (both + 2**31) % 2**32 - 2**31, both >> 32 == 0


def encode_in_torch(x: Tensor, inverse: float, bits: int, seed: int | None) -> tuple[Tensor, Tensor]:
    """Return codes, and check value and a number above 0 if something is out of range (int32), as the kernel does."""
    codes = torch.empty(x.numel(), dtype=torch.int32 if bits > 8 else torch.uint8, device=x.device)
    check, outside = torch.zeros((2, 1), dtype=torch.int32, device=x.device)
    coins = None if seed is None else Coins(seed, x.device)
    for begin, end in spans(x):
        scaled = x[begin:end].to(wide(x.dtype)) * inverse
        outside += _is_outside(scaled)
        if coins is None:
            scaled.round_()
        else:
            coins.add_to(scaled, torch.empty_like(scaled)).floor_()
        points = scaled.to(torch.int32)
        codes[begin:end] = points & (2**bits - 1)
        check += weights(begin, end, x.device).mul_(points.bitwise_right_shift_(bits)).sum(dtype=torch.int32)
    return codes, torch.cat([check, outside])


def decode_in_torch(codes: Tensor, reference: Tensor, side: float, inverse: float, bits: int) -> tuple[Tensor, Tensor]:
    """Return the vector, and check value and a number above 0 if the reference is out of range (int32), as the kernel does."""
    x = torch.empty_like(reference)
    check, outside = torch.zeros((2, 1), dtype=torch.int32, device=reference.device)
    for begin, end in spans(reference):
        scaled = reference[begin:end] * inverse
        outside += _is_outside(scaled)
        turns = scaled.sub_(codes[begin:end]).mul_(2.0**-bits).round_().to(torch.int32)  # h'
        check += weights(begin, end, reference.device).mul_(turns).sum(dtype=torch.int32)
        points = turns.mul_(2**bits).add_(codes[begin:end])
        torch.mul(points.to(x.dtype), side, out=x[begin:end])
    return x, torch.cat([check, outside])


def _is_outside(scaled: Tensor) -> Tensor:
    least, most = torch.aminmax(scaled)
    return ~((least > -FARTHEST) & (most < FARTHEST))  # of a NaN too


def weights(begin: int, end: int, device: torch.device) -> Tensor:
    """Return the odd weights of positions ``begin`` to ``end``, int32, wrapping."""
    weight = torch.arange(end - begin, dtype=torch.int32, device=device).add_((begin + 2**31) % 2**32 - 2**31)
    weight.mul_(-1640531527)  # 2^32 over the golden ratio
    weight ^= weight >> 15
    return weight.mul_(-2048144777).bitwise_or_(1)  # a prime of xxHash
