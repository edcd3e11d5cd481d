"""The exchange of compressed vectors in a timing-only simulation: messages of nominal size, nothing is encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from torch import Tensor

from tacit.compression.coding.ranges import range_bounds, range_split
from tacit.compression.feedback.codec import Codec
from tacit.compression.feedback.feedback import Feedback
from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.summable import SummableFeedback
from tacit.compression.feedback.updates import Update, UpdateWithStatistics
from tacit.compression.nominal import NominalVector
from tacit.core.messages import Message
from tacit.core.network import DeferredMessage
from tacit.core.worker import Worker
from tacit.errors import MembersChanged

MessageType = TypeVar("MessageType", bound=Message)


@dataclass(frozen=True, slots=True)
class Ready(DeferredMessage[MessageType]):
    """A message that is known already, and the work of encoding that it stands for, if any."""

    message: MessageType
    encoding: tuple[str, int] | None = None

    @property
    def work(self) -> tuple[str, int] | None:
        return self.encoding

    def make(self) -> MessageType:
        return self.message


def nominal_updates(
    worker: Worker, feedback: Feedback, state: FeedbackState, codec: Codec, form: str, statistics: Tensor | None
) -> Sequence[Update]:
    """Let the time of an exchange pass, in the ``form`` "gather" or "scatter"; return the updates."""
    while form == "scatter":
        assert isinstance(feedback, SummableFeedback)
        try:
            return scatter(worker, feedback, state, codec, statistics)
        except MembersChanged:
            continue
    updates = gather(worker, feedback, state, codec, statistics)
    if state.master_bytes and worker.rank == 0:
        worker.note("broadcast_bytes", state.master_bytes)
    return updates


def gather(
    worker: Worker, feedback: Feedback, state: FeedbackState, codec: Codec, statistics: Tensor | None
) -> Sequence[Update]:
    """Let the time of a gathered exchange pass; return the updates of all ranks."""
    name = type(codec.compressor).__name__
    own = _with_statistics(feedback.nominal_update(state, codec), statistics)
    updates = worker.network.all_gather(Ready(own.owned(), (f"encode {name}", codec.dimension)))
    feedback.set_nominal_broadcast(state, codec)
    worker.spend(f"decode {name}", codec.dimension * len(updates))
    return updates


def scatter(
    worker: Worker, feedback: SummableFeedback, state: FeedbackState, codec: Codec, statistics: Tensor | None
) -> Sequence[Update]:
    """Let the time of a scattered exchange pass; return the updates of all ranks about the range of this one."""
    name, dimension = type(codec.compressor).__name__, codec.dimension
    own = _with_statistics(feedback.nominal_update(state, codec), statistics)
    worker.spend(f"encode {name}", dimension)
    messages = range_split(codec.compressor, dimension, codec.dtype.itemsize)
    assert messages is not None
    ranks = len(state.weights)
    bounds = range_bounds(dimension, ranks, messages.multiple)
    sizes = [end - begin for begin, end in pairwise(bounds)]
    parts = {numbers: _part(own, codec, numbers).owned() for numbers in set(sizes)}
    updates = worker.network.all_to_all([parts[numbers] for numbers in sizes])
    reply = feedback.nominal_reply(messages, ranks, sizes[state.rank], codec)
    worker.spend(f"decode {name}", dimension)
    worker.network.all_gather(Ready(reply), continues=True)
    worker.spend(f"decode {name}", dimension)
    return updates


def _with_statistics(update: Update, statistics: Tensor | None) -> Update:
    if statistics is None:
        return update
    return UpdateWithStatistics(update.weight, update.body, update.is_fresh, statistics)


def _part(own: Update, codec: Codec, numbers: int) -> Update:
    """Return the part of an update about ``numbers`` coordinates."""
    if own.body is None:
        return own
    empty_bytes = codec.compressor.nominal_size_bytes(0, codec.dtype)
    share = numbers / max(1, codec.dimension)
    return own.with_body(NominalVector(numbers, empty_bytes + round((own.body.size_bytes - empty_bytes) * share)))
