"""``DelayedNesterov``: an outer optimizer for asynchronous local SGD (Liu et al., arXiv 2401.09135).

    u = α (c β m + Δ/N);  in every N-th update, with D the sum of the last N changes Δ:
    m ← β m + D/N,  u = α ((1 − c N + c) β m + Δ/N)

Each Δ is the change of one worker, from a model that others have changed since. Momentum in every update repeats such
stale changes N times as often as synchronous DiLoCo does; here it is taken once in N updates.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.core.specs import ALWAYS_SPELLED
from tacit.errors import require
from tacit.strategies.local_sgd.outer.optimizers import Outer, OuterState


@dataclass(frozen=True, kw_only=True)
class DelayedNesterov(Outer):
    """Momentum that is taken every N updates (Liu et al., arXiv 2401.09135).

    delay: N, the number of workers. activation: c, the share of the momentum step in each of the other updates.
    """

    delay: int = field(default=4, metadata=ALWAYS_SPELLED)
    lr: float = 0.7
    momentum: float = 0.9
    activation: float = 0.0

    def __post_init__(self) -> None:
        require(isinstance(self.delay, int) and self.delay >= 1, f"delay={self.delay} must be a whole number above 0.")
        require(self.lr > 0, f"lr={self.lr} must be positive.")
        require(0 <= self.momentum < 1, f"momentum={self.momentum} must be at least 0 and below 1.")
        most = f"activation={self.activation} must be from 0 to 1/delay={1 / self.delay:.6g}."
        require(0 <= self.activation <= 1 / self.delay, most)

    def step(self, state: OuterState, delta: Tensor, learning_rate: float) -> Tensor:
        buffer = state.setdefault("momentum", torch.zeros_like(delta))
        recent = state.setdefault("recent", torch.zeros_like(delta)).add_(delta)
        count = int(state.setdefault("count", torch.zeros((), dtype=torch.int64)).add_(1))
        share = self.activation
        if count % self.delay == 0:
            buffer.mul_(self.momentum).add_(recent, alpha=1 / self.delay)
            recent.zero_()
            share = 1 - self.activation * self.delay + self.activation
        return (buffer * (share * self.momentum) + delta / self.delay) * self.lr
