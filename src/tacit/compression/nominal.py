"""Messages of a known size without contents: timing-only simulations send them instead of encoding vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.compression.compressor import Compressed, Compressor, require_count
from tacit.core.message_reading import HEADER


@dataclass(frozen=True)
class NominalVector(Compressed, wire="sized"):
    """Stands for a message of ``stated_bytes`` about ``length`` numbers. It decodes to zeros."""

    length: int
    stated_bytes: int

    def __post_init__(self) -> None:
        require_count("length", self.length)
        require_count("stated_bytes", self.stated_bytes)

    @classmethod
    def of(
        cls,
        compressor: Compressor,
        numbers: int,
        dtype: torch.dtype = torch.float32,
        shapes: Sequence[torch.Size] = (),
    ) -> NominalVector:
        """Return a message of the nominal size of ``compressor``."""
        return cls(numbers, compressor.nominal_size_bytes(numbers, dtype, shapes)).owned()

    @property
    def numbers(self) -> int:
        return self.length

    @property
    def size_bytes(self) -> int:
        return self.stated_bytes

    @property
    def inner_bytes(self) -> int:
        return self.stated_bytes - HEADER.size + 2

    def dense(self, reference: Tensor | None = None) -> Tensor:
        return torch.zeros(self.length)

    def add_into(self, target: Tensor, scale: float = 1.0) -> None:
        """Add nothing."""
        self.of_length(target.numel())
