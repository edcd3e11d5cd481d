"""``Layerwise``: each parameter tensor compressed separately, small ones uncompressed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from tacit.compression.coding.typical_indices import typical_indices
from tacit.compression.compressor import (
    Compressed,
    Compressor,
    Memory,
    absent,
    pieces,
    require_count,
    require_finite,
    require_tensor,
    require_vector,
)
from tacit.compression.nominal import NominalVector
from tacit.compression.sparse import Selector, SparseVector, sparse
from tacit.errors import BadMessage, require


@dataclass(frozen=True)
class LayerwiseVector(Compressed, wire="layers"):
    """Consecutive segments, each a message or, where it is exact, its numbers."""

    sizes: Tensor  # numbers of each segment, int64
    is_exact: Tensor  # which segments are, bool
    parts: tuple[Compressed, ...]  # the messages of those that are not
    values: Tensor  # the numbers of those that are, end to end; their dtype is the vector's

    holds_messages: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_tensor("sizes", self.sizes, (torch.int64,))
        require_tensor("is_exact", self.is_exact, (torch.bool,), self.sizes.numel())
        for size in self.sizes.tolist():
            require_count("size", size)
        require_count("numbers", self.numbers)
        coded = self.sizes.numel() - int(self.is_exact.sum())
        require(
            len(self.parts) == coded,
            f"{len(self.parts)} parts came and {coded} segments are not exact; there must be one part for each.",
        )
        for part in self.parts:
            if not isinstance(part, Compressed) or isinstance(part, LayerwiseVector):
                raise ValueError(f"a {type(part).__name__} cannot be a segment of a {type(self).__name__}.")
        exact = sum(size for size, is_exact in self._segments() if is_exact)
        require_tensor("values", self.values, numbers=exact)

    @property
    def numbers(self) -> int:
        return int(sum(self.sizes.tolist()))

    @property
    def needs_reference(self) -> bool:
        return any(part.needs_reference for part in self.parts)

    def dense(self, reference: Tensor | None = None) -> Tensor:
        x, at, value_at = self.values.new_empty(self.numbers), 0, 0
        messages = iter(self.parts)
        for size, is_exact in self._segments():
            if is_exact:
                x[at : at + size] = self.values[value_at : value_at + size]
                value_at += size
            else:
                near = None if reference is None else reference[at : at + size]
                part = next(messages).of_length(size).on(x.device).dense(near)
                if part.dtype != x.dtype:
                    raise BadMessage(f"a segment of {part.dtype} came in a vector of {x.dtype}.")
                x[at : at + size] = part
            at += size
        return x

    def _segments(self) -> Iterator[tuple[int, bool]]:
        yield from zip(self.sizes.tolist(), self.is_exact.tolist(), strict=True)


@dataclass(frozen=True)
class Layerwise(Compressor):
    """``compressor`` on each parameter tensor separately: no share, scale or bucket spans two tensors.

    Tensors of fewer than ``exempt_below`` numbers (biases, norms) are sent uncompressed: compression saves little, and
    these parameters matter much. Without ``shapes`` the vector is one tensor. The parts of a sparse compressor make
    one sparse message; other parts cost 40 to 100 bytes each.
    """

    compressor: Compressor
    exempt_below: int = field(default=1024, kw_only=True)

    def __post_init__(self) -> None:
        require(
            isinstance(self.compressor, Compressor) and not isinstance(self.compressor, Layerwise),
            f"compressor={self.compressor} must be a compressor such as TopK(fraction=0.01).",
        )
        require(
            isinstance(self.exempt_below, int) and self.exempt_below >= 0,
            f"exempt_below={self.exempt_below} must be a whole number; 0 exempts nothing.",
        )
        for name in ("is_deterministic", "is_unbiased", "needs_reference"):
            object.__setattr__(self, name, getattr(self.compressor, name))

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> Compressed:
        require_vector(x)
        require_finite(x)  # so that the error names the position in x
        x, memory = x.detach(), {} if memory is None else memory
        if not shapes:
            return self.compressor.compress(x, random, memory)
        segments, messages = list(pieces(x.numel(), shapes)), []
        for index, (begin, end, shape) in enumerate(segments):
            if not self._is_exempt(shape):
                own = _segment_memory(memory, index)
                messages.append(self.compressor.compress(x[begin:end], random, own, (shape,)))
                memory.update({f"{index}/{name}": value for name, value in own.items()})
        if any(isinstance(message, SparseVector) and isinstance(message.values, Tensor) for message in messages):
            return self._merged(x, segments, messages)
        exact = [x[begin:end] for begin, end, shape in segments if self._is_exempt(shape)]
        return LayerwiseVector(
            sizes=torch.tensor([shape.numel() for shape in shapes], dtype=torch.int64),
            is_exact=torch.tensor([self._is_exempt(shape) for shape in shapes], dtype=torch.bool),
            parts=tuple(message if message.is_owned else message.snapshot() for message in messages),
            values=torch.cat(exact) if exact else x.new_empty(0),
        ).owned()

    def nominal_size_bytes(
        self, numbers: int, dtype: torch.dtype = torch.float32, shapes: Sequence[torch.Size] = ()
    ) -> int:
        inner = self.compressor
        if not shapes:
            return inner.nominal_size_bytes(numbers, dtype)
        segments = [shape for _, _, shape in pieces(numbers, shapes)]
        coded = [shape for shape in segments if not self._is_exempt(shape)]
        if coded and isinstance(inner, Selector):
            selected = [shape.numel() if self._is_exempt(shape) else inner.most(shape.numel()) for shape in segments]
            indices = typical_indices(list(zip(selected, map(torch.Size.numel, segments), strict=True)))
            return SparseVector.of(indices, absent(indices.count, dtype)).size_bytes
        return LayerwiseVector(
            sizes=torch.tensor([shape.numel() for shape in segments], dtype=torch.int64),
            is_exact=torch.tensor([self._is_exempt(shape) for shape in segments], dtype=torch.bool),
            parts=tuple(NominalVector.of(inner, shape.numel(), dtype, (shape,)) for shape in coded),
            values=absent(numbers - sum(shape.numel() for shape in coded), dtype),
        ).size_bytes

    def _is_exempt(self, shape: torch.Size) -> bool:
        return shape.numel() < self.exempt_below

    def _merged(
        self, x: Tensor, segments: Sequence[tuple[int, int, torch.Size]], messages: Sequence[Compressed]
    ) -> SparseVector:
        """Return sparse parts as one sparse vector with common indices."""
        positions, values, rest = [], [], iter(messages)
        for begin, end, shape in segments:
            if self._is_exempt(shape):
                found = x[begin:end].nonzero().view(-1)
                own = x[begin:end][found]
            else:
                part = next(rest)
                assert isinstance(part, SparseVector) and isinstance(part.values, Tensor)
                found, own = part.positions(), part.values
            positions.append(found + begin)
            values.append(own)
        return sparse(torch.cat(positions), torch.cat(values), x.numel())

    def contraction(self, dimension: int) -> float | None:
        return self.compressor.contraction_within(dimension)

    def variance(self, dimension: int) -> float | None:
        return self.compressor.variance_within(dimension)


def _segment_memory(memory: Memory, index: int) -> Memory:
    """Return the memory of one segment."""
    lead = f"{index}/"
    return {name.removeprefix(lead): value for name, value in memory.items() if name.startswith(lead)}
