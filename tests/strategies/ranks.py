"""A feedback in the hands of several ranks, without any world around them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tacit.compression import Compressor
from tacit.compression.coding.ranges import bounds_of, parting, split
from tacit.compression.feedback import Coder, Feedback, SummableFeedback, Update


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
        self.coders = [
            Coder(
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
        """Let all speak and hear; return what they understood, which must be the same on every rank."""
        weights = [1.0] * len(vectors) if weights is None else weights
        each = zip(self.states, vectors, weights, self.coders, strict=True)
        means = self.understood([self.feedback.encode(s, v, w, rate, c) for s, v, w, c in each], rate)
        assert all(torch.equal(mean, means[0]) for mean in means)
        return means[0]

    def understood(self, said: list[Update], rate: float) -> list[Tensor]:
        """Return what each rank makes of it."""
        return [self.feedback.decode(s, said, rate, c) for s, c in zip(self.states, self.coders, strict=True)]


class Scattered(Ranks):
    """The same, each rank summing one range of coordinates for all."""

    feedback: SummableFeedback

    def understood(self, said: list[Update], rate: float) -> list[Tensor]:
        size, coder = len(said), self.coders[0]
        cut = parting(coder.compressor, coder.dimension, coder.dtype.itemsize)
        self.bounds = bounds_of(coder.dimension, size, cut.multiple)
        parts = [[one.about(p) for p in split(one.message, self.bounds)] if one.body else [one] * size for one in said]
        self.heard = [[given[rank] for given in parts] for rank in range(size)]
        self.replies = [
            self.feedback.reply(s, heard, begin, c.of_range(end - begin))
            for s, heard, begin, end, c in zip(
                self.states, self.heard, self.bounds, self.bounds[1:], self.coders, strict=False
            )
        ]
        return [
            self.feedback.resolve(s, own, heard, self.replies, rate, c)
            for s, own, heard, c in zip(self.states, said, self.heard, self.coders, strict=True)
        ]
