"""An exchange of compressed vectors in which each rank sums one range of coordinates and replies to all about it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tacit.compression.coding.ranges import range_bounds, range_split, split
from tacit.compression.compressor import Compressed
from tacit.compression.feedback.codec import Codec
from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.summable import SummableFeedback
from tacit.compression.feedback.updates import Update
from tacit.core.messages import check_kind
from tacit.core.worker import Worker


def scattered(
    worker: Worker, feedback: SummableFeedback, state: FeedbackState, own: Update, codec: Codec
) -> tuple[Tensor, Sequence[Update]]:
    """Return the mean, and all parts of this rank's range; raise ``MembersChanged`` if other ranks have to sum."""
    messages = range_split(codec.compressor, codec.dimension, codec.dtype.itemsize)
    assert messages is not None
    ranks = len(state.weights)
    bounds = range_bounds(codec.dimension, ranks, messages.multiple)
    parts = [own] * ranks if own.body is None else [own.with_body(part) for part in split(own.body, bounds)]
    updates = worker.network.all_to_all(parts)
    check_kind(updates, type(own))
    begin, end = bounds[state.rank : state.rank + 2]
    reply = feedback.reply(state, updates, begin, codec.of_range(end - begin))
    decoding = f"decode {type(codec.compressor).__name__}"
    worker.spend(decoding, codec.dimension)
    replies = worker.network.all_gather(reply, continues=True)
    check_kind(replies, Compressed)
    for place, received in enumerate(replies):
        received.of_length(bounds[place + 1] - bounds[place])
    mean = feedback.decode_replies(state, own, updates, replies, codec)
    worker.spend(decoding, codec.dimension)
    return mean, updates
