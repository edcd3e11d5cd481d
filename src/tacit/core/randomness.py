"""Random streams: one per purpose and rank, all from one seed, independent of each other.

A draw from one stream does not change another, so a new fault or a longer evaluation does not change the batches of any
worker.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Streams:
    """All random streams of one run."""

    seed: int

    def numpy(self, purpose: str, rank: int = -1) -> np.random.Generator:
        """Return a new generator for ``purpose`` on ``rank`` (-1: shared by the whole run)."""
        return np.random.Generator(np.random.Philox(self._sequence(purpose, rank)))

    def torch(self, purpose: str, rank: int = -1) -> torch.Generator:
        """Return a new CPU generator for ``purpose`` on ``rank``."""
        return torch.Generator().manual_seed(self.integer(purpose, rank))

    def integer(self, purpose: str, rank: int = -1) -> int:
        """Return an integer seed for ``purpose`` on ``rank``."""
        return int(self._sequence(purpose, rank).generate_state(1, np.uint64)[0] >> np.uint64(1))

    def _sequence(self, purpose: str, rank: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(
            (self.seed & 0xFFFF_FFFF_FFFF_FFFF, zlib.crc32(purpose.encode()), (rank + 1) & 0xFFFF_FFFF)
        )
