"""Base class of methods that need only the sum of all messages: ``encode`` and ``decode``, as in their papers.

Participation is decided here, once:

    ``has_data(w_i)``    the rank encodes its vector, if the method lets it take part
    0 < w_i, no data     the rank has no vector in this step (its GradScaler skips): no message, the state is kept
    w_i = 0              the rank's data has ended: ``encode_last`` decides what it still sends
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from tacit.compression.coding.ranges import RangeSplit
from tacit.compression.coding.sparse_sum import SumVector, expected_sum_bytes
from tacit.compression.compressor import Compressed, has_methods_of
from tacit.compression.feedback.codec import Codec, Total, message_of, owned
from tacit.compression.feedback.feedback import Feedback
from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.updates import Update, Weights
from tacit.compression.nominal import NominalVector
from tacit.core.weights import has_data


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

    def gain(self, place: int, ranks: Sequence[int]) -> float:
        """Return the factor of the messages of the rank at ``place`` of ``ranks`` in the sum."""
        return 1.0

    def encode_update(self, state: FeedbackState, vector: Tensor, codec: Codec) -> Update:
        if codec.weight == 0.0:
            return Update(0.0, self.encode_last(state, codec))
        if not has_data(codec.weight) or not self.takes_part(state, codec):
            return Update(codec.weight)
        return Update(codec.weight, self.encode(state, vector, codec))

    def nominal_update(self, state: FeedbackState, codec: Codec) -> Update:
        return super().nominal_update(state, codec) if self.takes_part(state, codec) else Update(codec.weight)

    def encode_updates(
        self, states: Sequence[FeedbackState], vectors: Sequence[Tensor], codecs: Sequence[Codec]
    ) -> list[Update]:
        is_plain = has_methods_of(self, SummableFeedback, "encode_update")
        if not is_plain or not all(has_data(codec.weight) for codec in codecs):
            return super().encode_updates(states, vectors, codecs)
        taking = [self.takes_part(state, codec) for state, codec in zip(states, codecs, strict=True)]
        if not all(taking):
            each = zip(states, vectors, codecs, strict=True)
            return [
                Update(e[2].weight, self.encode(*e) if takes else None) for e, takes in zip(each, taking, strict=True)
            ]
        bodies = self.encode_rows(states, vectors, codecs)
        return [Update(codec.weight, owned(body)).owned() for codec, body in zip(codecs, bodies, strict=True)]

    def encode_rows(
        self, states: Sequence[FeedbackState], vectors: Sequence[Tensor], codecs: Sequence[Codec]
    ) -> list[Compressed]:
        """Return what ``encode`` returns for each of several ranks; override it where one call is faster."""
        return [self.encode(*each) for each in zip(states, vectors, codecs, strict=True)]

    def decode_updates(self, state: FeedbackState, updates: Sequence[Update], codec: Codec) -> Tensor:
        return self._decode(state, updates[state.rank], updates, self.sum(state, updates, codec), codec)

    def sum(self, state: FeedbackState, updates: Sequence[Update], codec: Codec) -> Tensor:
        """Return the sum of the ``updates``, each times the gain of its rank; do not write to it."""
        if has_methods_of(self, SummableFeedback, "gain"):
            return codec.sum(updates)
        ranks = state.ranks
        return codec.sum(updates, tuple(self.gain(place, ranks) for place in range(len(ranks))))

    # Each rank sums one range of coordinates, and replies to all.

    def reply(self, state: FeedbackState, updates: Sequence[Update], begin: int, codec: Codec) -> Compressed:
        """Return this rank's reply to all, given their parts of its range: ``codec.dimension`` numbers from ``begin``.

        It is the exact sum unless a subclass overrides it; the mean is then that of ``decode_updates`` to the bit.
        """
        return SumVector.of(self.sum(state, updates, codec), filter(None, map(message_of, updates)), codec.dtype)

    def reply_bytes(self, split: RangeSplit, size: int, codec: Codec) -> float | None:
        """Return the nominal size of all replies together, or None where replies are impossible."""
        return expected_sum_bytes(split.share, size, codec.dimension, codec.dtype.itemsize)

    def nominal_reply(self, split: RangeSplit, size: int, numbers: int, codec: Codec) -> NominalVector:
        """Return a reply of nominal size about ``numbers`` of the coordinates, for a timing-only simulation."""
        replies_bytes = self.reply_bytes(split, size, codec)
        assert replies_bytes is not None
        share = numbers / max(1, codec.dimension)
        return NominalVector(numbers, SumVector.empty_bytes() + round(replies_bytes * share)).owned()

    def decode_replies(
        self, state: FeedbackState, own: Update, updates: Sequence[Update], replies: Sequence[Compressed], codec: Codec
    ) -> Tensor:
        """Return the mean, given this rank's ``own`` update, all parts of its range, and the replies of all ranges."""
        return self._decode(state, own, updates, codec.concatenate(replies), codec)

    def _decode(
        self, state: FeedbackState, own: Update, updates: Sequence[Update], total: Tensor, codec: Codec
    ) -> Tensor:
        weights = record_weights(state, updates)
        return self.decode(state, Total(total, weights.total, message_of(own)), codec)


def record_weights(state: FeedbackState, updates: Sequence[Update]) -> Weights:
    """Record the weight of every rank that sent a vector, and return the weights of all ranks."""
    weights = Weights.of(updates)
    if weights.all_sent:
        state.weights[: len(updates)] = weights.by_rank
        return weights
    for rank, update in enumerate(updates):
        if update.body is not None:
            state.weights[rank] = update.weight
    return weights
