"""EF21+ (Richtárik, Sokolov & Fatkhullin, NeurIPS 2021, arXiv 2106.05203): the better of EF21 and plain compression.

    b ← C(∇f_i(x)),  m ← g_i + C(∇f_i(x) − g_i)
    g_i ← b if ‖b − ∇f_i(x)‖ < ‖m − ∇f_i(x)‖, else m
    g ← (1/n) Σ g_i

The choice costs one flag per message. b *replaces* the estimate, so every rank keeps all estimates, n·d numbers, and
computes the mean from them. The guarantee needs a deterministic C. A rank whose data has ended sends nothing, and the
others drop its estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tacit.compression.feedback.codec import Codec, message_of
from tacit.compression.feedback.feedback import Feedback, MeanOf
from tacit.compression.feedback.first_message import Init, check_init
from tacit.compression.feedback.state import FeedbackState, rebalanced, regroup, zeros
from tacit.compression.feedback.updates import Update
from tacit.core.weights import has_data


@dataclass(frozen=True, kw_only=True)
class EF21Plus(Feedback):
    """EF21 or plain compression, whichever is nearer to the gradient; each rank keeps all ranks' estimates."""

    init: Init = "compressed"

    needs_determinism: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_init(self.init)

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        return FeedbackState(rank, [0.0] * size, shared={"estimates": zeros(like, size)})

    def encode_update(self, state: FeedbackState, vector: Tensor, codec: Codec) -> Update:
        if not has_data(codec.weight):
            return Update(codec.weight)
        estimate, gradient = state.shared["estimates"][state.rank], vector.double() * codec.weight  # g_i, ∇f_i
        if self.sends_in_full(state):
            return Update(codec.weight, codec.uncompressed(gradient.to(codec.dtype)))
        fresh = codec.compress(gradient.to(codec.dtype), {})  # b
        change = codec.compress((gradient - estimate).to(codec.dtype), state.warm)  # m − g_i
        fresh_error = torch.linalg.vector_norm(codec.decode(fresh) - gradient)
        change_error = torch.linalg.vector_norm(codec.decode(change) + estimate - gradient)
        is_fresh = float(fresh_error) < float(change_error)
        return Update(codec.weight, fresh if is_fresh else change, is_fresh)

    def sends_in_full(self, state: FeedbackState) -> bool:
        return self.init == "full" and not state.has_joined

    def decode_updates(self, state: FeedbackState, updates: Sequence[Update], codec: Codec) -> Tensor:
        estimates = state.shared["estimates"]
        for rank, update in enumerate(updates):
            has_ended = update.weight == 0.0
            if update.is_fresh or has_ended:
                estimates[rank].zero_()
            if (message := message_of(update)) is not None:
                codec.add(estimates[rank], message)
            if message is not None or has_ended:
                state.weights[rank] = update.weight
        return estimates.sum(0) / (sum(state.weights) or 1.0)

    def regrouped(self, state: FeedbackState, rank: int, members: Sequence[int], mean: MeanOf | None) -> None:
        """Drop the estimates of lost ranks; those of joiners start at 0."""
        estimates = state.shared["estimates"]
        rows = [None if place is None else estimates[place] for place in regroup(state, rank, members)]
        state.shared["estimates"] = torch.stack(
            [torch.zeros_like(estimates[0]) if row is None else row for row in rows]
        )

    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """Set all estimates to their mean, so that the mean itself is unchanged."""
        state = states[rank % len(states)]
        mean = state.shared["estimates"].mean(0)
        return rebalanced(state, rank, size, {}, {"estimates": mean.repeat(size, 1)})
