"""A feedback in the hands of several ranks, without any world around them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tacit.compression import Compressor
from tacit.compression.coding.ranges import range_bounds, range_split, split
from tacit.compression.feedback import Codec, Feedback, SummableFeedback, Update


class Ranks:
    """Ranks that tell each other the mean of their vectors, everybody to everybody."""

    def __init__(
        self,
        feedback: Feedback,
        compressor: Compressor,
        size: int,
        dimension: int,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.feedback, scale = feedback, feedback.scale(compressor, dimension)
        like = torch.zeros(dimension, dtype=dtype)
        self.states = [feedback.begin(rank, size, like) for rank in range(size)]
        self.codecs = [
            Codec(
                compressor,
                np.random.default_rng([seed, rank]),
                np.random.default_rng(seed),
                dimension,
                like.dtype,
                like.device,
                (),
                scale,
            )
            for rank in range(size)
        ]

    def mean(self, vectors: Sequence[Tensor], weights: Sequence[float] | None = None, rate: float = 1.0) -> Tensor:
        """Exchange updates; return the decoded mean, which must be the same on every rank."""
        weights = [1.0] * len(vectors) if weights is None else weights
        codecs = [codec._replace(weight=w, rate=rate) for codec, w in zip(self.codecs, weights, strict=True)]
        each = zip(self.states, vectors, codecs, strict=True)
        means = self.decoded([self.feedback.encode_update(s, v, c) for s, v, c in each], codecs)
        assert all(torch.equal(mean, means[0]) for mean in means)
        return means[0]

    def decoded(self, updates: list[Update], codecs: list[Codec]) -> list[Tensor]:
        """Return the mean that each rank decodes."""
        return [self.feedback.decode_updates(s, updates, c) for s, c in zip(self.states, codecs, strict=True)]


class Scattered(Ranks):
    """The same, each rank summing one range of coordinates for all."""

    feedback: SummableFeedback

    def decoded(self, updates: list[Update], codecs: list[Codec]) -> list[Tensor]:
        size, codec = len(updates), codecs[0]
        cut = range_split(codec.compressor, codec.dimension, codec.dtype.itemsize)
        self.bounds = range_bounds(codec.dimension, size, cut.multiple)
        parts = [
            [one.with_body(p) for p in split(one.body, self.bounds)] if one.body else [one] * size for one in updates
        ]
        self.received = [[given[rank] for given in parts] for rank in range(size)]
        self.replies = [
            self.feedback.reply(s, received, begin, c.of_range(end - begin))
            for s, received, begin, end, c in zip(
                self.states, self.received, self.bounds, self.bounds[1:], codecs, strict=False
            )
        ]
        return [
            self.feedback.decode_replies(s, own, received, self.replies, c)
            for s, own, received, c in zip(self.states, updates, self.received, codecs, strict=True)
        ]
