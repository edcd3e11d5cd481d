"""A compressor as one rank uses it in one exchange, and the sum of all ranks' messages."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.compression.compressor import Compressed, Compressor, Memory
from tacit.compression.dense import Dense
from tacit.compression.feedback.updates import Update, computed_once
from tacit.compression.nominal import NominalVector
from tacit.core.host_memory import scratch
from tacit.core.messages import Message
from tacit.core.weights import has_data
from tacit.errors import BadMessage


class Codec(NamedTuple):
    """A compressor with what one rank knows in one exchange: random streams, shape, weight and learning rate."""

    compressor: Compressor
    random: np.random.Generator  # this rank's own
    shared_random: np.random.Generator  # the same draws on every rank
    dimension: int
    dtype: torch.dtype  # of the model, and of the compressed vectors
    device: torch.device
    shapes: Sequence[torch.Size] = ()
    scale: float = 1.0  # factor of every decoded vector: 1/(1+ω) makes an unbiased compressor contractive
    weight: float = 1.0  # w_i, of this rank in the mean
    rate: float = 1.0  # γ, which multiplies the mean in the model

    def is_like(self, other: Codec) -> bool:
        """Return whether rows of both can be compressed in one call."""
        return (
            (self.compressor is other.compressor or self.compressor == other.compressor)
            and (self.dimension, self.dtype, self.scale) == (other.dimension, other.dtype, other.scale)
            and self.device == other.device
            and self.shapes == other.shapes
        )

    def compress(self, vector: Tensor, memory: Memory) -> Compressed:
        """Return C(vector)."""
        return owned(self.compressor.compress(vector, self.random, memory, self.shapes))

    def compress_difference(self, vector: Tensor, estimate: Tensor, memory: Memory) -> Compressed:
        """Return c = C(vector − estimate) and set estimate ← estimate + c, as every receiver does."""
        known = (self.random, memory, self.shapes, self.dtype, self.scale)
        return owned(self.compressor.compress_change(vector, estimate, *known))

    def exact_difference(self, vector: Tensor, estimate: Tensor) -> Compressed:
        """Return vector − estimate uncompressed, and set estimate ← vector up to rounding."""
        message = self.uncompressed((vector - estimate).to(self.dtype))
        self.add(estimate, message)
        return message

    def uncompressed(self, vector: Tensor) -> Compressed:
        """Return a message that decodes to ``vector``."""
        unscaled = vector if self.scale == 1.0 else vector / self.scale
        return owned(Dense().compress(unscaled, self.random, None, self.shapes))

    def nominal(self, compressor: Compressor | None = None) -> NominalVector:
        """Return a message of nominal size, of another ``compressor`` where one is given."""
        return NominalVector.of(compressor or self.compressor, self.dimension, self.dtype, self.shapes)

    def add(self, target: Tensor, message: Compressed, factor: float = 1.0) -> None:
        """Add ``factor`` times the decoded message to ``target`` in place; reads only coordinates that were sent."""
        message.add_into(target, self.scale * factor)

    def decode(self, message: Compressed) -> Tensor:
        """Return the decoded vector in float64: the numbers that every receiver decodes."""
        vector = torch.zeros(self.dimension, dtype=torch.float64, device=self.device)
        self.add(vector, message)
        return vector

    def sum(self, updates: Sequence[Update], gains: tuple[float, ...] | None = None) -> Tensor:
        """Return Σ gain_i c_i over the ``updates`` with a body, in rank order and in float64; do not write to it."""

        def add_all(total: Tensor) -> None:
            factors = gains or (1.0,) * len(updates)
            sent = [(one, f) for u, f in zip(updates, factors, strict=True) if (one := message_of(u)) is not None]
            for kind, run in groupby(sent, key=lambda one: type(one[0])):
                messages, own_factors = zip(*run, strict=True)
                kind.add_all_into(messages, total, [self.scale * factor for factor in own_factors])

        return self._computed_once(updates, (self.scale, gains), add_all)

    def concatenate(self, replies: Sequence[Compressed]) -> Tensor:
        """Return the decoded replies of consecutive ranges as one float64 vector; do not write to it."""

        def add_all(total: Tensor) -> None:
            begin = 0
            for reply in replies:
                if reply.numbers:
                    reply.add_into(total[begin : begin + reply.numbers])
                begin += reply.numbers

        return self._computed_once(replies, (), add_all)

    def of_range(self, numbers: int) -> Codec:
        """Return the codec of a range of ``numbers`` coordinates."""
        return self._replace(dimension=numbers, shapes=())

    def _computed_once(
        self, messages: Sequence[Message], factors: Hashable, add_all: Callable[[Tensor], None]
    ) -> Tensor:
        """Return float64 zeros to which ``add_all`` has added, computed by the first simulated rank for all."""

        def compute() -> Tensor:
            total = scratch(self.dimension, torch.float64, self.device).zero_()
            add_all(total)
            return total

        return computed_once(messages, (self.dimension, self.device, factors), compute)


def message_of(update: Update) -> Compressed | None:
    """Return the compressed vector of an update, or None where it has none."""
    if update.body is None or isinstance(update.body, Compressed):
        return update.body
    raise BadMessage(f"body is a {type(update.body).__name__} and must be a compressed vector.")


class Total(NamedTuple):
    """The sum of one exchange's messages."""

    sum: Tensor  # Σ c_i in float64; do not write to it
    weight: float  # Σ w_i over the ranks of this exchange
    own: Compressed | None  # the message of this rank

    @property
    def has_data(self) -> bool:
        """Whether any rank has a vector; without one, no rank steps."""
        return has_data(self.weight)

    def mean(self) -> Tensor:
        """Return Σ c_i / Σ w_i; zero where no rank has a vector."""
        mean = scratch(self.sum.numel(), self.sum.dtype, self.sum.device)
        return torch.div(self.sum, self.weight, out=mean) if self.has_data else mean.zero_()


def owned(message: Compressed) -> Compressed:
    """Return the message, or a copy of it, which does not change with the tensors of its sender."""
    return message if message.is_owned else message.snapshot()
