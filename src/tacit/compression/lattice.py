"""``Lattice``: numbers modulo q, decoded against a vector nearby (Davies et al., arXiv 2002.09268; used by SwarmSGD).

    encode(x):     c = round(x / s) mod q                                b bits each, q = 2^b
    decode(c, y):  z = s c + q s round((y − s c) / (q s))                y is the receiver's own vector

If |x − y| < s (q − 1)/2 everywhere then z = s round(x / s), so |z − x| ≤ s/2: the error depends on the distance of x
and y, not on their size. With random rounding (unbiased) the error is below s and the radius is s (q/2 − 1). Beyond the
radius a coordinate is wrong by a multiple of q s, which c does not show. So the message holds a check value; see
``kernels.lattice``. One coordinate beyond the radius is always detected, several are missed with probability 2⁻³¹.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from tacit.compression.coding.bits import pack, packed_bytes, unpack
from tacit.compression.compressor import (
    Compressed,
    Compressor,
    Memory,
    absent,
    report_not_finite,
    require_count,
    require_tensor,
    require_vector,
)
from tacit.compression.dense import DTYPES, name_of
from tacit.compression.kernels.lattice import decode, encode
from tacit.compression.kernels.magnitudes import peak
from tacit.core.specs import ALWAYS_SPELLED
from tacit.errors import LatticeOverflow, require

_FINEST: Final = 2.0**-30
"""Smallest side that is fitted, relative to the largest number: points have 32 bits."""


@dataclass(frozen=True)
class LatticeVector(Compressed, wire="latt"):
    """Each number in steps of ``side``, modulo 2^bits."""

    length: int
    bits: int
    side: float
    is_random: bool  # whether it was rounded at random
    dtype: str  # of the vector
    check: int
    codes: Tensor

    def __post_init__(self) -> None:
        require_count("length", self.length)
        require_count("bits", self.bits, 16)
        if self.bits < 2:
            raise ValueError(f"bits={self.bits} must be at least 2.")
        if not (isinstance(self.side, float) and _is_side(self.side)):
            raise ValueError(f"side={self.side!r} must be a number from 2^-126 to 2^100.")
        require(isinstance(self.is_random, bool), f"is_random={self.is_random!r} must be True or False.")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r} must be one of {', '.join(DTYPES)}.")
        require(isinstance(self.check, int), f"check={self.check!r} must be a whole number.")
        require_tensor("codes", self.codes, (torch.uint8,), packed_bytes(self.length, self.bits))

    @property
    def numbers(self) -> int:
        return self.length

    @property
    def radius(self) -> float:
        """Largest distance between the reference and the vector that was sent, in any coordinate."""
        return _radius(self.side, self.bits, self.is_random)

    @property
    def needs_reference(self) -> bool:
        return True

    @property
    def is_nominal(self) -> bool:
        """Whether the message has a size but no contents."""
        return self.codes.is_meta

    def dense(self, reference: Tensor | None = None) -> Tensor:
        """Return the vector decoded against ``reference``; raise ``LatticeOverflow`` where it is too far away."""
        if reference is None:
            raise ValueError(
                "reference=None: a Lattice is decoded against a vector near the one that was sent; give one."
            )
        require_vector(reference)
        if reference.numel() != self.length:
            raise ValueError(
                f"reference holds {reference.numel()} numbers and must hold {self.length}, as the message."
            )
        codes = unpack(self.codes.to(reference.device), self.bits, self.length)
        found = decode(codes, reference.detach(), self.side, self.bits, DTYPES[self.dtype])
        if not found.is_in_range or found.check != self.check:
            raise LatticeOverflow(self.radius, self.side)
        return found.x


@dataclass(frozen=True, kw_only=True)
class Lattice(Compressor):
    """Numbers modulo 2^bits on a grid of ``side``, decoded against a nearby vector (Davies et al., arXiv 2002.09268).

    The error is at most side/2 in every coordinate, however large the numbers are, if the receiver's reference is
    within the radius of side (2^bits − 1)/2; if not, ``dense`` raises ``LatticeOverflow``. ``side=None`` fits the side
    to twice the distance that ``observe`` has recorded in the memory; before that, to references no larger than x
    itself. There is no α or ω: the error does not depend on ‖x‖.
    """

    bits: int = field(default=8, metadata=ALWAYS_SPELLED)
    side: float | None = None
    stochastic: bool = False

    needs_reference: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(
            isinstance(self.bits, int) and 2 <= self.bits <= 16,
            f"bits={self.bits} must be a whole number from 2 to 16.",
        )
        require(
            self.side is None or _is_side(self.side),
            f"side={self.side} must be from 2^-126 to 2^100; the finest safe side is twice the largest |x − y| over "
            f"2^bits − 1.",
        )
        object.__setattr__(self, "is_deterministic", not self.stochastic)
        object.__setattr__(self, "is_unbiased", self.stochastic)

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> LatticeVector:
        return self._compressed(x, random, memory)[0]

    def compress_with_points(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, far: float | None = None
    ) -> tuple[LatticeVector, Tensor]:
        """Return the message and its points: what ``dense`` returns for any reference within the radius, to the bit.

        The reference must have the dtype of ``x``. Without ``side`` the side is fitted to references up to ``far``
        away, or, where ``far`` is None, to the distance in the memory.
        """
        message, points = self._compressed(x, random, memory, far, with_points=True)
        assert points is not None
        return message, points

    def observe(self, memory: Memory, distance: float) -> None:
        """Record the ``distance`` of a sent vector and its reference; after ``LatticeOverflow``, twice its radius."""
        old = float(memory["distance"]) if "distance" in memory else 0.0
        memory["distance"] = torch.tensor(max(distance, 0.9 * old), dtype=torch.float64)

    def radius(self, side: float) -> float:
        """Return the largest distance between a reference and x in any coordinate."""
        return _radius(side, self.bits, self.stochastic)

    def nominal_size_bytes(
        self, numbers: int, dtype: torch.dtype = torch.float32, shapes: Sequence[torch.Size] = ()
    ) -> int:
        return self.nominal_vector(numbers, dtype).size_bytes

    def nominal_vector(self, numbers: int, dtype: torch.dtype) -> LatticeVector:
        """Return a message of the exact size without contents."""
        codes = absent(packed_bytes(numbers, self.bits), torch.uint8)
        return LatticeVector(numbers, self.bits, 1.0, self.stochastic, name_of(dtype), 0, codes).owned()

    def contraction(self, dimension: int) -> None:
        return None

    def _compressed(
        self,
        x: Tensor,
        random: np.random.Generator,
        memory: Memory | None,
        far: float | None = None,
        with_points: bool = False,
    ) -> tuple[LatticeVector, Tensor | None]:
        require_vector(x)
        x = x.detach()
        side = self._side(x, memory, far)
        seed = int(random.integers(2**63)) if self.stochastic else None
        codes, check, is_in_range, points = encode(x, side, self.bits, seed, with_points)
        if not is_in_range:
            report_not_finite(x)
            raise ValueError(
                f"side={side} is too fine for numbers of {peak(x):.6g}; use a side of at least 2⁻³¹ of them."
            )
        dtype, packed = name_of(x.dtype), pack(codes, self.bits)
        return LatticeVector(x.numel(), self.bits, side, self.stochastic, dtype, check, packed).owned(), points

    def _side(self, x: Tensor, memory: Memory | None, far: float | None) -> float:
        if self.side is not None:
            return float(self.side)
        largest = peak(x)
        if far is None:
            far = 2 * float(memory["distance"]) if memory and "distance" in memory else 2 * largest
        finest = max(torch.finfo(x.dtype).eps, _FINEST) * largest
        return max(far / self.radius(1.0), finest, torch.finfo(torch.float32).tiny)


def _is_side(side: float) -> bool:
    """Return whether ``side`` and 1/``side`` are normal numbers of float32."""
    return 2.0**-126 <= side <= 2.0**100


def _radius(side: float, bits: int, is_random: bool) -> float:
    levels = 1 << bits
    return side * (levels / 2 - 1) if is_random else side * (levels - 1) / 2
