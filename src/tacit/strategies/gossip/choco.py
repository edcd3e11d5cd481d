"""CHOCO-SGD: gossip of compressed differences (Koloskova, Stich & Jaggi, ICML 2019, arXiv 1902.00340).

    x_i ← x_i − η g_i(x_i)
    q_i ← C(x_i − x̂_i),   x̂_j ← x̂_j + q_j         for i and its neighbours j; x̂_j: the neighbours' estimate of x_j
    x_i ← x_i + γ Σ_j W_ij (x̂_j − x̂_i)

A node stores x̂_i and s_i = Σ_j W_ij x̂_j instead of all x̂_j (the paper's memory-efficient form), with the update
s_i ← s_i + Σ_j W_ij q_j. Both are float64, because they are sums over the whole run. x̂ starts as the common initial
model, which needs no message; in the paper it starts at 0.

Why it works: as models converge the differences tend to 0, and so does the compression error. Averaging compressed
models would stall at the compressor's error. γ damps the error until then; with ``Dense()`` and γ = 1 this is D-PSGD.
Momentum stays local.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from tacit.compression import TopK
from tacit.compression.compressor import Compressed, Compressor, Memory
from tacit.compression.nominal import NominalVector
from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, Strategy
from tacit.core.worker import Worker, is_timing_only
from tacit.errors import BadMessage, NotFinite, require
from tacit.strategies.gossip.members import agree_on_round, in_each_round
from tacit.strategies.gossip.neighbours import (
    GossipState,
    average_over_all,
    check_topology,
    exchange,
)
from tacit.topology import Ring, Topology


@dataclass(kw_only=True)
class CHOCOState(GossipState):
    """The estimates of a node's model and of its neighbours' models."""

    estimate: Tensor  # x̂_i
    mixed_estimates: Tensor  # s_i = Σ_j W_ij x̂_j
    memory: Memory = field(default_factory=dict)  # of the compressor

    earlier_names: ClassVar = {
        **GossipState.earlier_names,
        "estimate": "believed",
        "mixed_estimates": "around",
    }


@dataclass(frozen=True, kw_only=True)
class CHOCO(Strategy[CHOCOState], MergesStates):
    """Gossip compressed differences between model and estimate (CHOCO-SGD, Koloskova et al., arXiv 1902.00340)."""

    topology: Topology = field(default=Ring(), metadata=ALWAYS_SPELLED)  # undirected, the same in all rounds
    compressor: Compressor = field(default=TopK(fraction=0.1), metadata=ALWAYS_SPELLED)
    gamma: float = field(default=0.2, metadata=ALWAYS_SPELLED)  # γ; larger = faster consensus, too large = divergence

    skips_lost_workers = keeps_models_apart = True

    def __post_init__(self) -> None:
        check_topology(self.topology)
        compressor, gamma = self.compressor, self.gamma
        require(
            isinstance(compressor, Compressor),
            f"compressor={compressor!r} must be a compressor such as TopK(fraction=0.1).",
        )
        require(
            not compressor.needs_reference,
            f"compressor={compressor} needs a reference to decode, which differences do not have; use QSGD(bits=8).",
        )
        require(
            isinstance(gamma, int | float) and 0 < gamma <= 1,
            f"gamma={gamma} must be above 0 and at most 1; use less for stronger compression.",
        )

    def init(self, worker: Worker) -> CHOCOState:
        topology, model = self.topology, worker.parameters
        require(
            not topology.is_directed and topology.cycle(worker.size) == 1,
            f"topology={topology} must be undirected and the same in all rounds, so that neighbours can update their "
            f"estimates; use CHOCO(topology=Ring()), or SGP(topology={topology}).",
        )
        self._scale(model.numel())
        if worker.rank == 0:
            worker.note("period", 1)
        estimate = model.to(torch.float64, copy=True)
        return CHOCOState(estimate=estimate, mixed_estimates=estimate.clone())

    @in_each_round
    def after_step(self, worker: Worker, state: CHOCOState) -> None:
        model = worker.parameters
        if not bool(model.sum().isfinite()):
            raise NotFinite(worker.rank, worker.step, float(model.sum()), "model's sum")
        if is_timing_only(worker):
            nominal = NominalVector.of(self.compressor, model.numel(), model.dtype, worker.layout.shapes)
            deque(exchange(worker, state, self.topology, nominal), maxlen=0)
            return
        scale = self._scale(model.numel())
        change = self.compressor.compress_change(
            model, state.estimate, worker.random, state.memory, worker.layout.shapes, model.dtype, scale
        )
        change = change if change.is_owned else change.snapshot()
        for weight, body in exchange(worker, state, self.topology, change):
            _checked(body).add_into(state.mixed_estimates, weight * scale)
        model.add_((state.mixed_estimates - state.estimate).to(model), alpha=self.gamma)

    def finish(self, worker: Worker, state: CHOCOState) -> None:
        average_over_all(worker)

    def regrouped(self, worker: Worker, state: CHOCOState, members: Sequence[int]) -> None:
        """Start all nodes with the same estimate, the mean of the models: estimates of single nodes are not known."""
        agree_on_round(worker, state, members)
        mean = worker.network.all_reduce_mean(worker.parameters, extra_state=False)
        state.estimate = mean.to(torch.float64, copy=True)
        state.mixed_estimates = state.estimate.clone()

    def merged(self, states: Sequence[CHOCOState], rank: int, size: int) -> CHOCOState:
        """Start all nodes with the same estimate: the mean of the estimates."""
        mean = torch.stack([state.estimate for state in states]).mean(0)
        last, memory = max(state.last_data_round for state in states), states[rank % len(states)].memory
        return CHOCOState(last_data_round=last, estimate=mean, mixed_estimates=mean.clone(), memory=memory)

    def _scale(self, dimension: int) -> float:
        """Return the factor for decoded vectors: 1, or 1/(1 + ω), which makes an unbiased compressor contractive."""
        if self.compressor.contraction(dimension) is not None:
            return 1.0
        variance = self.compressor.variance(dimension)
        if variance is None:
            raise ValueError(
                f"compressor={self.compressor} is neither contractive nor unbiased for {dimension} numbers, "
                f"which CHOCO needs; use TopK(fraction=0.1)."
            )
        return 1.0 / (1.0 + variance)


def _checked(body: Tensor | Compressed) -> Compressed:
    if not isinstance(body, Compressed):
        raise BadMessage(f"received a {type(body).__name__}; expected a compressed vector.")
    return body
