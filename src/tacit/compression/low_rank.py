"""``LowRank``: each matrix as two thin factors (PowerSGD, Vogels et al., arXiv 1905.13727)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

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
    wide,
)
from tacit.compression.kernels.backend import PIECE
from tacit.core.specs import ALWAYS_SPELLED
from tacit.errors import require


@dataclass(frozen=True)
class LowRankVector(Compressed, wire="factor"):
    """Matrices as P Qᵀ, all other tensors uncompressed."""

    rank: int
    sizes: Tensor  # rows and columns of each tensor, int64 [tensors, 2]; 0 columns: so many numbers, exact
    factors: Tensor  # P, then Q, of each matrix, end to end
    values: Tensor  # of everything else

    def __post_init__(self) -> None:
        require_count("rank", self.rank)
        require(self.rank >= 1, f"rank={self.rank} must be at least 1.")
        require_tensor("sizes", self.sizes, (torch.int64,), dimensions=2)
        require(self.sizes.shape[1] == 2, f"sizes has {self.sizes.shape[1]} columns and must have 2.")
        for size in self.sizes.view(-1).tolist():
            require_count("size", size)
        factors = sum(self._width(rows, columns) * (rows + columns) for rows, columns in self._sizes() if columns)
        require_tensor("factors", self.factors, numbers=factors)
        exact = sum(rows for rows, columns in self._sizes() if not columns)
        require_tensor("values", self.values, (self.factors.dtype,), exact)
        require_count("numbers", self.numbers)

    @property
    def numbers(self) -> int:
        return sum(rows * max(1, columns) for rows, columns in self._sizes())

    def dense(self, reference: Tensor | None = None) -> Tensor:
        x = self.values.new_empty(self.numbers)
        for begin, part in self._parts():
            x[begin : begin + part.numel()] = part
        return x

    def add_into(self, target: Tensor, scale: float = 1.0) -> None:
        room = torch.empty(PIECE, dtype=target.dtype, device=target.device)
        for begin, part in self.of_length(target.numel()).on(target.device)._parts():
            numbers = part.numel()
            room = room if numbers <= room.numel() else room.new_empty(numbers)
            added = room[:numbers].copy_(part.to(self.values.dtype))
            target[begin : begin + numbers].add_(added if scale == 1.0 else added.mul_(scale))

    def _parts(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the vector in parts, each with its begin; a part is overwritten by the next one.

        On the CPU a part of a matrix fits into a core's second-level cache.
        """
        at, value_at, factor_at = 0, 0, 0
        room = torch.empty(0, dtype=wide(self.values.dtype), device=self.values.device)
        for rows, columns in self._sizes():
            if not columns:
                yield at, self.values[value_at : value_at + rows]
                at, value_at = at + rows, value_at + rows
                continue
            width = self._width(rows, columns)
            pair = self.factors[factor_at : factor_at + width * (rows + columns)].to(room.dtype).view(-1, width)
            together = max(1, PIECE // columns) if room.is_cpu else rows
            for first in range(0, rows, together):
                left = pair[first : min(rows, first + together)]
                size = len(left) * columns
                room = room if size <= room.numel() else room.new_empty(size)
                yield at, torch.mm(left, pair[rows:].T, out=room[:size].view(len(left), columns)).view(-1)
                at += size
            factor_at += pair.numel()

    def _sizes(self) -> Iterator[tuple[int, int]]:
        yield from self.sizes.tolist()

    def _width(self, rows: int, columns: int) -> int:
        return max(1, min(self.rank, rows, columns))


@dataclass(frozen=True, kw_only=True)
class LowRank(Compressor):
    """Each matrix M projected on r directions: P = orthonormal(M Q), sent with Mᵀ P, the next call's Q.

    Tensors of more dimensions are matrices of (first, all others). Vectors, and matrices whose factors would have more
    than half as many numbers, are sent uncompressed; without ``shapes`` that is the whole vector. From a random Q
    (drawn for the shorter side, m) E‖M − P Pᵀ M‖² ≤ (1 − r/m)‖M‖². A warm start that captures less than r/m is
    replaced by a random one, so α = r/⌊√d⌋ holds for every call.
    """

    rank: int = field(default=2, metadata=ALWAYS_SPELLED)

    is_deterministic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(isinstance(self.rank, int) and self.rank >= 1, f"rank={self.rank} must be a whole number, at least 1.")

    def compress(
        self, x: Tensor, random: np.random.Generator, memory: Memory | None = None, shapes: Sequence[torch.Size] = ()
    ) -> LowRankVector:
        require_vector(x)
        require_finite(x)
        x, memory = x.detach(), {} if memory is None else memory
        sizes, factors, values = [], [x.new_empty(0)], [x.new_empty(0)]
        for index, (begin, end, shape) in enumerate(pieces(x.numel(), shapes or (x.shape,))):
            rows, columns = self._sides(shape)
            if columns:
                matrix = x[begin:end].view(rows, columns).to(wide(x.dtype))
                left, right = self._factors(matrix, random, memory, str(index))
                factors += [left.to(x.dtype).reshape(-1), right.to(x.dtype).reshape(-1)]
            else:
                values.append(x[begin:end])
            sizes.append((rows, columns))
        table = torch.tensor(sizes, dtype=torch.int64)
        return LowRankVector(self.rank, table, torch.cat(factors), torch.cat(values)).owned()

    def nominal_size_bytes(
        self, numbers: int, dtype: torch.dtype = torch.float32, shapes: Sequence[torch.Size] = ()
    ) -> int:
        sizes = [self._sides(shape) for _, _, shape in pieces(numbers, shapes or (torch.Size([numbers]),))]
        factors = sum(self.rank * (rows + columns) for rows, columns in sizes if columns)
        exact = sum(rows for rows, columns in sizes if not columns)
        table = torch.tensor(sizes, dtype=torch.int64)
        return LowRankVector(self.rank, table, absent(factors, dtype), absent(exact, dtype)).size_bytes

    def _sides(self, shape: torch.Size) -> tuple[int, int]:
        """Return rows and columns of a tensor that is sent as factors, else its size and 0."""
        rows, columns = (shape[0], shape[1:].numel()) if len(shape) > 1 else (shape.numel(), 0)
        is_sent_as_factors = 0 < 2 * self.rank * (rows + columns) <= rows * columns
        return (rows, columns) if is_sent_as_factors else (shape.numel(), 0)

    def _factors(self, matrix: Tensor, random: np.random.Generator, memory: Memory, key: str) -> tuple[Tensor, Tensor]:
        """Return P and Q with ``matrix`` ≈ P Qᵀ, and store the directions."""
        is_wide = matrix.shape[1] > matrix.shape[0]
        tall = matrix.T if is_wide else matrix
        start = memory.get(key)
        is_warm = start is not None and start.shape == (tall.shape[1], self.rank)
        p, q = _project(tall, start if start is not None and is_warm else self._random(tall, random))
        if is_warm and float(q.square().sum()) < self.rank / tall.shape[1] * _square(matrix):
            p, q = _project(tall, self._random(tall, random))
        if bool(q.any()):
            memory[key] = torch.linalg.qr(q).Q
        return (q, p) if is_wide else (p, q)

    def _random(self, tall: Tensor, random: np.random.Generator) -> Tensor:
        return torch.from_numpy(random.standard_normal((tall.shape[1], self.rank))).to(tall)

    def contraction(self, dimension: int) -> float:
        return min(1.0, self.rank / max(1, math.isqrt(dimension)))


def _project(tall: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.linalg.qr(_product(tall, q.to(tall))).Q
    return p, _product(tall.T, p)


def _product(matrix: Tensor, thin: Tensor) -> Tensor:
    """Return ``matrix @ thin``, so that the rows of the memory of ``matrix`` are read in order."""
    return matrix @ thin if matrix.stride(1) == 1 else (thin.T.contiguous() @ matrix.T).T


def _square(matrix: Tensor) -> float:
    """Return the sum of squares."""
    return float(torch.dot(matrix.reshape(-1), matrix.reshape(-1)))
