"""The update of one rank, encoded when the all-gather needs it: in the simulator together with the other ranks'."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from torch import Tensor

from tacit.compression.feedback.codec import Codec, message_of
from tacit.compression.feedback.feedback import Feedback
from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.updates import Update, UpdateWithStatistics
from tacit.compression.kernels.matrix_rows import matrix_of
from tacit.core.network import DeferredMessage

_NUMBERS: Final = 2**21
"""Numbers that are encoded at once, which limits memory; where this is one vector, ranks encode one by one."""


@dataclass(frozen=True, slots=True)
class Encoding(DeferredMessage[Update]):
    """The arguments of ``encode_update``. ``statistics`` travel uncompressed in the update.

    check: raises where the vector cannot be encoded; called before any state changes, unless all vectors are finite.
    """

    feedback: Feedback
    state: FeedbackState
    vector: Tensor
    codec: Codec
    statistics: Tensor | None = None
    check: Callable[[Tensor], None] | None = None

    @property
    def work(self) -> tuple[str, int]:
        return f"encode {type(self.codec.compressor).__name__}", self.codec.dimension

    def make(self) -> Update:
        if self.check is not None:
            self.check(self.vector)
        return self._sent(self.feedback.encode_update(self.state, self.vector, self.codec))

    @classmethod
    def make_all(cls, several: Sequence[Self]) -> list[Update]:
        first = several[0]
        if not all(first._is_like(one) for one in several):
            return [one.make() for one in several]
        vectors = _checked(several)
        states, codecs = [one.state for one in several], [one.codec for one in several]
        updates = encoded_in_parts(first.feedback, states, vectors, codecs)
        return [one._sent(update) for one, update in zip(several, updates, strict=True)]

    @property
    def kind(self) -> type[Update]:
        """The class of the update."""
        return Update if self.statistics is None else UpdateWithStatistics

    def _sent(self, update: Update) -> Update:
        """Return the update with the statistics, and remember its message until it is decoded."""
        body = message_of(update)
        self.state.sent = None if body is None else (body, self.codec.scale)
        if self.statistics is None:
            return update
        return UpdateWithStatistics(update.weight, update.body, update.is_fresh, self.statistics)

    def _is_like(self, other: Encoding) -> bool:
        """Return whether two ranks encode vectors of one size with the same objects, as in a simulation."""
        return other.feedback is self.feedback and other.codec.is_like(self.codec)


def encoded_in_parts(
    feedback: Feedback, states: Sequence[FeedbackState], vectors: Sequence[Tensor], codecs: Sequence[Codec]
) -> list[Update]:
    """Return the updates of several ranks, encoded together up to a number of numbers."""
    updates: list[Update] = []
    at_once = max(1, _NUMBERS // max(1, codecs[0].dimension))
    for begin in range(0, len(states), at_once):
        some = slice(begin, begin + at_once)
        updates += feedback.encode_updates(states[some], vectors[some], codecs[some])
    return updates


def _checked(several: Sequence[Encoding]) -> Sequence[Tensor]:
    """Return the vectors of all ranks after a check; rows of one matrix as that matrix, checked in one pass."""
    vectors: Sequence[Tensor] = [one.vector for one in several]
    matrix = matrix_of(vectors)
    if matrix is not None and math.isfinite(float(matrix.sum())):  # a finite sum has finite terms
        return matrix  # type: ignore[return-value]
    for one in several:
        if one.check is not None:
            one.check(one.vector)
    return vectors if matrix is None else matrix  # type: ignore[return-value]
