"""The cubic lattice with modulo coding (Davies et al., ICLR 2021, arXiv 2002.09268).

With side s and q = 2^bits, the sender's point is s·p, p = round(x/s); p = c + q·h, and only c in [0, q) is sent. The
receiver takes the point of that class nearest to its own y: h' = round((y/s − c)/q), z = s·(c + q·h'). If |x − y| < s(q
− 1)/2 everywhere, h' = h and |z − x| ≤ s/2; if not, some h' is wrong, and c does not show it. So a check value
is sent too: Σ wᵢ·hᵢ modulo 2³², with odd weights wᵢ that hash the position. One wrong coordinate always changes it,
since |h| and |h'| are kept below 2³¹; several leave it unchanged with a probability of about 2⁻³¹. In a plain sum
half of all pairs of overflows would cancel. Integers add up in any order, so every device gets the same value.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import torch
from torch import Tensor

from tacit.compression.compressor import wide
from tacit.compression.kernels.backend import PIECE, Coins, on_device_of, spans, uses_triton

FARTHEST: Final = 2.0**31
"""Points are 32-bit integers: |x| must stay below this many sides."""


class Encoded(NamedTuple):
    """The result of ``encode``."""

    codes: Tensor
    """c of each coordinate: uint8 up to 8 bits, else int32."""
    check: int
    """The check value, from −2³¹ to 2³¹ − 1."""
    is_in_range: bool
    """Whether every |x| is finite and below ``FARTHEST`` sides; if not, the codes are invalid."""
    points: Tensor | None = None
    """s·p in the dtype of x, where requested: what ``decode`` returns for any such reference within the radius."""


class Decoded(NamedTuple):
    """The result of ``decode``."""

    x: Tensor
    check: int
    """The check value of the decoded vector: the sender's if no coordinate overflowed."""
    is_in_range: bool
    """Whether the reference is finite and below ``FARTHEST`` sides; if not, the vector is invalid."""


def encode(x: Tensor, side: float, bits: int, seed: int | None = None, with_points: bool = False) -> Encoded:
    """Return the classes of the lattice points nearest to ``x``, ties to even; with a ``seed``, of random rounding."""
    x = x.contiguous()
    if not uses_triton(x):
        return encode_in_torch(x, side, bits, seed, with_points)
    from tacit.compression.kernels import triton_lattice

    with on_device_of(x):
        codes, found = triton_lattice.encode(x, 1 / side, bits, seed)
    return Encoded(codes, *_check_of(found), decode(codes, x, side, bits, x.dtype).x if with_points else None)


def decode(codes: Tensor, reference: Tensor, side: float, bits: int, dtype: torch.dtype) -> Decoded:
    """Return the vector decoded against ``reference``, in ``dtype``, and its check value.

    Where the check value is not the sender's, some coordinate is wrong by a multiple of side·2^bits: do not use the
    vector.
    """
    reference = reference.to(torch.promote_types(wide(dtype), wide(reference.dtype))).contiguous()
    if not uses_triton(reference):
        found = decode_in_torch(codes, reference, side, bits)
        return found if found.x.dtype == dtype else found._replace(x=found.x.to(dtype))
    from tacit.compression.kernels import triton_lattice

    with on_device_of(reference):
        x, checked = triton_lattice.decode(codes, reference, side, 1 / side, bits)
    return Decoded(x.to(dtype), *_check_of(checked))


def _check_of(found: Tensor) -> tuple[int, bool]:
    """Return the check value and whether every number was in range; this waits for the GPU."""
    both = int(found.view(torch.int64))
    return _wrapped(both), both >> 32 == 0


def encode_in_torch(x: Tensor, side: float, bits: int, seed: int | None = None, with_points: bool = False) -> Encoded:
    """Return the result of the kernel, in few torch calls, which dominate the time for a small vector."""
    codes = torch.empty(x.numel(), dtype=torch.int32 if bits > 8 else torch.uint8, device=x.device)
    points = torch.empty_like(x) if with_points else None
    check, is_in_range = 0, True
    coins = None if seed is None else Coins(seed, x.device)
    for begin, end in spans(x):
        scaled = x[begin:end].to(wide(x.dtype)) * (1 / side)
        if coins is None:
            scaled.round_()
        else:
            coins.add_to(scaled, torch.empty_like(scaled)).floor_()
        is_in_range &= _is_in_range(scaled)
        whole = scaled.to(torch.int32)  # p
        codes[begin:end] = whole if bits == 8 else whole & (2**bits - 1)
        if points is not None:
            points[begin:end] = scaled.copy_(whole).mul_(side)  # through the integers, which have no −0
        check += _check(whole.bitwise_right_shift_(bits), begin)  # h
    return Encoded(codes, _wrapped(check), is_in_range, points)


def decode_in_torch(codes: Tensor, reference: Tensor, side: float, bits: int) -> Decoded:
    """Return the result of the kernel, in the dtype of the reference.

    c + q·h' is computed in floating point, where q·h' is exact: one rounding, as if the integers had been converted.
    """
    x = torch.empty_like(reference)
    check, is_in_range = 0, True
    for begin, end in spans(reference):
        turns = reference[begin:end] * (1 / side)
        is_in_range &= _is_in_range(turns)
        piece = x[begin:end].copy_(codes[begin:end])
        turns.sub_(piece).mul_(2.0**-bits).round_()  # h'
        check += _check(turns.to(torch.int32), begin)
        piece.add_(turns, alpha=2.0**bits).mul_(side)
    return Decoded(x, _wrapped(check), is_in_range)


def _is_in_range(scaled: Tensor) -> bool:
    least, most = torch.aminmax(scaled)
    return float(least) > -FARTHEST and float(most) < FARTHEST  # False for a NaN


def _check(turns: Tensor, begin: int) -> int:
    """Return Σ wᵢ·hᵢ, modulo 2³², of the piece that begins at ``begin``; overwrites ``turns``."""
    n = turns.numel()
    weight = _weights_of_piece(begin)[:n] if turns.is_cpu else weights(begin, begin + n, turns.device)
    return int(turns.mul_(weight).sum(dtype=torch.int32))


def _wrapped(check: int) -> int:
    return (check + 2**31) % 2**32 - 2**31


@lru_cache(maxsize=8)
def _weights_of_piece(begin: int) -> Tensor:
    """Return the weights of a whole piece on the CPU; cached, because computing them takes longer than using them."""
    return weights(begin, begin + PIECE, torch.device("cpu"))


def weights(begin: int, end: int, device: torch.device) -> Tensor:
    """Return the odd weights of positions ``begin`` to ``end``, int32, wrapping."""
    weight = torch.arange(end - begin, dtype=torch.int32, device=device).add_((begin + 2**31) % 2**32 - 2**31)
    weight.mul_(-1640531527)  # 2^32 over the golden ratio
    weight ^= weight >> 15
    return weight.mul_(-2048144777).bitwise_or_(1)  # a prime of xxHash
