"""``Lattice``: numbers modulo q, decoded against a vector nearby (Davies et al., arXiv 2002.09268; used by SwarmSGD).

    encode(x):     c = round(x / s) mod q                                b bits each, q = 2^b
    decode(c, y):  z = s c + q s round((y − s c) / (q s))                y is the receiver's own vector

If |x − y| < s (q − 1)/2 everywhere then z = s round(x / s), so |z − x| ≤ s/2: the error depends on how far apart the two are and not on how large.
Rounded at random instead (unbiased) the error is below s and the radius s (q/2 − 1). Beyond the radius a coordinate is wrong by a multiple of
q s, and nothing in c tells. Hence the check value that travels: Σ wᵢ ⌊kᵢ / q⌋ mod 2⁶⁴ over k = round(x / s), with odd pseudo-random weights w;
the receiver knows these quotients just when it decoded rightly. One coordinate beyond the radius is always found, several are missed once in 2⁶³.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from tacit.compression.bits import pack, packed_bytes, unpack
from tacit.compression.compressor import (
    Compressed,
    Compressor,
    Memory,
    require_count,
    require_tensor,
    require_vector,
    wide,
)
from tacit.compression.kernels import peak, spans
from tacit.compression.whole import DTYPES
from tacit.errors import LatticeOverflow, require

_MIX: Final = (-7046029254386353131, -4658895280553007687)  # of splitmix64, as signed numbers
_FARTHEST: Final = 2.0**53
"""Steps from zero that nothing sent exceeds."""


@dataclass(frozen=True)
class LatticeVector(Compressed):
    """Each number in steps of ``side``, modulo 2^bits."""

    length: int
    bits: int
    side: float
    is_random: bool  # how it was rounded
    dtype: str  # of the vector
    check: int
    codes: Tensor

    def __post_init__(self) -> None:
        require_count("length", self.length)
        require_count("bits", self.bits, 16)
        require(self.bits >= 2, f"bits={self.bits} must be at least 2.")
        require(
            isinstance(self.side, float) and 0 < self.side < 2.0**100,
            f"side={self.side!r} must be a positive number below 2^100.",
        )
        require(isinstance(self.is_random, bool), "is_random must be True or False.")
        require(self.dtype in DTYPES, f"dtype={self.dtype!r} must be one of {', '.join(DTYPES)}.")
        require(isinstance(self.check, int), "check must be a whole number.")
        require_tensor("codes", self.codes, (torch.uint8,), packed_bytes(self.length, self.bits))

    @property
    def numbers(self) -> int:
        return self.length

    @property
    def radius(self) -> float:
        """How far the reference may be from what was sent, in any coordinate."""
        return _radius(self.side, self.bits, self.is_random)

    def dense(self, reference: Tensor | None = None) -> Tensor:
        """Return the vector decoded against ``reference``, or raise ``LatticeOverflow`` where that is too far away."""
        if reference is None:
            raise ValueError("a Lattice is decoded against a vector near the one that was sent; give dense(reference).")
        require_vector(reference)
        require(
            reference.numel() == self.length,
            f"the reference holds {reference.numel()} numbers and the message {self.length}.",
        )
        codes, dtype = unpack(self.codes, self.bits, self.length), DTYPES[self.dtype]
        work = torch.promote_types(wide(dtype), wide(reference.dtype))
        x, check, period = torch.empty(self.length, dtype=dtype, device=codes.device), 0, self.side * 2**self.bits
        for begin, end in spans(codes):
            code = codes[begin:end].to(work)
            turns = torch.sub(reference[begin:end].to(code), code, alpha=self.side).div_(period).round_()
            if not turns.abs().max() < _FARTHEST:  # NaN, or so far away that the check value would lose its bits
                raise LatticeOverflow(self.radius, self.side)
            check += _checked(turns.to(torch.int64), begin)
            x[begin:end] = turns.mul_(2.0**self.bits).add_(code).mul_(self.side)
        if _signed(check) != self.check:
            raise LatticeOverflow(self.radius, self.side)
        return x


@dataclass(frozen=True, kw_only=True)
class Lattice(Compressor):
    """Numbers modulo 2^bits on a grid of ``side``, decoded against a vector nearby (Davies et al., arXiv 2002.09268).

    The error is at most side/2 in every coordinate, however large the numbers are, if the receiver's reference is within the radius of
    side (2^bits − 1)/2; if not, ``dense`` raises ``LatticeOverflow``. ``side=None`` fits the side to twice the distance that ``observe`` was told
    of, kept in the memory; before that to references no larger than x itself. There is no α or ω: the error has nothing to do with ‖x‖.
    """

    bits: int = 8
    side: float | None = None
    stochastic: bool = False

    needs_reference: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(
            isinstance(self.bits, int) and 2 <= self.bits <= 16,
            f"bits={self.bits} must be a whole number from 2 to 16.",
        )
        require(
            self.side is None or 0 < self.side < math.inf,
            f"side={self.side} must be positive; twice the largest |x − y| over 2^bits − 1 is the finest that is safe.",
        )
        object.__setattr__(self, "is_deterministic", not self.stochastic)
        object.__setattr__(self, "is_unbiased", self.stochastic)

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> LatticeVector:
        require_vector(x)
        x = x.detach()
        largest = peak(x)
        side = self._side(largest, torch.finfo(x.dtype).eps, memory)
        require(largest / side < _FARTHEST, f"side={side} is too fine for numbers of {largest:.6g}; use a larger one.")
        coins = np.random.SFC64(int(random.integers(2**63))) if self.stochastic else None
        codes = torch.empty(x.numel(), dtype=torch.int32 if self.bits > 8 else torch.uint8, device=x.device)
        check = 0
        for begin, end in spans(x):
            steps = x[begin:end].to(wide(x.dtype), copy=True).div_(side)
            if coins is None:
                steps.round_()
            else:
                noise = np.asarray(coins.random_raw(-(-(end - begin) // 4))).view(np.uint16)[: end - begin]
                uniform = torch.from_numpy(noise.astype(np.float32)).to(steps)
                steps.add_(uniform, alpha=2**-16).add_(2**-17).floor_()
            whole = steps.to(torch.int64)
            codes[begin:end] = whole & (2**self.bits - 1)
            check += _checked(whole >> self.bits, begin)
        dtype = str(x.dtype).removeprefix("torch.")
        return LatticeVector(
            x.numel(), self.bits, side, self.stochastic, dtype, _signed(check), pack(codes, self.bits)
        ).owned()

    def observe(self, memory: Memory, distance: float) -> None:
        """Remember that a vector sent and its reference were up to ``distance`` apart; after ``LatticeOverflow`` say twice its radius."""
        old = float(memory["distance"]) if "distance" in memory else 0.0
        memory["distance"] = torch.tensor(max(distance, 0.9 * old), dtype=torch.float64)

    def radius(self, side: float) -> float:
        """Return how far a reference may be from x in any coordinate."""
        return _radius(side, self.bits, self.stochastic)

    def contraction(self, dimension: int) -> None:
        return None

    def _side(self, largest: float, epsilon: float, memory: Memory | None) -> float:
        if self.side is not None:
            return float(self.side)
        far = 2 * float(memory["distance"]) if memory and "distance" in memory else 2 * largest
        return max(far / self.radius(1.0), epsilon * largest, torch.finfo(torch.float32).tiny)


def _radius(side: float, bits: int, is_random: bool) -> float:
    levels = 1 << bits
    return side * (levels / 2 - 1) if is_random else side * (levels - 1) / 2


def _checked(quotients: Tensor, begin: int) -> int:
    """Return Σ wᵢ quotientᵢ modulo 2⁶⁴ for the coordinates from ``begin`` on."""
    weights = torch.arange(begin + 1, begin + 1 + quotients.numel(), device=quotients.device)
    weights.mul_(_MIX[0])
    weights.bitwise_xor_(weights >> 29).mul_(_MIX[1])
    weights.bitwise_xor_(weights >> 32).bitwise_or_(1)
    return int(weights.mul_(quotients).sum())


def _signed(check: int) -> int:
    """Return ``check`` modulo 2⁶⁴ as the signed number that travels."""
    return (check + 2**63) % 2**64 - 2**63
