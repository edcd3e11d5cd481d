"""No feedback, and the classic one.

DCGD:  g ← (1/n) Σ C(∇f_i),  x ← x − γ g.  Converges to a neighbourhood for unbiased C; for Top-k it stalls or diverges: the control.

EF14 (Seide et al. 2014; as written by Richtárik, Sokolov & Fatkhullin, NeurIPS 2021, arXiv 2106.05203):
    w_i ← C(e_i + γ ∇f_i(x)),  e_i ← e_i + γ ∇f_i(x) − w_i,  x ← x − (1/n) Σ w_i
What was left out is said later (by a rank whose data has ended: never). The compressed object contains γ, so e_i is in the model's units and a
changing γ needs no correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tacit.feedback.feedback import NOTHING, Coder, Feedback, FeedbackState, Said, alike, mean_of, zeros


@dataclass(frozen=True, kw_only=True)
class NoFeedback(Feedback):
    """Compress and forget (DCGD): fine for unbiased compressors, the diverging control for Top-k."""

    needs_contraction: ClassVar[bool] = False

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        return FeedbackState(rank, [0.0] * size)

    def encode(self, state: FeedbackState, vector: Tensor, weight: float, rate: float, coder: Coder) -> Said:
        return Said(weight) if weight < NOTHING else coder.say(vector * weight, weight, state.warm)

    def decode(self, state: FeedbackState, said: Sequence[Said], rate: float, coder: Coder) -> Tensor:
        return _mean(state, said, coder)

    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        return alike(states[rank % len(states)], rank, size, {}, {})


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback(Feedback):
    """Say later what was left out (EF14): the compressed vector is the step γ ∇f_i plus all that was not said so far."""

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        return FeedbackState(rank, [0.0] * size, own={"error": zeros(like)})

    def encode(self, state: FeedbackState, vector: Tensor, weight: float, rate: float, coder: Coder) -> Said:
        if weight < NOTHING or rate == 0.0:  # a step of length 0 can pay no debts
            return Said(weight)
        owed = state.own["error"] + vector * (rate * weight)  # e_i + γ ∇f_i
        said = coder.say(owed.to(vector.dtype), weight, state.warm)  # w_i
        state.own["error"] = owed.sub_(coder.read(said))
        return said

    def decode(self, state: FeedbackState, said: Sequence[Said], rate: float, coder: Coder) -> Tensor:
        mean = _mean(state, said, coder)
        return mean / rate if rate else mean  # the optimizer multiplies by γ again

    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """Everybody owes the mean of what was owed."""
        return alike(states[rank % len(states)], rank, size, {"error": mean_of(states, "error")}, {})


def _mean(state: FeedbackState, said: Sequence[Said], coder: Coder) -> Tensor:
    """Return Σ C(w_i t_i) / Σ w_i over those who spoke."""
    total = torch.zeros(coder.dimension, dtype=torch.float64, device=coder.device)
    for rank, one in enumerate(said):
        if one.body:
            total.add_(coder.read(one))
            state.weights[rank] = one.weight
    weight = sum(one.weight for one in said)
    return total if weight < NOTHING else total / weight
