"""The sum of several ranks' messages as one message, exact to the last bit.

Messages are added in float64. A coordinate that one rank sent holds a number of the messages' own dtype and is sent in
it; a coordinate that several ranks sent takes eight bytes. So the sum is never larger than the messages together: two
numbers of four bytes become one of eight, and share an index.
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
    """A sparse float64 vector: the numbers that a smaller dtype holds exactly, and the others; None for no numbers."""

    length: int
    narrow: SparseVector | None
    wide: SparseVector | None

    holds_messages: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("length", self.length)
        for name in ("narrow", "wide"):
            part = getattr(self, name)
            if part is not None and not (isinstance(part, SparseVector) and isinstance(part.values, Tensor)):
                raise ValueError(f"{name} is a {type(part).__name__} and must be a SparseVector of numbers, or None.")

    @classmethod
    def of(cls, total: Tensor, messages: Iterable[Compressed], dtype: torch.dtype) -> Self:
        """Return ``total``, the float64 sum of ``messages``, perhaps times factors; ``dtype`` is that of their numbers.

        A sum of several numbers is sent wide even where it fits into ``dtype``: sizes do not depend on last bits.
        """
        positions = total.nonzero().view(-1)
        values = total[positions]
        small = values.to(dtype)
        is_narrow = (_senders(messages, total)[positions] <= 1) & (small.double() == values)
        narrow = _some(positions[is_narrow], small[is_narrow], total.numel())
        return cls(total.numel(), narrow, _some(positions[~is_narrow], values[~is_narrow], total.numel())).owned()

    @classmethod
    def empty_bytes(cls) -> int:
        """Return the size of a sum without its numbers and indices."""
        empty = torch.empty(0, dtype=torch.int64)
        narrow, wide = (sparse(empty, torch.empty(0, dtype=dtype), 0) for dtype in (torch.float32, torch.float64))
        return cls(0, narrow, wide).size_bytes

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
    """Return the expected size of the sum of ``ranks`` messages, each with a random ``share`` of the coordinates.

    Ranks with similar data select similar coordinates, and their sum is smaller.
    """
    no_other = (1 - share) ** (ranks - 1)
    one_sender, any_sender = ranks * share * no_other, 1 - no_other * (1 - share)
    several = max(0.0, any_sender - one_sender)
    return sparse_bytes(one_sender, dimension, element_bytes) + sparse_bytes(several, dimension, 8)


def _senders(messages: Iterable[Compressed], like: Tensor) -> Tensor:
    """Return how many of the messages hold each coordinate."""
    senders = torch.zeros_like(like, dtype=torch.int32)
    for message in messages:
        if isinstance(message, SparseVector):
            senders[message.positions().to(like.device)] += 1
        else:
            senders += 1
    return senders


def _some(positions: Tensor, values: Tensor, length: int) -> SparseVector | None:
    return sparse(positions, values, length) if positions.numel() else None
