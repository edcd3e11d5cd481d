"""Compressors that send some coordinates: ``TopK``, ``RandomK`` and ``BlockTopK``, and their message.

Selections are exact, and the same on every device. Among equal magnitudes the lower position is selected, and ``TopK``
never sends a zero.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from tacit.compression.coding.bits import packed_bytes
from tacit.compression.coding.index_rows import encode_rows
from tacit.compression.coding.indices import CodedIndices, Coding, encode, encode_blocks, width_of
from tacit.compression.coding.typical_indices import typical_indices
from tacit.compression.compressor import (
    Compressed,
    Compressor,
    Memory,
    absent,
    check_length,
    contraction_of_unbiased,
    has_methods_of,
    require_finite,
    require_tensor,
    require_vector,
)
from tacit.compression.kernels.row_selection import largest_of_rows
from tacit.compression.kernels.selection import Selection, largest, largest_of_blocks, step
from tacit.core.messages import Message
from tacit.core.specs import ALWAYS_SPELLED
from tacit.errors import BadMessage, require


@dataclass(frozen=True)
class SparseVector(Compressed, wire="sparse"):
    """Some coordinates of a vector, the others zero. ``values``: their numbers, or a message of these (``Chain``)."""

    length: int
    count: int
    coding: int
    parameter: int
    packed_indices: Tensor
    values: Tensor | Compressed
    known_indices: InitVar[CodedIndices | None] = None  # the first five fields, where they are checked already

    holds_messages: ClassVar[bool] = True

    def __post_init__(self, known_indices: CodedIndices | None) -> None:
        if known_indices is not None:
            self.__dict__["_indices"] = known_indices
        indices = self._indices  # the constructor checks the first five fields
        if not isinstance(self.values, Message):
            require_tensor("values", self.values, numbers=indices.count)

    @classmethod
    def of(cls, indices: CodedIndices, values: Tensor | Compressed) -> SparseVector:
        """Return a vector with ``values`` at ``indices``."""
        return cls(
            indices.length, indices.count, int(indices.coding), indices.parameter, indices.packed, values, indices
        )

    @property
    def numbers(self) -> int:
        return self.length

    def dense(self, reference: Tensor | None = None) -> Tensor:
        values = self._values()
        return values.new_zeros(self.length).index_copy_(0, self.positions(), values)

    def add_into(self, target: Tensor, scale: float = 1.0) -> None:
        """Add to the coordinates that were sent; the others are not read."""
        here = self.of_length(target.numel()).on(target.device)
        values = here._values().to(target.dtype)
        target.index_add_(0, here.positions(), values if scale == 1.0 else values * scale)

    @classmethod
    def add_all_into(cls, messages: Sequence[Self], target: Tensor, scales: Sequence[float]) -> None:
        parts = [message.values for message in messages if isinstance(message.values, Tensor)]
        is_plain = cls.add_into is SparseVector.add_into and len(parts) == len(messages)
        if not is_plain or any(part.device != target.device for part in parts) or set(scales) != {1.0}:
            return super().add_all_into(messages, target, scales)
        for message in messages:
            check_length(cls, message.numbers, target.numel())
        positions = torch.cat([message.positions() for message in messages])
        if len({part.dtype for part in parts}) > 1:
            parts = [part.to(target.dtype) for part in parts]
        target.index_add_(0, positions, torch.cat(parts).to(target.dtype))
        return None

    def positions(self) -> Tensor:
        """Return the ascending coordinates, as int64."""
        return self._indices.positions

    @cached_property
    def _indices(self) -> CodedIndices:
        return CodedIndices(self.length, self.count, self.coding, self.parameter, self.packed_indices)

    def _values(self) -> Tensor:
        """Return the numbers, on the device of the indices."""
        if isinstance(self.values, Tensor):
            return self.values
        inner = self.values
        if not isinstance(inner, Compressed) or inner.holds_messages or inner.needs_reference:
            raise BadMessage(f"a {type(inner).__name__} cannot hold the values of a {type(self).__name__}.")
        return inner.of_length(self.count).on(self.packed_indices.device).dense()


class Selector(Compressor):
    """A compressor that sends some of the coordinates."""

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> SparseVector:
        return SparseVector.of(*self.select(x, random, shapes)).owned()

    @abstractmethod
    def select(
        self, x: Tensor, random: np.random.Generator, shapes: Sequence[torch.Size]
    ) -> tuple[CodedIndices, Tensor]:
        """Return the selected coordinates and their values."""

    def nominal_size_bytes(
        self, numbers: int, dtype: torch.dtype = torch.float32, shapes: Sequence[torch.Size] = ()
    ) -> int:
        """Return the packed size of a typical message, in which the selected coordinates are spread at random."""
        if not has_methods_of(self, Selector, "compress"):
            return super().nominal_size_bytes(numbers, dtype, shapes)
        return self.nominal_vector(numbers, absent(self.most(numbers), dtype)).size_bytes

    def nominal_vector(self, numbers: int, values: Tensor | Compressed) -> SparseVector:
        """Return a message of typical size with these ``values``; nothing else of it can be used."""
        return SparseVector.of(typical_indices([(self.most(numbers), numbers)]), values)

    def compress_rows(
        self,
        rows: Tensor,
        randoms: Sequence[np.random.Generator],
        memories: Sequence[Memory],
        shapes: Sequence[torch.Size] = (),
    ) -> Sequence[Compressed]:
        if not has_methods_of(self, Selector, "compress"):
            return super().compress_rows(rows, randoms, memories, shapes)
        return [SparseVector.of(*one).owned() for one in self.select_rows(rows, randoms, shapes)]

    def select_rows(
        self, rows: Tensor, randoms: Sequence[np.random.Generator], shapes: Sequence[torch.Size]
    ) -> Sequence[tuple[CodedIndices, Tensor]]:
        """Return what ``select`` returns for each row; override it where one call for all rows is faster."""
        return [self.select(row, random, shapes) for row, random in zip(rows.unbind(), randoms, strict=True)]

    @abstractmethod
    def most(self, dimension: int) -> int:
        """Return the largest number of coordinates that a message about ``dimension`` numbers holds."""


def sparse(positions: Tensor, values: Tensor, length: int) -> SparseVector:
    """Return a vector of ``length`` numbers: ``values`` at the ascending ``positions`` (int64), zeros elsewhere."""
    return SparseVector.of(encode(positions, length), values).owned()


def _encoded(selection: Selection, length: int) -> tuple[CodedIndices, Tensor]:
    """Return the coordinates and values of a selection, without zeros.

    Encoding waits for a GPU; afterwards ``nonzero`` does not have to.
    """
    indices = encode(selection.positions, length)
    positions, values = selection.nonzero()
    return (indices if positions is selection.positions else encode(positions, length)), values


def _largest_of_rows(
    rows: Tensor, k: int, estimates: Tensor | None = None, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor] | None:
    """Return columns and values of the ``k`` largest of each row.

    None where a row needs ``select``: on a GPU, with zeros or numbers that are not finite.
    """
    if not rows.is_cpu or not 0 < k < rows.shape[1]:
        return None
    positions, values = largest_of_rows(rows, k, estimates, dtype)
    least, most = torch.stack(torch.aminmax(values.abs())).tolist()
    if not 0 < least <= most < math.inf:
        return None
    return positions, values


def _add_to_rows(matrix: Tensor, columns: Tensor, values: Tensor) -> None:
    """Add ``values`` at ``columns`` of each row of ``matrix``, in place."""
    places = columns + torch.arange(0, matrix.numel(), matrix.shape[1]).unsqueeze(1)
    matrix.view(-1).index_add_(0, places.view(-1), values.to(matrix.dtype).view(-1))


def _checked_fraction(k: int | None, fraction: float | None) -> float | None:
    """Return the fraction after a check; 1 % where neither is given, so that it is printed."""
    require(k is None or fraction is None, f"k={k} and fraction={fraction} exclude each other; give one of them.")
    require(k is None or (isinstance(k, int) and k >= 1), f"k={k} must be a whole number, at least 1.")
    require(fraction is None or 0 < fraction <= 1, f"fraction={fraction} must be above 0 and at most 1.")
    return 0.01 if k is None and fraction is None else fraction


def _count(k: int | None, fraction: float | None, dimension: int) -> int:
    """Return how many of ``dimension`` coordinates ``k`` or ``fraction`` selects: at least one, at most all."""
    wanted = k if k is not None else math.ceil((fraction or 0.0) * dimension - 1e-9)
    return min(max(1, wanted), dimension)


def _least_count(k: int | None, fraction: float | None, dimension: int) -> float:
    """Return the smallest share that is selected from any vector of at most ``dimension`` numbers."""
    if k is not None:
        return min(1.0, k / max(1, dimension))
    return fraction or 0.0  # rounded up, so never less


@dataclass(frozen=True, kw_only=True)
class TopK(Selector):
    """The k numbers largest in magnitude; α = k/d. Without k and fraction, 1 % of them."""

    k: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", _checked_fraction(self.k, self.fraction))

    def select(
        self, x: Tensor, random: np.random.Generator, shapes: Sequence[torch.Size]
    ) -> tuple[CodedIndices, Tensor]:
        require_vector(x)
        return _encoded(largest(x.detach(), self.most(x.numel())), x.numel())

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
        if scale != 1.0:  # Top-k is contractive, so no feedback scales it
            return super().compress_change(x, estimate, random, memory, shapes, dtype, scale)
        require_vector(x)
        require_vector(estimate)
        selection = step(x.detach(), estimate, self.most(x.numel()), dtype or x.dtype)
        return SparseVector.of(*_encoded(selection, x.numel())).owned()

    def select_rows(
        self, rows: Tensor, randoms: Sequence[np.random.Generator], shapes: Sequence[torch.Size]
    ) -> Sequence[tuple[CodedIndices, Tensor]]:
        found = _largest_of_rows(rows, self.most(rows.shape[1])) if self._is_plain else None
        if found is None:
            return super().select_rows(rows, randoms, shapes)
        positions, values = found
        return list(zip(encode_rows(positions, rows.shape[1]), values.unbind(), strict=True))

    def compress_changes(
        self,
        rows: Tensor,
        estimates: Tensor,
        randoms: Sequence[np.random.Generator],
        memories: Sequence[Memory],
        shapes: Sequence[torch.Size] = (),
        dtype: torch.dtype | None = None,
        scale: float = 1.0,
    ) -> Sequence[Compressed]:
        known = (self.most(rows.shape[1]), estimates, dtype)
        found = _largest_of_rows(rows, *known) if scale == 1.0 and self._is_plain else None
        if found is None:
            return super().compress_changes(rows, estimates, randoms, memories, shapes, dtype, scale)
        _add_to_rows(estimates, *found)
        positions, values = found
        coded = encode_rows(positions, rows.shape[1])
        return [SparseVector.of(*one).owned() for one in zip(coded, values.unbind(), strict=True)]

    @property
    def _is_plain(self) -> bool:
        return has_methods_of(self, TopK, "select", "compress_change")

    def most(self, dimension: int) -> int:
        return _count(self.k, self.fraction, dimension)

    def contraction(self, dimension: int) -> float:
        return self.most(dimension) / dimension if dimension else 1.0

    def contraction_within(self, dimension: int) -> float:
        return _least_count(self.k, self.fraction, dimension)


@dataclass(frozen=True, kw_only=True)
class RandomK(Selector):
    """k numbers drawn without replacement. Without k and fraction, 1 % of them.

    Unscaled (default) it is contractive, α = k/d, as error feedback needs. ``scaled`` by d/k it is unbiased,
    ω = d/k − 1, as plain averaging needs.
    """

    k: int | None = None
    fraction: float | None = None
    scaled: bool = False

    is_deterministic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", _checked_fraction(self.k, self.fraction))
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
            require(bool(values.isfinite().all()), f"a number times d/k={n / k:.6g} overflows {x.dtype}; use float32.")
        return encode(positions, n), values

    def most(self, dimension: int) -> int:
        return _count(self.k, self.fraction, dimension)

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
        return _least_count(self.k, self.fraction, dimension) if omega is None else contraction_of_unbiased(omega)

    def variance_within(self, dimension: int) -> float | None:
        return 1 / _least_count(self.k, self.fraction, dimension) - 1 if self.scaled else None


@dataclass(frozen=True, kw_only=True)
class BlockTopK(Selector):
    """The k numbers largest in magnitude of every block of neighbours; α = k/block.

    Selection is much cheaper than that of ``TopK``, an index takes ⌈log₂ block⌉ bits, and every block is represented.
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
        indices = encode_blocks(within, x.numel(), block, positions)
        require_finite(values, x)  # last: it waits for a GPU
        return indices, values

    def nominal_vector(self, numbers: int, values: Tensor | Compressed) -> SparseVector:
        count, block = self.most(numbers), min(self.block, max(1, numbers))
        packed = absent(packed_bytes(count, width_of(block)), torch.uint8)
        return SparseVector.of(CodedIndices(numbers, count, Coding.BLOCKS, block, packed), values)

    def most(self, dimension: int) -> int:
        return min(dimension, -(-dimension // self.block) * self.k)

    def contraction(self, dimension: int) -> float:
        return min(1.0, self.k / min(self.block, dimension)) if dimension else 1.0
