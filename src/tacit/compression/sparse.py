"""A few coordinates travel: the largest (``TopK``), random ones (``RandomK``), the largest of every block
(``BlockTopK``); ``Chain`` shrinks them.

Selections are exact, and the same on every device; among equal magnitudes the lower position is taken, and a zero is
never sent by ``TopK``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from tacit.compression.coding.indices import CodedIndices, encode, encode_blocks
from tacit.compression.compressor import (
    Compressed,
    Compressor,
    Memory,
    contraction_of_unbiased,
    require_finite,
    require_tensor,
    require_vector,
)
from tacit.compression.kernels.selection import Chosen, largest, largest_of_blocks, step
from tacit.core.messages import Message
from tacit.core.specs import ALWAYS_SPELLED
from tacit.errors import BadMessage, require


@dataclass(frozen=True)
class SparseVector(Compressed, wire="sparse"):
    """Some coordinates of a vector, the others zero. ``values`` are the numbers; of a ``Chain``, a message of them."""

    length: int
    count: int
    coding: int
    parameter: int
    places: Tensor
    values: Tensor | Compressed

    holds_messages: ClassVar[bool] = True

    def __post_init__(self) -> None:
        where = self._where  # making it checks the first five fields
        if not isinstance(self.values, Message):
            require_tensor("values", self.values, numbers=where.count)

    @property
    def numbers(self) -> int:
        return self.length

    def dense(self, reference: Tensor | None = None) -> Tensor:
        values = self._values()
        return values.new_zeros(self.length).index_copy_(0, self._where.positions, values)

    def add_into(self, target: Tensor, scale: float = 1.0) -> None:
        """Add to the coordinates that were sent: the others are not touched."""
        here = self.of_length(target.numel()).on(target.device)
        values = here._values().to(target.dtype)
        target.index_add_(0, here.positions(), values if scale == 1.0 else values * scale)

    def positions(self) -> Tensor:
        """Return the ascending coordinates, as int64."""
        return self._where.positions

    @cached_property
    def _where(self) -> CodedIndices:
        return CodedIndices(self.length, self.count, self.coding, self.parameter, self.places)

    def _values(self) -> Tensor:
        """Return the numbers, where the places are."""
        if isinstance(self.values, Tensor):
            return self.values
        inner = self.values
        if not isinstance(inner, Compressed) or inner.holds_messages or inner.needs_reference:
            raise BadMessage(f"a {type(inner).__name__} cannot hold the values of a {type(self).__name__}.")
        return inner.of_length(self.count).on(self.places.device).dense()


class Selector(Compressor):
    """A compressor that sends some of the coordinates."""

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> SparseVector:
        places, values = self.select(x, random, shapes)
        return _message(places, values)

    @abstractmethod
    def select(
        self, x: Tensor, random: np.random.Generator, shapes: Sequence[torch.Size]
    ) -> tuple[CodedIndices, Tensor]:
        """Return where the chosen coordinates are and what they hold."""

    @abstractmethod
    def most(self, dimension: int) -> int:
        """Return how many coordinates of ``dimension`` travel at most."""


def sparse(positions: Tensor, values: Tensor, length: int) -> SparseVector:
    """Return a vector of ``length`` numbers that holds ``values`` at the ascending ``positions`` (int64) and zeros
    elsewhere.
    """
    return _message(encode(positions, length), values)


def _message(places: CodedIndices, values: Tensor | Compressed) -> SparseVector:
    message = object.__new__(SparseVector)  # nothing to check: the places are, and the values are ours
    message.__dict__.update(
        length=places.length, count=places.count, coding=int(places.coding), parameter=places.parameter
    )
    message.__dict__.update(places=places.packed, values=values, _where=places)
    return message.owned()


def _places(chosen: Chosen, length: int) -> tuple[CodedIndices, Tensor]:
    """Return where the chosen are and what they hold.

    Coding the places waits for a GPU, so that what is settled then is known already.
    """
    places = encode(chosen.positions, length)
    positions, values = chosen.settled()
    return (places if positions is chosen.positions else encode(positions, length)), values


def _share_of(k: int | None, fraction: float | None) -> float | None:
    """Return the fraction, after a check: 1 % where neither k nor a fraction is given, so that it prints."""
    require(k is None or fraction is None, f"k={k} and fraction={fraction} say the same thing twice; give one of them.")
    require(k is None or (isinstance(k, int) and k >= 1), f"k={k} must be a whole number, at least 1.")
    require(fraction is None or 0 < fraction <= 1, f"fraction={fraction} must be above 0 and at most 1.")
    return 0.01 if k is None and fraction is None else fraction


def _share(k: int | None, fraction: float | None, dimension: int) -> int:
    """Return how many of ``dimension`` coordinates ``k`` or ``fraction`` stand for: at least one, at most all."""
    wanted = k if k is not None else math.ceil((fraction or 0.0) * dimension - 1e-9)
    return min(max(1, wanted), dimension)


def _least_share(k: int | None, fraction: float | None, dimension: int) -> float:
    """Return the smallest share that is sent of any vector of at most ``dimension`` numbers."""
    if k is not None:
        return min(1.0, k / max(1, dimension))
    return fraction or 0.0  # rounded up, so never less


@dataclass(frozen=True, kw_only=True)
class TopK(Selector):
    """The k numbers largest in magnitude; α = k/d. Without k and fraction, 1 % of them."""

    k: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", _share_of(self.k, self.fraction))

    def select(
        self, x: Tensor, random: np.random.Generator, shapes: Sequence[torch.Size]
    ) -> tuple[CodedIndices, Tensor]:
        require_vector(x)
        return _places(largest(x.detach(), self.most(x.numel())), x.numel())

    def compress_change(
        self,
        x: Tensor,
        estimate: Tensor,
        random: np.random.Generator,
        memory: Memory | None = None,
        shapes: Sequence[torch.Size] = (),
        dtype: torch.dtype | None = None,
        scale: float = 1.0,
    ) -> Compressed:
        if scale != 1.0:  # never of a selection
            return super().compress_change(x, estimate, random, memory, shapes, dtype, scale)
        require_vector(x)
        require_vector(estimate)
        return _message(*_places(step(x.detach(), estimate, self.most(x.numel()), dtype or x.dtype), x.numel()))

    def most(self, dimension: int) -> int:
        return _share(self.k, self.fraction, dimension)

    def contraction(self, dimension: int) -> float:
        return self.most(dimension) / dimension if dimension else 1.0

    def contraction_within(self, dimension: int) -> float:
        return _least_share(self.k, self.fraction, dimension)


@dataclass(frozen=True, kw_only=True)
class RandomK(Selector):
    """k numbers drawn without replacement. Without k and fraction, 1 % of them.

    As it is, it contracts, α = k/d, which is what error feedback needs; hence the default. ``scaled`` by d/k it is
    unbiased, ω = d/k − 1, which is what plain averaging needs.
    """

    k: int | None = None
    fraction: float | None = None
    scaled: bool = False

    is_deterministic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", _share_of(self.k, self.fraction))
        object.__setattr__(self, "is_unbiased", self.scaled)

    def select(
        self, x: Tensor, random: np.random.Generator, shapes: Sequence[torch.Size]
    ) -> tuple[CodedIndices, Tensor]:
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

    def contraction_within(self, dimension: int) -> float | None:
        omega = self.variance_within(dimension)
        return _least_share(self.k, self.fraction, dimension) if omega is None else contraction_of_unbiased(omega)

    def variance_within(self, dimension: int) -> float | None:
        return 1 / _least_share(self.k, self.fraction, dimension) - 1 if self.scaled else None


@dataclass(frozen=True, kw_only=True)
class BlockTopK(Selector):
    """The k numbers largest in magnitude of every block of neighbours; α = k/block.

    Much cheaper to select than ``TopK``, a place takes ⌈log₂ block⌉ bits, and no part of the model is left out.
    """

    block: int = field(default=128, metadata=ALWAYS_SPELLED)
    k: int = field(default=1, metadata=ALWAYS_SPELLED)

    def __post_init__(self) -> None:
        require(isinstance(self.block, int) and self.block >= 1, f"block={self.block} must be a whole number above 0.")
        require(
            isinstance(self.k, int) and 1 <= self.k <= self.block,
            f"k={self.k} must be a whole number from 1 to block={self.block}.",
        )

    def select(
        self, x: Tensor, random: np.random.Generator, shapes: Sequence[torch.Size]
    ) -> tuple[CodedIndices, Tensor]:
        require_vector(x)
        block = min(self.block, max(1, x.numel()))
        within, positions, values = largest_of_blocks(x.detach(), block, min(self.k, block))
        places = encode_blocks(within, x.numel(), block)
        places.__dict__["positions"] = positions  # known, as in ``encode``
        require_finite(values, x)  # last: it waits for a GPU
        return places, values

    def most(self, dimension: int) -> int:
        return min(dimension, -(-dimension // self.block) * self.k)

    def contraction(self, dimension: int) -> float:
        return min(1.0, self.k / min(self.block, dimension)) if dimension else 1.0


@dataclass(frozen=True)
class Chain(Compressor):
    """Two in a row: ``first`` selects coordinates, ``second`` sends their values, as in ``Chain(TopK(fraction=0.01),
    QSGD(bits=8))``.

    What is not selected and what the second loses are orthogonal, so α = α₁ α₂; where both are unbiased, 1 + ω = (1 +
    ω₁)(1 + ω₂).
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
        message = self.second.compress(values, random, memory)
        return _message(places, message if message.is_owned else message.snapshot())

    def contraction(self, dimension: int) -> float | None:
        most = self.first.most(dimension)
        return self._contraction(
            self.variance(dimension), self.first.contraction(dimension), self.second.contraction(most)
        )

    def variance(self, dimension: int) -> float | None:
        return _variance(self.first.variance(dimension), self.second.variance(self.first.most(dimension)))

    def contraction_within(self, dimension: int) -> float | None:
        omega = self.variance_within(dimension)
        most = self.first.most(dimension)
        return self._contraction(omega, self.first.contraction_within(dimension), self.second.contraction_within(most))

    def variance_within(self, dimension: int) -> float | None:
        most = self.first.most(dimension)
        return _variance(self.first.variance_within(dimension), self.second.variance_within(most))

    def _contraction(self, omega: float | None, selecting: float | None, sending: float | None) -> float | None:
        if omega is not None or self.first.is_unbiased:
            return None if omega is None else contraction_of_unbiased(omega)
        return None if selecting is None or sending is None else selecting * sending


def _variance(selecting: float | None, sending: float | None) -> float | None:
    return None if selecting is None or sending is None else (1 + selecting) * (1 + sending) - 1
