"""Variants of EF21: each overrides one or two hooks of ``EstimateFeedback``. EF21-BC is ``ef21_bidirectional``.

EF21-SGDM   v_i ← (1−η) v_i + η ∇f_i, and g_i estimates v_i     Fatkhullin, Tyurin & Richtárik 2023, arXiv 2305.15155
EF21-HB     v ← η v + g, and x ← x − γ v                        Fatkhullin et al. 2021, arXiv 2110.03294
EF21-PP     rank i sends with probability p                     the same
EF21-W      g_i estimates ∇f_i / (n w_i), and g = Σ w_i g_i     Richtárik, Gasanov & Burlachenko 2024, arXiv 2402.10774
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from tacit.compression.feedback.codec import Codec
from tacit.compression.feedback.ef21 import EstimateFeedback
from tacit.compression.feedback.first_message import Init, check_init
from tacit.compression.feedback.state import FeedbackState, zeros
from tacit.core.specs import ALWAYS_SPELLED
from tacit.errors import require


@dataclass(frozen=True, kw_only=True)
class EF21Momentum(EstimateFeedback):
    """EF21-SGDM: estimate a running mean of stochastic gradients; works with small batches (Fatkhullin et al. 2023)."""

    eta: float = field(default=0.1, metadata=ALWAYS_SPELLED)  # η, the weight of the newest gradient; 1 is EF21
    init: Init = "compressed"

    def __post_init__(self) -> None:
        require(0 < self.eta <= 1, f"eta={self.eta} must be above 0 and at most 1; 1 is EF21 itself.")
        check_init(self.init)

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        state = super().begin(rank, size, like)
        state.own["momentum"] = zeros(like)  # v_i
        return state

    def target(self, state: FeedbackState, vector: Tensor) -> Tensor:
        momentum = state.own["momentum"]
        return momentum.lerp_(vector, self.eta) if state.has_joined else momentum.copy_(vector)


@dataclass(frozen=True, kw_only=True)
class EF21HeavyBall(EstimateFeedback):
    """EF21-HB: v ← η v + g, for any optimizer; equal to EF21() with SGD(momentum=η)."""

    eta: float = field(default=0.9, metadata=ALWAYS_SPELLED)  # η, the share of the last direction that is kept
    init: Init = "compressed"

    def __post_init__(self) -> None:
        require(0 <= self.eta < 1, f"eta={self.eta} must be at least 0 and below 1; 0 is EF21 itself.")
        check_init(self.init)

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        state = super().begin(rank, size, like)
        state.shared["velocity"] = zeros(like)  # v
        return state

    def direction(self, state: FeedbackState, mean: Tensor, codec: Codec) -> Tensor:
        return state.shared["velocity"].mul_(self.eta).add_(mean).clone()


@dataclass(frozen=True, kw_only=True)
class EF21Partial(EstimateFeedback):
    """EF21-PP: each rank sends with a probability, and keeps its estimate otherwise; all ranks send the first time."""

    probability: float = field(default=0.5, metadata=ALWAYS_SPELLED)  # p; 1 is EF21
    init: Init = "compressed"

    def __post_init__(self) -> None:
        require(0 < self.probability <= 1, f"probability={self.probability} must be above 0 and at most 1.")
        check_init(self.init)

    def takes_part(self, state: FeedbackState, codec: Codec) -> bool:
        return not state.has_joined or bool(codec.random.random() < self.probability)


@dataclass(frozen=True, kw_only=True)
class EF21Weighted(EstimateFeedback):
    """EF21-W: w_i = L_i / Σ L_j allows a longer step where ranks differ in smoothness (Richtárik et al. 2024)."""

    weights: Sequence[float]  # w_i by rank, or any multiple of them such as the L_i themselves
    init: Init = "compressed"

    def __post_init__(self) -> None:
        require(
            len(self.weights) > 0 and all(weight > 0 for weight in self.weights),
            f"weights={self.weights} must be positive numbers, one for each rank, such as each rank's smoothness L_i.",
        )
        check_init(self.init)

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        require(
            len(self.weights) == size,
            f"weights holds {len(self.weights)} numbers and there are {size} ranks; give one for each.",
        )
        return super().begin(rank, size, like)

    def gain(self, place: int, ranks: Sequence[int]) -> float:  # n w_i
        weights = [self.weights[rank] for rank in ranks]
        return len(ranks) * weights[place] / sum(weights)
