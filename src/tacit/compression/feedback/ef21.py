"""EF21 (Richtárik, Sokolov & Fatkhullin, NeurIPS 2021, arXiv 2106.05203).

    c_i ← C(∇f_i(x) − g_i),  g_i ← g_i + c_i        encode, on rank i
    g ← g + (1/n) Σ c_i                             decode, on every rank
    x ← x − γ g                                     the optimizer

Each rank compresses how its gradient differs from the estimate g_i that all ranks have of it. The differences vanish
as x converges, so the compression error does too; feedback on the gradients themselves does not achieve this where the
f_i disagree.

- **Sum.** Every rank keeps its own g_i and the sum Σ g_i, to which it adds the messages in float64: 2d numbers instead
  of n·d. The sum drifts from the true one by rounding only, relative 1e-16 per message.
- **Start.** g_i = 0, so the first message is C(∇f_i(x⁰)), as in the paper. With ``init="full"`` the first message is
  the uncompressed gradient, as in the authors' code; its d numbers are counted here, and are worth 1/α messages.
- **Weights.** With weights w_i (see ``feedback``) g_i estimates w_i ∇f_i, and the mean is Σ g_i / Σ w_i. A rank that
  skips a step keeps its estimate and its weight in the mean. A rank whose data has ended takes its estimate back with
  one uncompressed message, so that the mean is that of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor

from tacit.compression.compressor import Compressed, has_methods_of
from tacit.compression.feedback.codec import Codec, Total
from tacit.compression.feedback.codec_rows import compress_differences
from tacit.compression.feedback.feedback import MeanOf
from tacit.compression.feedback.first_message import Init, check_init
from tacit.compression.feedback.latest_mean import LatestMean
from tacit.compression.feedback.state import FeedbackState, mean_of_own, own_matrix, rebalanced, start_alike, zeros
from tacit.compression.feedback.summable import SummableFeedback
from tacit.compression.feedback.updates import Update, Weights
from tacit.compression.kernels.accumulation import divided
from tacit.compression.kernels.matrix_rows import stacked
from tacit.core.host_memory import copied, scratch

_MEANS: Final = LatestMean()
_SHORT: Final = 2**18
"""Longest sum that simulated ranks share; a longer one is changed in place, without a second tensor."""


class EstimateFeedback(SummableFeedback):
    """EF21 with the hooks that its variants override: ``target``, ``direction``, ``takes_part``, ``gain``."""

    ends_in_full: ClassVar[bool] = True

    init: Init

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        return FeedbackState(rank, [0.0] * size, {"estimate": zeros(like)}, {"sum": zeros(like)})

    def encode(self, state: FeedbackState, vector: Tensor, codec: Codec) -> Compressed:
        """Return c_i = C(∇f_i − g_i), and set g_i ← g_i + c_i."""
        weight = codec.weight / self.gain(state.rank, state.ranks)
        is_plain = weight == 1.0 and has_methods_of(self, EstimateFeedback, "target")
        target = vector if is_plain else self.target(state, copied(vector, torch.float64).mul_(weight))
        if self.sends_in_full(state):
            return codec.exact_difference(target, state.own["estimate"])
        return codec.compress_difference(target, state.own["estimate"], state.warm)

    def encode_rows(
        self, states: Sequence[FeedbackState], vectors: Sequence[Tensor], codecs: Sequence[Codec]
    ) -> list[Compressed]:
        is_full = any(self.sends_in_full(state) for state in states)
        if is_full or not has_methods_of(self, EstimateFeedback, "encode"):
            return super().encode_rows(states, vectors, codecs)
        weights = [codec.weight for codec in codecs]
        if not has_methods_of(self, SummableFeedback, "gain"):
            weights = [w / self.gain(state.rank, state.ranks) for w, state in zip(weights, states, strict=True)]
        rows = stacked(vectors)
        if any(weight != 1.0 for weight in weights) or not has_methods_of(self, EstimateFeedback, "target"):
            rows = rows.double() * rows.new_tensor(weights, dtype=torch.float64).unsqueeze(1)
        if not has_methods_of(self, EstimateFeedback, "target"):
            rows = torch.stack([self.target(*each) for each in zip(states, rows, strict=True)])
        return compress_differences(codecs, rows, own_matrix(states, "estimate"), [s.warm for s in states])

    def sends_in_full(self, state: FeedbackState) -> bool:
        return self.init == "full" and not state.has_joined

    def decode(self, state: FeedbackState, total: Total, codec: Codec) -> Tensor:
        """Set Σ g_i ← Σ g_i + Σ c_i, and return the mean g."""
        if total.sum.numel() <= _SHORT and has_methods_of(self, EstimateFeedback, "decode", "direction"):
            divisor = sum(state.weights) or 1.0
            state.shared["sum"], mean = _MEANS.advance(state.shared["sum"], total.sum, divisor)
            return mean
        if has_methods_of(self, EstimateFeedback, "mean_estimate", "direction"):
            return divided(state.shared["sum"], [sum(state.weights) or 1.0], codec.dtype, total.sum)
        mean = self.mean_estimate(state, total.sum, slice(None))
        return self.direction(state, mean, codec) if total.has_data else mean

    def decode_updates_of_all(
        self, states: Sequence[FeedbackState], updates: Sequence[Update], codecs: Sequence[Codec]
    ) -> list[Tensor]:
        first, methods = states[0], ("decode_updates", "decode", "mean_estimate", "direction")
        is_plain = has_methods_of(self, EstimateFeedback, *methods) and Weights.of(updates).all_sent
        if not is_plain or any(state.shared["sum"] is not first.shared["sum"] for state in states):
            return super().decode_updates_of_all(states, updates, codecs)
        mean = self.decode_updates(first, updates, codecs[0])
        for state in states[1:]:
            state.weights[:], state.shared["sum"] = first.weights, first.shared["sum"]
        return [mean] * len(states)

    def encode_last(self, state: FeedbackState, codec: Codec) -> Compressed | None:
        """Return c_i = −g_i uncompressed, and set g_i ← 0."""
        estimate = state.own["estimate"]
        return codec.exact_difference(torch.zeros_like(estimate), estimate) if state.has_joined else None

    def mean_estimate(self, state: FeedbackState, total: Tensor, part: slice) -> Tensor:
        """Add Σ c_i of some coordinates to the sum of the estimates, and return their mean."""
        estimates = state.shared["sum"][part].add_(total)
        mean = scratch(estimates.numel(), estimates.dtype, estimates.device)
        return torch.div(estimates, sum(state.weights) or 1.0, out=mean)

    def target(self, state: FeedbackState, vector: Tensor) -> Tensor:
        """Return the vector that g_i estimates."""
        return vector

    def direction(self, state: FeedbackState, mean: Tensor, codec: Codec) -> Tensor:
        """Return the vector that the optimizer gets, given the mean g."""
        return mean

    def regrouped(self, state: FeedbackState, rank: int, members: Sequence[int], mean: MeanOf | None) -> None:
        """Set all estimates to their mean, which all ranks know from the sum, so that the mean is unchanged."""
        sending = sum(weight != 0 for weight in state.weights) or 1
        estimate, weight = state.shared["sum"] / sending, sum(state.weights) / sending
        start_alike(state, rank, members, estimate, weight)

    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """Set all estimates to their mean, so that the mean itself is unchanged."""
        state = states[rank % len(states)]
        mean = state.shared["sum"] / len(state.weights)
        own = {name: mean if name == "estimate" else mean_of_own(states, name) for name in state.own}
        return rebalanced(state, rank, size, own, {**state.shared, "sum": mean * size})


@dataclass(frozen=True, kw_only=True)
class EF21(EstimateFeedback):
    """Compress how the gradient differs from an estimate that all ranks know (Richtárik, Sokolov & Fatkhullin 2021)."""

    init: Init = "compressed"

    def __post_init__(self) -> None:
        check_init(self.init)
