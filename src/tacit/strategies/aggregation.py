"""How compressed vectors are aggregated: all ranks gather all messages, or each rank sums one range of coordinates."""

from __future__ import annotations

from typing import Final, Literal

from tacit.compression.coding.ranges import range_split
from tacit.compression.compressor import Compressor
from tacit.compression.feedback.codec import Codec
from tacit.compression.feedback.feedback import Feedback
from tacit.compression.feedback.summable import SummableFeedback
from tacit.errors import nearest, require

Aggregate = Literal["auto", "gather", "scatter"]
_KNOWN: Final = ("auto", "gather", "scatter")
_HEADERS_BYTES: Final = 120  # of an ``Update`` and the message in it


def check_aggregate(aggregate: str, compressor: Compressor, feedback: Feedback) -> None:
    """Raise ``ValueError`` unless ``aggregate`` is known and possible."""
    if aggregate not in _KNOWN:
        raise ValueError(f"aggregate={aggregate!r} is unknown{nearest(str(aggregate), _KNOWN)}")
    if aggregate == "scatter":
        require(
            isinstance(feedback, SummableFeedback),
            f'aggregate="scatter" needs a feedback that decodes the sum of all messages, and {feedback} needs each '
            f'message; use "gather".',
        )
        require(
            all(range_split(part, 1, 4) is not None for part in (compressor, getattr(feedback, "master", compressor))),
            f'aggregate="scatter" needs messages that split by coordinates, and those of {compressor} with '
            f'{feedback} do not; use "gather".',
        )


def aggregation(aggregate: Aggregate, feedback: Feedback, size: int, codec: Codec) -> Literal["gather", "scatter"]:
    """Return "gather" or "scatter"; "auto" is decided by nominal sizes, which all ranks know, so they decide alike."""
    if aggregate == "gather" or size == 1 or not isinstance(feedback, SummableFeedback):
        return "gather"
    if aggregate == "scatter":
        return "scatter"
    messages = range_split(codec.compressor, codec.dimension, codec.dtype.itemsize)
    replies_bytes = None if messages is None else feedback.reply_bytes(messages, size, codec)
    if messages is None or replies_bytes is None:
        return "gather"
    scattered_bytes = (messages.size_bytes + replies_bytes) / size + 2 * _HEADERS_BYTES
    return "scatter" if scattered_bytes < messages.size_bytes + _HEADERS_BYTES else "gather"
