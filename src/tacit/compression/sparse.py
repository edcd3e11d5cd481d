"""A few coordinates travel: the largest (``TopK``), random ones (``RandomK``), the largest of every block (``BlockTopK``); ``Chain`` shrinks them.

Selections are exact and deterministic; among equal magnitudes the lower position is taken, and a zero is never sent by ``TopK``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from tacit.compression.compressor import (
    TINY,
    Compressed,
    Compressor,
    Memory,
    contraction_of_unbiased,
    pieces,
    require_finite,
    require_tensor,
    require_vector,
)
from tacit.compression.kernels import largest, largest_of_blocks
from tacit.compression.places import Places, encode, encode_blocks
from tacit.errors import BadMessage, require
from tacit.messages import unpack


@dataclass(frozen=True)
class SparseVector(Compressed):
    """Some coordinates of a vector, the others zero. ``values`` are the numbers, or those of a ``Chain`` a packed message."""

    length: int
    count: int
    coding: int
    parameter: int
    places: Tensor
    values: Tensor | bytes

    def __post_init__(self) -> None:
        where = self._where  # making it checks the first five fields
        if not isinstance(self.values, bytes):
            require_tensor("values", self.values, numbers=where.count)

    @property
    def numbers(self) -> int:
        return self.length

    def dense(self, reference: Tensor | None = None) -> Tensor:
        values = self.values if isinstance(self.values, Tensor) else self._inner(self.values)
        positions = self._where.positions
        return values.new_zeros(self.length).index_copy_(0, positions.to(values.device), values)

    def positions(self) -> Tensor:
        """Return the ascending coordinates, as int64."""
        return self._where.positions

    @cached_property
    def _where(self) -> Places:
        return Places(self.length, self.count, self.coding, self.parameter, self.places)

    def _inner(self, packed: bytes) -> Tensor:
        inner = unpack(packed)
        if not isinstance(inner, Compressed) or isinstance(inner, SparseVector):
            raise BadMessage(f"a {inner.kind} cannot hold the values of a {self.kind}.")
        return inner.of_length(self.count).dense()


class Selector(Compressor):
    """A compressor that sends some of the coordinates."""

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> SparseVector:
        places, values = self.select(x, random, shapes)
        return _message(places, values)

    @abstractmethod
    def select(self, x: Tensor, random: np.random.Generator, shapes: Sequence[torch.Size]) -> tuple[Places, Tensor]:
        """Return where the chosen coordinates are and what they hold."""

    @abstractmethod
    def most(self, dimension: int) -> int:
        """Return how many coordinates of ``dimension`` travel at most."""


def _message(places: Places, values: Tensor | bytes) -> SparseVector:
    message = SparseVector(places.length, places.count, int(places.coding), places.parameter, places.packed, values)
    message.__dict__["_where"] = places  # with the positions it knows
    return message


def _check_share(k: int | None, fraction: float | None) -> None:
    require(k is None or fraction is None, f"k={k} and fraction={fraction} say the same thing twice; give one of them.")
    require(k is None or (isinstance(k, int) and k >= 1), f"k={k} must be a whole number, at least 1.")
    require(fraction is None or 0 < fraction <= 1, f"fraction={fraction} must be above 0 and at most 1.")


def _share(k: int | None, fraction: float | None, dimension: int) -> int:
    """Return how many of ``dimension`` coordinates ``k`` or ``fraction`` stand for: at least one, at most all."""
    wanted = k if k is not None else math.ceil((0.01 if fraction is None else fraction) * dimension - 1e-9)
    return min(max(1, wanted), dimension)


@dataclass(frozen=True, kw_only=True)
class TopK(Selector):
    """The k numbers largest in magnitude; α = k/d. Without k and fraction, 1 % of them.

    ``layerwise`` takes k (or the fraction) of every parameter tensor instead, those of fewer than 1,024 numbers whole.
    """

    k: int | None = None
    fraction: float | None = None
    layerwise: bool = False

    def __post_init__(self) -> None:
        _check_share(self.k, self.fraction)

    def select(self, x: Tensor, random: np.random.Generator, shapes: Sequence[torch.Size]) -> tuple[Places, Tensor]:
        require_vector(x)
        x = x.detach()
        if self.layerwise and shapes:
            require_finite(x)  # so that the position in a complaint is that in x
            found = [self._of_tensor(x[begin:end]) + begin for begin, end, _ in pieces(x.numel(), shapes)]
            positions = torch.cat(found)
        else:
            positions = largest(x, _share(self.k, self.fraction, x.numel()))
        return encode(positions, x.numel()), x[positions]

    def _of_tensor(self, x: Tensor) -> Tensor:
        return largest(x, x.numel() if x.numel() < TINY else _share(self.k, self.fraction, x.numel()))

    def most(self, dimension: int) -> int:
        return dimension if self.layerwise else _share(self.k, self.fraction, dimension)

    def contraction(self, dimension: int) -> float:
        if not dimension:
            return 1.0
        if self.layerwise and self.k is None:
            return 0.01 if self.fraction is None else self.fraction  # each tensor rounds up for itself
        return _share(self.k, self.fraction, dimension) / dimension


@dataclass(frozen=True, kw_only=True)
class RandomK(Selector):
    """k numbers drawn without replacement. Without k and fraction, 1 % of them.

    As it is, it contracts, α = k/d, which is what error feedback needs; hence the default. ``scaled`` by d/k it is unbiased, ω = d/k − 1, which
    is what plain averaging needs.
    """

    k: int | None = None
    fraction: float | None = None
    scaled: bool = False

    is_deterministic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_share(self.k, self.fraction)
        object.__setattr__(self, "is_unbiased", self.scaled)

    def select(self, x: Tensor, random: np.random.Generator, shapes: Sequence[torch.Size]) -> tuple[Places, Tensor]:
        require_vector(x)
        require_finite(x)
        n = x.numel()
        k = self.most(n)
        drawn = np.sort(random.choice(n, k, replace=False, shuffle=False)) if n else np.empty(0, dtype=np.int64)
        positions = torch.from_numpy(drawn.astype(np.int64, copy=False)).to(x.device)
        values = x.detach()[positions]
        if self.scaled and k < n:
            values = values * (n / k)
            require(bool(values.isfinite().all()), f"a number scaled by d/k={n / k:.6g} leaves {x.dtype}; use float32.")
        return encode(positions, n), values

    def most(self, dimension: int) -> int:
        return _share(self.k, self.fraction, dimension)

    def contraction(self, dimension: int) -> float | None:
        omega = self.variance(dimension)
        if omega is not None:
            return contraction_of_unbiased(omega)
        return self.most(dimension) / dimension if dimension else 1.0

    def variance(self, dimension: int) -> float | None:
        if not self.scaled:
            return None
        return dimension / self.most(dimension) - 1 if dimension else 0.0


@dataclass(frozen=True, kw_only=True)
class BlockTopK(Selector):
    """The k numbers largest in magnitude of every block of neighbours; α = k/block.

    Much cheaper to select than ``TopK``, a place takes ⌈log₂ block⌉ bits, and no part of the model is left out.
    """

    block: int = 128
    k: int = 1

    def __post_init__(self) -> None:
        require(isinstance(self.block, int) and self.block >= 1, f"block={self.block} must be a whole number above 0.")
        require(
            isinstance(self.k, int) and 1 <= self.k <= self.block,
            f"k={self.k} must be a whole number from 1 to block={self.block}.",
        )

    def select(self, x: Tensor, random: np.random.Generator, shapes: Sequence[torch.Size]) -> tuple[Places, Tensor]:
        require_vector(x)
        x, n = x.detach(), x.numel()
        block = min(self.block, max(1, n))
        k = min(self.k, block)
        within = largest_of_blocks(x, block, k)
        positions = (
            torch.arange(within.numel(), device=x.device).div_(k, rounding_mode="floor").mul_(block).add_(within)
        )
        places = encode_blocks(within, n, block)
        places.__dict__["positions"] = positions
        return places, x[positions]

    def most(self, dimension: int) -> int:
        return min(dimension, -(-dimension // self.block) * self.k)

    def contraction(self, dimension: int) -> float:
        return min(1.0, self.k / min(self.block, dimension)) if dimension else 1.0


@dataclass(frozen=True)
class Chain(Compressor):
    """Two in a row: ``first`` selects coordinates, ``second`` sends their values, as in ``Chain(TopK(fraction=0.01), QSGD(bits=8))``.

    What is not selected and what the second loses are orthogonal, so α = α₁ α₂; where both are unbiased, 1 + ω = (1 + ω₁)(1 + ω₂).
    """

    first: Selector
    second: Compressor

    def __post_init__(self) -> None:
        require(
            isinstance(self.first, Selector), f"first={self.first} must select coordinates: TopK, RandomK, BlockTopK."
        )
        require(
            isinstance(self.second, Compressor) and not isinstance(self.second, Selector | Chain),
            f"second={self.second} must send every value it is given: QSGD, BFloat16, Sign, Dense.",
        )
        require(not self.second.needs_reference, f"second={self.second} needs a reference; chain QSGD instead.")
        both = (self.first, self.second)
        object.__setattr__(self, "is_deterministic", all(part.is_deterministic for part in both))
        object.__setattr__(self, "is_unbiased", all(part.is_unbiased for part in both))

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> SparseVector:
        places, values = self.first.select(x, random, shapes)
        return _message(places, self.second.compress(values, random, memory).pack())

    def contraction(self, dimension: int) -> float | None:
        omega = self.variance(dimension)
        if omega is not None or self.first.is_unbiased:
            return None if omega is None else contraction_of_unbiased(omega)
        selecting = self.first.contraction(dimension)
        sending = self.second.contraction(self.first.most(dimension))
        return None if selecting is None or sending is None else selecting * sending

    def variance(self, dimension: int) -> float | None:
        selecting = self.first.variance(dimension)
        sending = self.second.variance(self.first.most(dimension))
        return None if selecting is None or sending is None else (1 + selecting) * (1 + sending) - 1
