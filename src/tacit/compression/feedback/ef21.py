"""EF21 (Richtárik, Sokolov & Fatkhullin, NeurIPS 2021, arXiv 2106.05203) and its relatives.

    c_i ← C(∇f_i(x) − g_i),  g_i ← g_i + c_i,  g ← g + (1/n) Σ c_i,  x ← x − γ g

Instead of the gradient, each rank says how its gradient differs from what all believe it to be. The differences shrink
as x settles, so the error of compression goes to zero, which no feedback on the gradients themselves achieves where the
f_i disagree.

    EF21-SGDM  (Fatkhullin, Tyurin & Richtárik 2023, arXiv 2305.15155)   v_i ← (1−η) v_i + η ∇f_i, and v_i in place of ∇f_i
    EF21-HB, -PP, -BC  (Fatkhullin et al. 2021, arXiv 2110.03294)        v ← η v + g; some ranks silent; the master compresses too
    EF21-W     (Richtárik, Gasanov & Burlachenko 2024, arXiv 2402.10774)  ∇f_i / (n w_i) in place of ∇f_i, and Σ w_i g_i

**The sum Σ g_i is kept, not recomputed**: every rank holds its own g_i and the sum, and adds what was said to both,
rank by rank and in float64. That takes 2d numbers where a rank that knew all g_i would need n·d; the sum drifts from
the true one by rounding alone (relative 1e-16 a message).

**The start** is g_i = 0, so that the first message is C(∇f_i(x⁰)), the paper's. ``init="full"`` says the first gradient
in full, as the authors' code does; its d numbers are counted like all others here (there they are not), and are worth
1/α compressed messages.

**A rank whose data has ended** takes its estimate back with one full message, so that the mean is over the others; one
that has nothing to say once (a skipped step) is silent, and its last estimate goes on counting with the weight it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.compression.coding.ranges import RangeSplit, parting
from tacit.compression.compressor import Compressed, Compressor
from tacit.compression.feedback.feedback import (
    Coder,
    FeedbackState,
    SummableFeedback,
    Update,
    alike,
    check_init,
    mean_of,
    zeros,
)
from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.weights import has_data
from tacit.errors import require

Init = Literal["compressed", "full"]


def any_has_data(said: Sequence[Update]) -> bool:
    """Return whether any rank has data; otherwise no rank steps."""
    return has_data(sum(one.weight for one in said))


class EstimateFeedback(SummableFeedback):
    """What EF21 and its relatives share; each of them changes one of the small methods at the end."""

    ends_in_full: ClassVar[bool] = True  # its estimate is taken back

    init: Init

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        return FeedbackState(rank, [0.0] * size, {"estimate": zeros(like)}, {"sum": zeros(like)})

    def encode(self, state: FeedbackState, vector: Tensor, weight: float, rate: float, coder: Coder) -> Update:
        estimate, is_first = state.own["estimate"], state.weights[state.rank] == 0.0  # g_i
        if weight == 0.0 and not is_first:
            aim = torch.zeros_like(estimate)
        elif has_data(weight) and (is_first or self.takes_part(coder.random)):
            aim = self.aim(state, vector.double() * (weight / self.gain(state.rank, len(state.weights))), is_first)
        else:
            return Update(weight)
        if weight > 0.0 and not (is_first and self.init == "full"):
            return coder.encode_difference(aim, estimate, weight, state.warm)  # c_i
        said = coder.encode_in_full((aim - estimate).to(vector.dtype), weight)
        coder.add(estimate, said)
        return said

    def settle(
        self, state: FeedbackState, own: Update, said: Sequence[Update], total: Tensor, rate: float, coder: Coder
    ) -> Tensor:
        mean = self.believed(state, said, total, slice(None))
        return self.direction(state, mean, coder) if any_has_data(said) else mean

    def believed(self, state: FeedbackState, said: Sequence[Update], total: Tensor, part: slice) -> Tensor:
        """Add what was said of some coordinates to the sum of all estimates and return their mean."""
        sum_of_estimates = state.shared["sum"][part].add_(total)  # Σ n w_i g_i, where w_i = 1/n unless EF21-W
        for rank, one in enumerate(said):
            if one.body:
                state.weights[rank] = one.weight
        return sum_of_estimates / (sum(state.weights) or 1.0)

    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """All estimates become their mean, so that the mean itself is unchanged."""
        state = states[rank % len(states)]
        mean = state.shared["sum"] / len(state.weights)
        own = {name: mean if name == "estimate" else mean_of(states, name) for name in state.own}
        return alike(state, rank, size, own, {**state.shared, "sum": mean * size})

    def takes_part(self, random: np.random.Generator) -> bool:
        """Whether this rank speaks now."""
        return True

    def aim(self, state: FeedbackState, vector: Tensor, is_first: bool) -> Tensor:
        """Return what the estimate is of."""
        return vector

    def direction(self, state: FeedbackState, mean: Tensor, coder: Coder) -> Tensor:
        """Return what the model follows, given the mean of all estimates."""
        return mean


@dataclass(frozen=True, kw_only=True)
class EF21(EstimateFeedback):
    """Say how the gradient differs from what others believe it to be (Richtárik, Sokolov & Fatkhullin 2021)."""

    init: Init = "compressed"

    def __post_init__(self) -> None:
        check_init(self.init)


@dataclass(frozen=True, kw_only=True)
class EF21Momentum(EstimateFeedback):
    """EF21-SGDM: estimate a running mean of stochastic gradients, which needs no large batches (Fatkhullin et al.
    2023).
    """

    eta: float = field(default=0.1, metadata=ALWAYS_SPELLED)  # η, the weight of the newest gradient; 1 is EF21
    init: Init = "compressed"

    def __post_init__(self) -> None:
        require(0 < self.eta <= 1, f"eta={self.eta} must be above 0 and at most 1; 1 is EF21 itself.")
        check_init(self.init)

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        state = super().begin(rank, size, like)
        state.own["momentum"] = zeros(like)  # v_i
        return state

    def aim(self, state: FeedbackState, vector: Tensor, is_first: bool) -> Tensor:
        momentum = state.own["momentum"]
        return momentum.copy_(vector) if is_first else momentum.lerp_(vector, self.eta)


@dataclass(frozen=True, kw_only=True)
class EF21HeavyBall(EstimateFeedback):
    """EF21-HB: follow v ← η v + g, the estimate with momentum; the same as EF21() with SGD(momentum=η), for any
    optimizer.
    """

    eta: float = field(default=0.9, metadata=ALWAYS_SPELLED)  # η, how much of the last direction stays
    init: Init = "compressed"

    def __post_init__(self) -> None:
        require(0 <= self.eta < 1, f"eta={self.eta} must be at least 0 and below 1; 0 is EF21 itself.")
        check_init(self.init)

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        state = super().begin(rank, size, like)
        state.shared["velocity"] = zeros(like)  # v
        return state

    def direction(self, state: FeedbackState, mean: Tensor, coder: Coder) -> Tensor:
        return state.shared["velocity"].mul_(self.eta).add_(mean).clone()


@dataclass(frozen=True, kw_only=True)
class EF21Partial(EstimateFeedback):
    """EF21-PP: each rank speaks with a probability, the estimates of the silent ones stay (all speak the first time)."""

    probability: float = field(default=0.5, metadata=ALWAYS_SPELLED)  # p; 1 is EF21
    init: Init = "compressed"

    def __post_init__(self) -> None:
        require(0 < self.probability <= 1, f"probability={self.probability} must be above 0 and at most 1.")
        check_init(self.init)

    def takes_part(self, random: np.random.Generator) -> bool:
        return bool(random.random() < self.probability)


@dataclass(frozen=True, kw_only=True)
class EF21Weighted(EstimateFeedback):
    """EF21-W: ranks with rougher gradients get larger weights, w_i = L_i / Σ L_j, and a longer step is safe (Richtárik
    et al. 2024).
    """

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

    def gain(self, rank: int, size: int) -> float:  # n w_i
        return size * self.weights[rank] / sum(self.weights)


@dataclass(frozen=True, kw_only=True)
class EF21Bidirectional(EstimateFeedback):
    """EF21-BC: the master's broadcast is compressed too, b = C_M(mean g_i − g), and all follow g ← g + b.

    Where messages are gathered there is no master: every rank computes the same b, drawing from the shared stream. What
    travels, and is counted, are the ranks' messages; what a master would broadcast is noted in the trace as
    ``broadcast_bytes``. Where ranges are summed by different ranks, each is the master of its range: it keeps that
    range's sum alone and sends C_M of it, k numbers where C_M is Top-k, to all.
    """

    master: Compressor  # C_M
    init: Init = "compressed"  # of the ranks' estimates; the master's starts at 0

    def __post_init__(self) -> None:
        require(isinstance(self.master, Compressor), f"master={self.master!r} must be a compressor such as TopK(k=1).")
        self.check(self.master)
        check_init(self.init)

    def begin(self, rank: int, size: int, like: Tensor) -> FeedbackState:
        state = super().begin(rank, size, like)
        state.shared["followed"] = zeros(like)  # g
        return state

    def direction(self, state: FeedbackState, mean: Tensor, coder: Coder) -> Tensor:
        followed, scale = state.shared["followed"], self.scale(self.master, mean.numel())
        change = (mean - followed).to(coder.dtype)
        broadcast = self.master.compress(change, coder.shared_random, state.master, coder.shapes)  # b
        state.master_bytes = broadcast.size_bytes
        broadcast.add_into(followed, scale)
        return followed.clone()

    def reply(self, state: FeedbackState, said: Sequence[Update], begin: int, coder: Coder) -> Compressed:
        part = slice(begin, begin + coder.dimension)
        change = self.believed(state, said, self.total(said, coder), part) - state.shared["followed"][part]
        return self.master.compress((change if any_has_data(said) else change.zero_()).to(coder.dtype), coder.random)

    def reply_bytes(self, words: RangeSplit, size: int, coder: Coder) -> float | None:
        found = parting(self.master, coder.dimension, coder.dtype.itemsize)
        return None if found is None else found.size_bytes

    def resolve(
        self,
        state: FeedbackState,
        own: Update,
        said: Sequence[Update],
        replies: Sequence[Compressed],
        rate: float,
        coder: Coder,
    ) -> Tensor:
        followed, at = state.shared["followed"], 0
        for reply in replies:
            reply.add_into(followed[at : at + reply.numbers], self.scale(self.master, reply.numbers))
            at += reply.numbers
        return followed.clone()

    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """As for the others, from the estimates themselves: no rank may know all of their sum."""
        mean = mean_of(states, "estimate")
        state = states[rank % len(states)]
        return alike(state, rank, size, {"estimate": mean}, {**state.shared, "sum": mean * size})
