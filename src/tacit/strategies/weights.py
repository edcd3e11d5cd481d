"""Weights of ranks in a mean over ranks.

    "size"    w_i = samples behind rank i's vector: the mean over all samples, f = (1/N) Σ_s f_s
    "equal"   w_i = 1: the mean over ranks, whatever their shards hold, f = (1/n) Σ f_i

The two agree where batches are equal. In both, a rank without data (its GradScaler skipped the step, or its shard has
ended) does not count; see ``core.weights``.
"""

from __future__ import annotations

from typing import Final, Literal

from tacit.core.weights import has_data
from tacit.errors import nearest

Weights = Literal["size", "equal"]
_KNOWN: Final = ("size", "equal")


def check_weights(weights: str) -> None:
    """Raise ``ValueError`` unless ``weights`` is known."""
    if weights not in _KNOWN:
        raise ValueError(f"weights={weights!r} is unknown{nearest(weights, _KNOWN)}")


def weigh(weights: Weights, samples: float) -> float:
    """Return the weight of a rank with ``samples``, relative to the nominal batch. A weight without data stays."""
    return samples if weights == "size" or not has_data(samples) else 1.0
