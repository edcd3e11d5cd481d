"""How a worker draws mini-batches from its shard: reshuffled epochs as one endless stream, or all of it every time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tacit.errors import require
from tacit.workloads.data.splits import Indices

_REFILL = 1024  # small shards are shuffled several epochs at a time, so that a refill is rare


def check_batch_size(batch_size: int | None) -> None:
    """Raise ``ValueError`` unless ``batch_size`` is a positive number of samples or None."""
    require(
        batch_size is None or batch_size >= 1,
        f"batch_size={batch_size} must be at least 1; for the full gradient use batch_size=None.",
    )


def batch_sizes(shards: Sequence[Indices], batch_size: int) -> list[int]:
    """Return each worker's batch size: ``batch_size``, or its whole shard where that is smaller.

    Shards that are equal but for a remainder give equal batches, the smaller: their gradients can then be evaluated
    together and weigh alike.
    """
    sizes = [min(batch_size, len(shard)) for shard in shards]
    return [min(sizes)] * len(sizes) if max(sizes) - min(sizes) <= 1 else sizes


class EpochSampler:
    """Mini-batches of ``min(batch_size, len(shard))`` samples from an endless stream of reshuffled epochs.

    A batch that reaches past the end of an epoch takes its rest from the next, so all batches have one size and,
    over any number of whole epochs, every sample is drawn equally often.
    """

    def __init__(self, shard: Indices, batch_size: int, rng: np.random.Generator) -> None:
        self.batch_size = min(batch_size, len(shard))
        self._epochs = np.tile(shard, (max(1, _REFILL // len(shard)), 1))
        self._rng = rng
        self._stream = shard[:0]
        self._position = 0

    def take(self, count: int) -> Indices:
        """Return the next ``count`` mini-batches as rows of one array."""
        size, start = self.batch_size, self._position
        end = start + count * size
        while end > len(self._stream):
            # A new array each time: batches handed out before are views of the old one.
            drawn, rest = self._draw(), self._stream[start:]
            self._stream = np.concatenate((rest, drawn)) if len(rest) else drawn
            start, end = 0, count * size
        self._position, stream = end, self._stream
        return stream[start:end].reshape(count, size, *stream.shape[1:])

    def _draw(self) -> Indices:
        """Return the samples of the next epochs, always equally many."""
        return self._rng.permuted(self._epochs, axis=1).ravel()


class ShardSampler:
    """The whole shard as one batch, the same every time: its gradient is the worker's full gradient."""

    def __init__(self, shard: Indices) -> None:
        self.batch_size = len(shard)
        self._shard = shard

    def take(self, count: int) -> list[Indices]:
        return [self._shard] * count
