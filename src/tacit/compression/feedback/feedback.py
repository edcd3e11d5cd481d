"""Base classes for error feedback: how a rank encodes its vector, and how all ranks decode the mean.

    encode_update    this rank's vector t_i (a gradient, or a model's change in a round)  →  its ``Update``
    decode_updates   updates in rank order  →  the mean, summed in that order and in float64: equal on all ranks

Rank i encodes w_i t_i, and the mean divides by Σ w_i. By default w_i is the batch size; with equal batches, or
``weights="equal"`` of the strategy, w_i = 1 and the mean is the papers' (1/n) Σ. Most methods need only the sum of all
messages (``summable.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor

from tacit.compression.compressor import Compressor
from tacit.compression.dense import Dense
from tacit.compression.feedback.codec import Codec
from tacit.compression.feedback.state import FeedbackState, regroup
from tacit.compression.feedback.updates import Update
from tacit.core.specs import Spec
from tacit.errors import require

MeanOf = Callable[[Tensor, float], Tensor]


class Feedback(Spec, ABC):
    """Base class of error feedback: how a rank encodes its vector, and how all ranks decode the mean.

    Derive a frozen keyword-only dataclass. Override ``begin`` (the state before the first exchange), ``encode_update``,
    ``decode_updates`` and ``merged`` (the state when the number of ranks changes). A method that needs only the sum of
    all messages derives from ``SummableFeedback``, or from the nearest method, and overrides ``encode`` and ``decode``.

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

    def encode_updates(
        self, states: Sequence[FeedbackState], vectors: Sequence[Tensor], codecs: Sequence[Codec]
    ) -> list[Update]:
        """Return what ``encode_update`` returns for each of several ranks; override it where one call is faster.

        The simulator encodes the vectors of all ranks in one call. The codecs differ in random streams and weight.
        """
        return [self.encode_update(*each) for each in zip(states, vectors, codecs, strict=True)]

    def nominal_update(self, state: FeedbackState, codec: Codec) -> Update:
        """Return an update of nominal size for a timing-only simulation, and record that this rank has sent one."""
        body = codec.nominal(Dense() if self.sends_in_full(state) else None)
        state.weights[state.rank] = codec.weight
        return Update(codec.weight, body)

    def set_nominal_broadcast(self, state: FeedbackState, codec: Codec) -> None:
        """Record the nominal size of what a master would send, if this feedback has one."""

    def sends_in_full(self, state: FeedbackState) -> bool:
        """Return whether the next update is uncompressed."""
        return False

    @abstractmethod
    def decode_updates(self, state: FeedbackState, updates: Sequence[Update], codec: Codec) -> Tensor:
        """Return the mean of the ranks' vectors from their ``updates``, in rank order; zero where no rank has one."""

    def decode_updates_of_all(
        self, states: Sequence[FeedbackState], updates: Sequence[Update], codecs: Sequence[Codec]
    ) -> list[Tensor]:
        """Return what ``decode_updates`` returns for each of all ranks; override it where one call is faster."""
        return [self.decode_updates(state, updates, codec) for state, codec in zip(states, codecs, strict=True)]

    @abstractmethod
    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """Return the state of ``rank`` of ``size`` after a run of ``len(states)`` ranks, with an unchanged mean."""

    def regrouped(self, state: FeedbackState, rank: int, members: Sequence[int], mean: MeanOf | None) -> None:
        """Adapt ``state`` to other ``members``; that of a joiner is a copy of a member's.

        mean: returns the mean over the members of a vector with a weight, where each rank sums only its own range of
            coordinates; None: all ranks decode all messages. ``state.sent`` is decoded after this call.
        """
        regroup(state, rank, members)

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
        if not self.needs_contraction:
            return 1.0
        scale = compressor.contracting_scale(dimension)
        if scale is None:
            raise ValueError(
                f"{type(self).__name__} needs a contractive or an unbiased compressor; "
                f"for {dimension} numbers {compressor} is neither."
            )
        return scale
