"""An exchange of compressed vectors in which each rank sums one range of coordinates and replies to all about it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Self

from torch import Tensor

from tacit.compression.coding.ranges import range_bounds, range_split, split
from tacit.compression.compressor import Compressed
from tacit.compression.feedback.codec import Codec
from tacit.compression.feedback.encoding import Encoding
from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.summable import SummableFeedback
from tacit.compression.feedback.updates import Update, computed_once
from tacit.core.messages import check_kind
from tacit.core.network import DeferredParts
from tacit.core.worker import Worker


class ScatteredUpdate(DeferredParts[Update]):
    """The update of one rank in parts, one for each range of coordinates."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self.bounds: Sequence[int] = ()  # of the ranges
        self.own: Update | None = None  # the whole update, once it is encoded

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def work(self) -> tuple[str, int] | None:
        return self._encoding.work if self.own is None else None

    def make(self) -> list[Update]:
        if self.own is None:
            self.own = self._encoding.make()
        return _parts(self.own, self.bounds)

    @classmethod
    def make_all(cls, several: Sequence[Self]) -> list[Sequence[Update]]:
        for one, own in zip(several, Encoding.make_all([one._encoding for one in several]), strict=True):
            one.own = own
        return [one.make() for one in several]


def scattered(
    worker: Worker, feedback: SummableFeedback, state: FeedbackState, update: ScatteredUpdate, codec: Codec
) -> tuple[Tensor, Sequence[Update]]:
    """Return the mean, and all parts of this rank's range; raise ``MembersChanged`` if other ranks have to sum."""
    messages = range_split(codec.compressor, codec.dimension, codec.dtype.itemsize)
    assert messages is not None
    bounds = update.bounds = range_bounds(codec.dimension, len(state.weights), messages.multiple)
    updates = worker.network.all_to_all(update)
    own = update.own
    assert own is not None
    check_kind(updates, type(own))
    begin, end = bounds[state.rank : state.rank + 2]
    reply = feedback.reply(state, updates, begin, codec.of_range(end - begin))
    decoding = f"decode {type(codec.compressor).__name__}"
    worker.spend(decoding, codec.dimension)
    replies = worker.network.all_gather(reply, continues=True)
    check_kind(replies, Compressed)
    computed_once(replies, ("lengths", *bounds), partial(_check_lengths, replies, bounds))
    mean = feedback.decode_replies(state, own, updates, replies, codec)
    worker.spend(decoding, codec.dimension)
    return mean, updates


def _parts(own: Update, bounds: Sequence[int]) -> list[Update]:
    """Return the part of ``own`` about each range; ranges without numbers may share one."""
    own = own if own.is_owned else own.snapshot()
    if own.body is None:
        return [own] * (len(bounds) - 1)
    bodies = split(own.body, bounds)
    distinct = {id(body): body for body in bodies}
    parts = {key: own.with_body(body).owned() for key, body in distinct.items()}
    return [parts[id(body)] for body in bodies]


def _check_lengths(replies: Sequence[Compressed], bounds: Sequence[int]) -> None:
    """Raise ``BadMessage`` unless each reply has the numbers of its range."""
    for reply, (begin, end) in zip(replies, pairwise(bounds), strict=True):
        reply.of_length(end - begin)
