"""The sum of several ranks' words on its way back to them, exact to the last bit.

Words are added in float64. A place where one rank alone spoke holds a number of the words' own dtype and travels as
such; where several spoke, eight bytes are needed. So what travels is never more than the words that went in: two of
four bytes make one of eight, and fewer places.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from tacit.compression.coding.ranges import sparse_bytes
from tacit.compression.compressor import Compressed, require_count
from tacit.compression.sparse import SparseVector, sparse


@dataclass(frozen=True)
class SumVector(Compressed, wire="sum"):
    """A float64 vector: the numbers that a smaller dtype holds exactly, and the others; None where there are none."""

    length: int
    narrow: SparseVector | None
    wide: SparseVector | None

    holds_messages: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("length", self.length)
        for name in ("narrow", "wide"):
            part = getattr(self, name)
            if part is not None and not (isinstance(part, SparseVector) and isinstance(part.values, Tensor)):
                raise ValueError(f"{name} is a {type(part).__name__} and must be some numbers of the sum.")

    @classmethod
    def of(cls, total: Tensor, words: Iterable[Compressed], dtype: torch.dtype) -> Self:
        """Return ``total``, the sum of ``words`` in float64, perhaps each times a factor; ``dtype`` is that of their
        numbers.

        A sum of several may by luck fit into ``dtype``; it goes wide all the same, so that sizes do not depend on last
        bits.
        """
        positions = total.nonzero().view(-1)
        values = total[positions]
        small = values.to(dtype)
        is_narrow = (_voices(words, total)[positions] <= 1) & (small.double() == values)
        narrow = _some(positions[is_narrow], small[is_narrow], total.numel())
        return cls(total.numel(), narrow, _some(positions[~is_narrow], values[~is_narrow], total.numel())).owned()

    @property
    def numbers(self) -> int:
        return self.length

    def dense(self, reference: Tensor | None = None) -> Tensor:
        total = torch.zeros(self.length, dtype=torch.float64)
        self.add_into(total)
        return total

    def add_into(self, target: Tensor, scale: float = 1.0) -> None:
        for part in (self.narrow, self.wide):
            if part is not None:
                part.of_length(self.length).add_into(target, scale)


def expected_sum_bytes(share: float, ranks: int, dimension: int, element_bytes: int) -> float:
    """Return how large the sum of ``ranks`` words would be that each hold a ``share`` of the coordinates, drawn
    independently.

    Ranks that learn from similar data choose similar coordinates, and their sum is smaller.
    """
    silent = (1 - share) ** (ranks - 1)
    alone, any_spoke = ranks * share * silent, 1 - silent * (1 - share)
    several = max(0.0, any_spoke - alone)
    return sparse_bytes(alone, dimension, element_bytes) + sparse_bytes(several, dimension, 8)


def _voices(words: Iterable[Compressed], like: Tensor) -> Tensor:
    """Return how many of the messages speak of each coordinate."""
    voices = torch.zeros_like(like, dtype=torch.int32)
    for message in words:
        if isinstance(message, SparseVector):
            voices[message.positions().to(like.device)] += 1
        else:
            voices += 1
    return voices


def _some(positions: Tensor, values: Tensor, length: int) -> SparseVector | None:
    return sparse(positions, values, length) if positions.numel() else None
