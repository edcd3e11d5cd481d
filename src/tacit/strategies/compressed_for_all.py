"""The all-reduce of compressed vectors of all simulated ranks in one call."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from tacit.compression.feedback.codec import Codec
from tacit.compression.feedback.encoding import encoded_in_parts
from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.updates import Update
from tacit.core.worker import AllWorkers
from tacit.strategies.compressed_all_reduce import CompressedAllReduce, rounded
from tacit.strategies.vector_checks import require_finite


def all_reduce_gradients(
    exchange: CompressedAllReduce,
    ranks: AllWorkers,
    states: Sequence[FeedbackState],
    weights: Sequence[float],
    what: str,
) -> None:
    """Replace the gradient of each rank by what ``exchange.all_reduce`` returns for it; messages are gathered."""
    feedback, vectors, workers = exchange.feedback, ranks.gradients, ranks.workers
    first, dimension, name = workers[0], vectors.shape[1], type(exchange.compressor).__name__
    scale, _ = exchange.plan(first, vectors[0], len(weights))
    like = (dimension, vectors.dtype, vectors.device, first.layout.shapes, scale)
    rate = first.learning_rate
    codecs = [
        Codec(exchange.compressor, worker.random, worker.shared_random, *like, weight, rate)
        for worker, weight in zip(workers, weights, strict=True)
    ]

    def encode() -> list[Update]:
        if not math.isfinite(float(vectors.sum())):  # a finite sum has finite terms
            for worker, vector in zip(workers, vectors, strict=True):
                require_finite(worker, what, vector)
        return encoded_in_parts(feedback, states, vectors, codecs)  # type: ignore[arg-type]

    ranks.spend("flatten", dimension)
    ranks.spend(f"encode {name}", dimension)
    updates = ranks.all_gather(encode)
    means = feedback.decode_updates_of_all(states, updates, codecs)
    ranks.spend(f"decode {name}", dimension * len(updates))
    if states[0].master_bytes:
        first.note("broadcast_bytes", states[0].master_bytes)
    _put(vectors, means, updates)


def _put(vectors: Tensor, means: Sequence[Tensor], updates: Sequence[Update]) -> None:
    """Write the mean of each rank into its row; one that all share is written at once."""
    if all(mean is means[0] for mean in means):
        vectors.copy_(rounded(means[0], vectors.dtype, updates))
        return
    for vector, mean in zip(vectors, means, strict=True):
        vector.copy_(rounded(mean, vectors.dtype, updates))
