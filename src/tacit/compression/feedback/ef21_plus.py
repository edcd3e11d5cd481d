"""EF21+ (Richtárik, Sokolov & Fatkhullin, NeurIPS 2021, arXiv 2106.05203): the better of EF21 and plain compression,
rank by rank and step by step.

    b ← C(∇f_i(x)),  m ← g_i + C(∇f_i(x) − g_i),  g_i ← whichever is nearer to ∇f_i(x), m if they tie;  g ← (1/n) Σ g_i

One more bit says which it was (a byte and its tag here). Where b wins it *replaces* the estimate, so everybody must
know everybody's: n·d numbers on each rank, and the mean is recomputed from them every time. The guarantee needs a
deterministic C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tacit.compression.feedback.ef21 import Init
from tacit.compression.feedback.feedback import (
    Coder,
    Feedback,
    FeedbackState,
    Update,
    alike,
    check_init,
    zeros,
)
from tacit.core.weights import has_data


@dataclass(frozen=True, kw_only=True)
class EF21Plus(Feedback):
    """EF21 or plain compression, whichever comes nearer to the gradient, told by one more bit; remembers all ranks'
    estimates.
    """

    init: Init = "compressed"

    needs_determinism: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_init(self.init)

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        return FeedbackState(rank, [0.0] * size, shared={"estimates": zeros(like, size)})

    def encode(self, state: FeedbackState, vector: Tensor, weight: float, rate: float, coder: Coder) -> Update:
        if not has_data(weight):
            return Update(weight)
        estimate, aim = state.shared["estimates"][state.rank], vector.double() * weight
        if state.weights[state.rank] == 0.0 and self.init == "full":
            return coder.encode_in_full(aim.to(vector.dtype), weight)
        fresh = coder.say(aim.to(vector.dtype), weight, {}, is_fresh=True)  # b
        change = coder.say((aim - estimate).to(vector.dtype), weight, state.warm)  # m − g_i
        fresh_error = torch.linalg.vector_norm(coder.read(fresh) - aim)
        change_error = torch.linalg.vector_norm(coder.read(change) + estimate - aim)
        return fresh if float(fresh_error) < float(change_error) else change

    def decode(self, state: FeedbackState, said: Sequence[Update], rate: float, coder: Coder) -> Tensor:
        estimates = state.shared["estimates"]
        for rank, one in enumerate(said):
            if one.is_fresh or one.weight == 0.0:  # of a rank whose data has ended nothing is believed any more
                estimates[rank].zero_()
            if one.body:
                coder.add(estimates[rank], one)
            if one.body or one.weight == 0.0:
                state.weights[rank] = one.weight
        return estimates.sum(0) / (sum(state.weights) or 1.0)

    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """All estimates become their mean, so that the mean itself is unchanged."""
        state = states[rank % len(states)]
        mean = state.shared["estimates"].mean(0)
        return alike(state, rank, size, {}, {"estimates": mean.repeat(size, 1)})
