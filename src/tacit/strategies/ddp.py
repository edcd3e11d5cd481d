"""Synchronous SGD as torch's ``DistributedDataParallel`` runs it: the baseline that users come from.

    g ← Σ_i g_i / n, bucket by bucket while the backward pass runs,   x ← x − γ · optimizer(g)

Gradients become ready from the last layer to the first. DDP sends them in buckets: a small first one, then large ones.
Only what is left when the backward pass ends makes the step longer (Li et al., VLDB 2020, arXiv 2006.15704).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tacit.errors import require
from tacit.strategies.all_reduce import AllReduce
from tacit.strategies.weights import Weights

_MEBIBYTE: Final = 2**20


@dataclass(frozen=True, kw_only=True)
class DDP(AllReduce):
    """Average gradients in buckets during the backward pass, as DistributedDataParallel does; for simulations.

    The simulator lets the averages of buckets overlap with the backward pass. On real processes it trains as
    ``AllReduce(weights="equal")``, without overlap; to measure DDP, wrap the model in ``DistributedDataParallel``.

    backward: share of a step's compute time in which gradients become ready at a steady rate. 0: no overlap; larger =
    more overlap.
    """

    weights: Weights = "equal"
    backward: float = (
        0.6  # two of the three matrix products of a layer belong to the backward pass; updates and data too
    )
    bucket_bytes: int = 25 * _MEBIBYTE  # bucket_cap_mb of DistributedDataParallel
    first_bucket_bytes: int = _MEBIBYTE

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.backward <= 1, f"backward={self.backward} is a share of a step's time; give 0 to 1.")
        for name in ("bucket_bytes", "first_bucket_bytes"):
            value = getattr(self, name)
            require(value >= 1, f"{name}={value} must be at least 1; DistributedDataParallel uses 25 MiB and 1 MiB.")

    def buckets(self, sizes: Sequence[int], element_bytes: int) -> Iterator[int]:
        """Yield the elements of each bucket, in the order in which their gradients become ready.

        sizes: elements of the parameters, in the order of the module. A bucket is full when a parameter reaches its
        limit; no parameter is divided. The number of all elements alone stands for small parameters.
        """
        limit, filled = self.first_bucket_bytes, 0
        if len(sizes) == 1:
            yield from self._even_buckets(sizes[0], element_bytes)
            return
        for size in reversed(sizes):
            filled += size
            if filled * element_bytes >= limit:
                yield filled
                limit, filled = self.bucket_bytes, 0
        if filled:
            yield filled

    def _even_buckets(self, elements: int, element_bytes: int) -> Iterator[int]:
        limit = self.first_bucket_bytes
        while elements > 0:
            size = min(elements, max(1, limit // element_bytes))
            yield size
            elements, limit = elements - size, self.bucket_bytes
