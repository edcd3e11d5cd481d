"""Base classes for error feedback: how a rank encodes its vector, and how all ranks decode the mean.

    encode_update    this rank's vector t_i (a gradient, or a model's change in a round)  →  its ``Update``
    decode_updates   updates in rank order  →  the mean, summed in that order and in float64: equal on all ranks

A method that needs only the sum of all messages is a ``SummableFeedback``: ``encode`` and ``decode``, as in its paper.

Participation is decided here, once. Rank i encodes w_i t_i, and the mean divides by Σ w_i. By default w_i is the batch
size; with equal batches, or ``weights="equal"`` of the strategy, w_i = 1 and the mean is the papers' (1/n) Σ.

    ``has_data(w_i)``    the rank encodes its vector, if the method lets it take part
    0 < w_i, no data     the rank has no vector in this step (its GradScaler skips): no message, the state is kept
    w_i = 0              the rank's data has ended: ``encode_last`` decides what it still sends
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from tacit.compression.coding.ranges import RangeSplit
from tacit.compression.coding.sparse_sum import SumVector, expected_sum_bytes
from tacit.compression.compressor import Compressed, Compressor
from tacit.compression.feedback.codec import Codec, Total, message_of
from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.updates import Update
from tacit.core.specs import Spec
from tacit.core.weights import has_data
from tacit.errors import require


class Feedback(Spec, ABC):
    """Base class of error feedback: how a rank encodes its vector, and how all ranks decode the mean.

    Derive a frozen keyword-only dataclass. Override ``begin`` (the state before the first exchange), ``encode``,
    ``decode`` and ``merged`` (the state when the number of ranks changes), or derive from the nearest method and
    override what differs.

    >>> from dataclasses import dataclass
    >>> import tacit
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Clipped(tacit.ErrorFeedback):
    ...     largest: float = 1.0
    ...     def encode(self, state, vector, *rest):
    ...         return super().encode(state, vector.clamp(-self.largest, self.largest), *rest)
    >>> strategy = tacit.CompressedGradient(compressor=tacit.TopK(k=1), feedback=Clipped(largest=0.5))
    >>> tacit.simulate(tacit.workloads.quadratic(dimension=3), strategy, steps=5).status
    'finished'
    """

    needs_contraction: ClassVar[bool] = True  # an unbiased compressor is then scaled by 1/(1+ω): α = 1/(1+ω)
    ends_in_full: ClassVar[bool] = False  # whether a rank whose data has ended sends one uncompressed vector
    needs_determinism: ClassVar[bool] = False

    @abstractmethod
    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        """Return the state before the first exchange of vectors like ``like``."""

    @abstractmethod
    def encode_update(self, state: FeedbackState, vector: Tensor, codec: Codec) -> Update:
        """Return this rank's update. All numbers of ``vector`` are finite."""

    @abstractmethod
    def decode_updates(self, state: FeedbackState, updates: Sequence[Update], codec: Codec) -> Tensor:
        """Return the mean of the ranks' vectors from their ``updates``, in rank order; zero where no rank has one."""

    @abstractmethod
    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """Return the state of ``rank`` of ``size`` after a run of ``len(states)`` ranks, with an unchanged mean."""

    def check(self, compressor: Compressor) -> None:
        """Raise ``ValueError`` where this feedback cannot use ``compressor``, whatever is compressed."""
        name = type(self).__name__
        reason = f"compressor={compressor} decodes against a nearby vector, and {name} has none; use TopK(…)."
        require(not compressor.needs_reference, reason)
        require(
            not self.needs_determinism or compressor.is_deterministic,
            f"{name} keeps its guarantee only with a deterministic compressor, not {compressor}; use EF21() or TopK().",
        )

    def scale(self, compressor: Compressor, dimension: int) -> float:
        """Return the factor of decoded vectors (``Codec.scale``)."""
        if not self.needs_contraction or compressor.contraction(dimension) is not None:
            return 1.0
        variance = compressor.variance(dimension)
        if variance is None:
            raise ValueError(
                f"{type(self).__name__} needs a contractive or an unbiased compressor; "
                f"for {dimension} numbers {compressor} is neither."
            )
        return 1.0 / (1.0 + variance)


class SummableFeedback(Feedback):
    """A feedback that decodes the sum of all messages, so that ranges can be summed by different ranks."""

    @abstractmethod
    def encode(self, state: FeedbackState, vector: Tensor, codec: Codec) -> Compressed:
        """Return the message of a rank that takes part, with the weight ``codec.weight``."""

    @abstractmethod
    def decode(self, state: FeedbackState, total: Total, codec: Codec) -> Tensor:
        """Return the mean of the ranks' vectors."""

    def encode_last(self, state: FeedbackState, codec: Codec) -> Compressed | None:
        """Return the message of a rank whose data has ended, or None."""
        return None

    def takes_part(self, state: FeedbackState, codec: Codec) -> bool:
        """Return whether a rank with a vector sends it in this exchange."""
        return True

    def gain(self, rank: int, size: int) -> float:
        """Return the factor of the messages of ``rank`` in the sum."""
        return 1.0

    def encode_update(self, state: FeedbackState, vector: Tensor, codec: Codec) -> Update:
        if codec.weight == 0.0:
            return Update(0.0, self.encode_last(state, codec))
        if not has_data(codec.weight) or not self.takes_part(state, codec):
            return Update(codec.weight)
        return Update(codec.weight, self.encode(state, vector, codec))

    def decode_updates(self, state: FeedbackState, updates: Sequence[Update], codec: Codec) -> Tensor:
        return self._decode(state, updates[state.rank], updates, self.sum(updates, codec), codec)

    def sum(self, updates: Sequence[Update], codec: Codec) -> Tensor:
        """Return the sum of the ``updates``, each times the gain of its rank; do not write to it."""
        return codec.sum(updates, [self.gain(rank, len(updates)) for rank in range(len(updates))])

    # Each rank sums one range of coordinates, and replies to all.

    def reply(self, state: FeedbackState, updates: Sequence[Update], begin: int, codec: Codec) -> Compressed:
        """Return this rank's reply to all, given their parts of its range: ``codec.dimension`` numbers from ``begin``.

        It is the exact sum unless a subclass overrides it; the mean is then that of ``decode_updates`` to the bit.
        """
        return SumVector.of(self.sum(updates, codec), filter(None, map(message_of, updates)), codec.dtype)

    def reply_bytes(self, split: RangeSplit, size: int, codec: Codec) -> float | None:
        """Return the nominal size of all replies together, or None where replies are impossible."""
        return expected_sum_bytes(split.share, size, codec.dimension, codec.dtype.itemsize)

    def decode_replies(
        self, state: FeedbackState, own: Update, updates: Sequence[Update], replies: Sequence[Compressed], codec: Codec
    ) -> Tensor:
        """Return the mean, given this rank's ``own`` update, all parts of its range, and the replies of all ranges."""
        return self._decode(state, own, updates, codec.concatenate(replies), codec)

    def _decode(
        self, state: FeedbackState, own: Update, updates: Sequence[Update], total: Tensor, codec: Codec
    ) -> Tensor:
        record_weights(state, updates)
        weight = sum(update.weight for update in updates)
        return self.decode(state, Total(total, weight, message_of(own)), codec)


def record_weights(state: FeedbackState, updates: Sequence[Update]) -> None:
    """Record the weight of every rank that sent a vector."""
    for rank, update in enumerate(updates):
        if update.body is not None:
            state.weights[rank] = update.weight
