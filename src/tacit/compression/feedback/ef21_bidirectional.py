"""EF21-BC (Fatkhullin et al. 2021, arXiv 2110.03294): EF21 whose master compresses its broadcast too.

c_i ← C(∇f_i(x) − g_i),  g_i ← g_i + c_i        on rank i, as in EF21
b ← C_M(mean g_i − g),  g ← g + b               on the master; all ranks receive b
x ← x − γ g
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tacit.compression.coding.ranges import RangeSplit, range_split
from tacit.compression.compressor import Compressed, Compressor
from tacit.compression.feedback.codec import Codec
from tacit.compression.feedback.ef21 import EstimateFeedback
from tacit.compression.feedback.feedback import MeanOf
from tacit.compression.feedback.first_message import Init, check_init
from tacit.compression.feedback.state import FeedbackState, mean_of_own, rebalanced, start_alike, zeros
from tacit.compression.feedback.summable import record_weights
from tacit.compression.feedback.updates import Update
from tacit.compression.nominal import NominalVector
from tacit.core.weights import has_data
from tacit.errors import require


@dataclass(frozen=True, kw_only=True)
class EF21Bidirectional(EstimateFeedback):
    """EF21-BC: the master compresses its broadcast, b = C_M(mean g_i − g), and all ranks follow g ← g + b.

    Gathered messages need no master: every rank computes the same b from the shared random stream. The ranks' messages
    travel and are counted; the trace notes the size of b as ``broadcast_bytes``. Where each rank sums one range, it is
    the master of that range: it keeps the range's sum and sends C_M of it to all.
    """

    master: Compressor  # C_M
    init: Init = "compressed"  # of the ranks' estimates; g starts at 0

    def __post_init__(self) -> None:
        require(isinstance(self.master, Compressor), f"master={self.master!r} must be a compressor such as TopK(k=1).")
        self.check(self.master)
        check_init(self.init)

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        state = super().begin(rank, size, like)
        state.shared["followed"] = zeros(like)  # g
        return state

    def direction(self, state: FeedbackState, mean: Tensor, codec: Codec) -> Tensor:
        followed, scale = state.shared["followed"], self.scale(self.master, mean.numel())
        change = (mean - followed).to(codec.dtype)
        broadcast = self.master.compress(change, codec.shared_random, state.master, codec.shapes)  # b
        state.master_bytes = broadcast.size_bytes
        broadcast.add_into(followed, scale)
        return followed.clone()

    def reply(self, state: FeedbackState, updates: Sequence[Update], begin: int, codec: Codec) -> Compressed:
        record_weights(state, updates)
        part = slice(begin, begin + codec.dimension)
        change = self.mean_estimate(state, self.sum(state, updates, codec), part) - state.shared["followed"][part]
        if not has_data(sum(update.weight for update in updates)):
            change.zero_()
        return self.master.compress(change.to(codec.dtype), codec.random)

    def set_nominal_broadcast(self, state: FeedbackState, codec: Codec) -> None:
        state.master_bytes = codec.nominal(self.master).size_bytes

    def nominal_reply(self, split: RangeSplit, size: int, numbers: int, codec: Codec) -> NominalVector:
        return NominalVector.of(self.master, numbers, codec.dtype)

    def reply_bytes(self, split: RangeSplit, size: int, codec: Codec) -> float | None:
        found = range_split(self.master, codec.dimension, codec.dtype.itemsize)
        return None if found is None else found.size_bytes

    def decode_replies(
        self, state: FeedbackState, own: Update, updates: Sequence[Update], replies: Sequence[Compressed], codec: Codec
    ) -> Tensor:
        followed, begin = state.shared["followed"], 0
        for reply in replies:
            reply.add_into(followed[begin : begin + reply.numbers], self.scale(self.master, reply.numbers))
            begin += reply.numbers
        return followed.clone()

    def regrouped(self, state: FeedbackState, rank: int, members: Sequence[int], mean: MeanOf | None) -> None:
        """Set all estimates to their mean; one dense mean of them where a rank knows the sum of its range only."""
        if mean is None:
            super().regrouped(state, rank, members, mean)
            return
        before = state.own["estimate"].clone()
        if state.sent is not None:
            state.sent[0].add_into(before, -state.sent[1])
        is_joiner = state.ranks[state.rank] != rank
        estimate = mean(before, 0.0 if is_joiner else 1.0)
        staying = [weight for weight, other in zip(state.weights, state.ranks, strict=True) if other in members]
        start_alike(state, rank, members, estimate, sum(staying) / (len(staying) or 1))

    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """Set all estimates to their mean, computed from the estimates: a rank may know the sum of its range only."""
        mean = mean_of_own(states, "estimate")
        state = states[rank % len(states)]
        return rebalanced(state, rank, size, {"estimate": mean}, {**state.shared, "sum": mean * size})
