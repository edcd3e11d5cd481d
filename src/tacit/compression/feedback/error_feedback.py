"""Compression without feedback (DCGD), and classic error feedback (EF14).

DCGD:   g ← (1/n) Σ C(∇f_i),  x ← x − γ g.  Converges to a neighbourhood for unbiased C; stalls or diverges for Top-k.

EF14 (Seide et al. 2014; as written by Richtárik, Sokolov & Fatkhullin, NeurIPS 2021, arXiv 2106.05203):

    m_i ← C(e_i + γ ∇f_i(x)),  e_i ← e_i + γ ∇f_i(x) − m_i,  x ← x − (1/n) Σ m_i

e_i is what compression has left out so far, in the units of the model, so that a changing γ needs no correction. With
``decay`` β < 1 (SparseLoCo, Sarfi et al., arXiv 2508.15706) m_i ← C(β e_i + γ ∇f_i(x)): old parts fade, and e_i, of
which C sends little, takes the place of an outer momentum in rounds of LocalSGD.

A rank whose data has ended continues to send C(e_i), with weight 0, until e_i = 0: messages and errors together always
add up to Σ γ ∇f_i. In an exchange where no rank has a weight the model does not move, and e_i is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tacit.compression.coding.ranges import RangeSplit
from tacit.compression.compressor import Compressed, has_methods_of
from tacit.compression.feedback.codec import Codec, Total
from tacit.compression.feedback.codec_rows import compress_rows
from tacit.compression.feedback.feedback import MeanOf
from tacit.compression.feedback.state import FeedbackState, mean_of_own, own_matrix, rebalanced, regroup, zeros
from tacit.compression.feedback.summable import SummableFeedback
from tacit.compression.feedback.updates import Update
from tacit.compression.kernels.accumulation import accumulate, divided
from tacit.compression.kernels.matrix_rows import stacked
from tacit.compression.nominal import NominalVector
from tacit.compression.sparse import Selector
from tacit.core.host_memory import scratch
from tacit.errors import require


@dataclass(frozen=True, kw_only=True)
class NoFeedback(SummableFeedback):
    """Compression without memory (DCGD): for unbiased compressors; diverges with Top-k.

    Where each rank sums one range, an unbiased quantizer rounds the sum a second time in the reply. The mean m of
    vectors t_i stays unbiased; its variance, at most (ω/n)·mean‖t_i‖² before, becomes at most ω‖m‖² +
    (1+ω)(ω/n)·mean‖t_i‖².
    """

    needs_contraction: ClassVar[bool] = False

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        return FeedbackState(rank, [0.0] * size)

    def encode(self, state: FeedbackState, vector: Tensor, codec: Codec) -> Compressed:
        weighted = scratch(vector.numel(), vector.dtype, vector.device)
        return codec.compress(torch.mul(vector, codec.weight, out=weighted), state.warm)

    def encode_rows(
        self, states: Sequence[FeedbackState], vectors: Sequence[Tensor], codecs: Sequence[Codec]
    ) -> list[Compressed]:
        weights = {codec.weight for codec in codecs}
        if len(weights) > 1 or not has_methods_of(self, NoFeedback, "encode"):
            return super().encode_rows(states, vectors, codecs)
        return compress_rows(codecs, stacked(vectors) * weights.pop(), [state.warm for state in states])

    def decode(self, state: FeedbackState, total: Total, codec: Codec) -> Tensor:
        return total.mean()

    def reply(self, state: FeedbackState, updates: Sequence[Update], begin: int, codec: Codec) -> Compressed:
        if not _rounds_twice(codec):
            return super().reply(state, updates, begin, codec)
        return codec.compressor.compress(self.sum(state, updates, codec).to(codec.dtype), codec.random)

    def nominal_reply(self, split: RangeSplit, size: int, numbers: int, codec: Codec) -> NominalVector:
        if not _rounds_twice(codec):
            return super().nominal_reply(split, size, numbers, codec)
        return NominalVector.of(codec.compressor, numbers, codec.dtype)

    def reply_bytes(self, split: RangeSplit, size: int, codec: Codec) -> float | None:
        return split.size_bytes if _rounds_twice(codec) else super().reply_bytes(split, size, codec)

    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        return rebalanced(states[rank % len(states)], rank, size, {}, {})


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback(SummableFeedback):
    """EF14: compress the step γ ∇f_i plus what compression has left out so far.

    decay: β, the share of the error that is kept from one exchange to the next; SparseLoCo uses 0.95.
    """

    decay: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.decay <= 1, f"decay={self.decay} must be above 0 and at most 1; without memory: NoFeedback().")

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        return FeedbackState(rank, [0.0] * size, own={"error": zeros(like)})

    def encode(self, state: FeedbackState, vector: Tensor, codec: Codec) -> Compressed:
        """Set e_i ← β e_i + γ ∇f_i, and return m_i = C(e_i)."""
        known = (codec.rate * codec.weight, self.decay, codec.dtype)
        return codec.compress(accumulate(state.own["error"], vector, *known), state.warm)

    def encode_rows(
        self, states: Sequence[FeedbackState], vectors: Sequence[Tensor], codecs: Sequence[Codec]
    ) -> list[Compressed]:
        factors = {codec.rate * codec.weight for codec in codecs}
        if len(factors) > 1 or not has_methods_of(self, ErrorFeedback, "encode"):
            return super().encode_rows(states, vectors, codecs)
        errors = own_matrix(states, "error")
        if self.decay != 1.0:
            errors *= self.decay
        errors += stacked(vectors) * factors.pop()
        return compress_rows(codecs, errors.to(codecs[0].dtype), [state.warm for state in states])

    def decode(self, state: FeedbackState, total: Total, codec: Codec) -> Tensor:
        """Set e_i ← e_i − m_i, and return mean m_i / γ: the optimizer multiplies by γ."""
        if total.own is not None and total.has_data:
            codec.add(state.own["error"], total.own, -1.0)
        if not total.has_data:
            return total.mean()
        return divided(total.sum, [total.weight, codec.rate or 1.0], codec.dtype)

    def encode_last(self, state: FeedbackState, codec: Codec) -> Compressed | None:
        error = state.own["error"]
        if codec.rate == 0.0 or not error.any():
            return None
        return codec.compress(error.to(codec.dtype), state.warm)

    def takes_part(self, state: FeedbackState, codec: Codec) -> bool:
        return codec.rate != 0.0  # a step of length 0 moves nothing

    def regrouped(self, state: FeedbackState, rank: int, members: Sequence[int], mean: MeanOf | None) -> None:
        """Drop the errors of lost ranks; that of a joiner is 0."""
        if state.ranks[state.rank] != rank:
            state.own["error"] = torch.zeros_like(state.own["error"])
        regroup(state, rank, members)

    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """Set every rank's error to the mean of the errors."""
        return rebalanced(states[rank % len(states)], rank, size, {"error": mean_of_own(states, "error")}, {})


def _rounds_twice(codec: Codec) -> bool:
    """Return whether a sum may be compressed again: unbiased rounding may, a second selection would lose most of it."""
    return codec.compressor.is_unbiased and not isinstance(codec.compressor, Selector)
