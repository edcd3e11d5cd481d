"""No feedback, and the classic one.

DCGD:  g ← (1/n) Σ C(∇f_i),  x ← x − γ g.  Converges to a neighbourhood for unbiased C; for Top-k it stalls or diverges: the control.

EF14 (Seide et al. 2014; as written by Richtárik, Sokolov & Fatkhullin, NeurIPS 2021, arXiv 2106.05203):
    w_i ← C(e_i + γ ∇f_i(x)),  e_i ← e_i + γ ∇f_i(x) − w_i,  x ← x − (1/n) Σ w_i
What was left out is said later. The compressed object contains γ, so e_i is in the model's units and a changing γ needs
no correction.

**A rank whose data has ended** goes on saying what it owes, C(e_i) with weight 0, until nothing is left: all that was
said and all that is owed add up to Σ γ ∇f_i with and without it. Words count as said only where they moved the model:
in an exchange where nobody has any weight they stay owed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tacit.compression import Selector
from tacit.compression.coding.ranges import RangeSplit
from tacit.compression.compressor import Compressed
from tacit.compression.feedback.feedback import (
    Coder,
    FeedbackState,
    SummableFeedback,
    Update,
    alike,
    mean_of,
    zeros,
)
from tacit.core.weights import has_data


@dataclass(frozen=True, kw_only=True)
class NoFeedback(SummableFeedback):
    """Compress and forget (DCGD): fine for unbiased compressors, the diverging control for Top-k.

    Where ranges are summed by different ranks, an unbiased quantizer rounds the sum a second time on its way back. The
    mean m of vectors t_i stays unbiased; its variance, at most (ω/n)·mean‖t_i‖² before, becomes at most ω‖m‖² +
    (1+ω)(ω/n)·mean‖t_i‖².
    """

    needs_contraction: ClassVar[bool] = False

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        return FeedbackState(rank, [0.0] * size)

    def encode(self, state: FeedbackState, vector: Tensor, weight: float, rate: float, coder: Coder) -> Update:
        return coder.say(vector * weight, weight, state.warm) if has_data(weight) else Update(weight)

    def reply(self, state: FeedbackState, said: Sequence[Update], begin: int, coder: Coder) -> Compressed:
        if not _rounds_twice(coder):
            return super().reply(state, said, begin, coder)
        return coder.compressor.compress(self.total(said, coder).to(coder.dtype), coder.random)

    def reply_bytes(self, words: RangeSplit, size: int, coder: Coder) -> float | None:
        return words.size_bytes if _rounds_twice(coder) else super().reply_bytes(words, size, coder)

    def settle(
        self, state: FeedbackState, own: Update, said: Sequence[Update], total: Tensor, rate: float, coder: Coder
    ) -> Tensor:
        return _mean(state, said, total)

    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        return alike(states[rank % len(states)], rank, size, {}, {})


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback(SummableFeedback):
    """Say later what was left out (EF14): the compressed vector is the step γ ∇f_i plus all that was not said so far."""

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        return FeedbackState(rank, [0.0] * size, own={"error": zeros(like)})

    def encode(self, state: FeedbackState, vector: Tensor, weight: float, rate: float, coder: Coder) -> Update:
        owed = state.own["error"]
        has_ended = weight == 0.0
        # A step of length 0 can pay no debts.
        if rate == 0.0 or (not has_data(weight) and not (has_ended and owed.any())):
            return Update(weight)
        if not has_ended:
            owed += vector * (rate * weight)  # e_i + γ ∇f_i
        return coder.say(owed.to(vector.dtype), weight, state.warm)  # w_i

    def settle(
        self, state: FeedbackState, own: Update, said: Sequence[Update], total: Tensor, rate: float, coder: Coder
    ) -> Tensor:
        mean = _mean(state, said, total)
        if own.body and has_data(sum(one.weight for one in said)):
            coder.add(state.own["error"], own, -1.0)
        return mean / rate if rate else mean  # the optimizer multiplies by γ again

    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """Everybody owes the mean of what was owed."""
        return alike(states[rank % len(states)], rank, size, {"error": mean_of(states, "error")}, {})


def _rounds_twice(coder: Coder) -> bool:
    """Whether a sum may be compressed again: unbiased rounding stays unbiased, at little more variance; a second
    selection would lose most of it.
    """
    return coder.compressor.is_unbiased and not isinstance(coder.compressor, Selector)


def _mean(state: FeedbackState, said: Sequence[Update], total: Tensor) -> Tensor:
    """Return Σ C(w_i t_i) / Σ w_i over those who spoke; zero where nobody has any weight."""
    for rank, one in enumerate(said):
        if one.body:
            state.weights[rank] = one.weight
    weight = sum(one.weight for one in said)
    return total / weight if has_data(weight) else torch.zeros_like(total)
