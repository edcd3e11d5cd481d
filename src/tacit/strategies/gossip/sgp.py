"""SGP: stochastic gradient push, averaging by push-sum along edges that carry one way (Assran et al., ICML 2019, arXiv
1811.10792).

    x_i ← x_i − γ g_i(z_i)                              the gradient is that of the de-biased model z
    x_i ← Σ_j P_ij x_j,   w_i ← Σ_j P_ij w_j            P column stochastic: j keeps and sends equal parts of its own
    z_i ← x_i / w_i

On a directed graph x alone does not tend to the mean: a node that hears more than it says gathers more than its share.
The weight w, 1 at the start, goes the same ways and gathers as much, so that their ratio does tend to the mean; all
that a node must know is to how many it sends. With ``OnePeer()`` each node sends one message a step, and 2^k of them
have the exact mean after k steps.

What a node holds and computes with, and what is reported the mean of, is z. Momentum stays local. The paper's
overlapped form is not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, Strategy
from tacit.core.worker import Worker
from tacit.strategies.gossip.neighbours import GossipState, check_topology, mix, report_mean
from tacit.topology import OnePeer
from tacit.topology.topology import Topology


@dataclass(kw_only=True)
class SGPState(GossipState):
    """The biased model x with its push-sum weight w behind it, one vector: both go the same ways."""

    pushed: Tensor

    def debiased(self) -> Tensor:
        """Return z = x / w."""
        return self.pushed[:-1] / self.pushed[-1]


@dataclass(frozen=True, kw_only=True)
class SGP(Strategy[SGPState], MergesStates):
    """Push shares of the model along one-way edges after every step, de-biased by push-sum (SGP, Assran et al., arXiv
    1811.10792).
    """

    topology: Topology = field(default=OnePeer(), metadata=ALWAYS_SPELLED)

    skips_lost_workers = keeps_models_apart = True

    def __post_init__(self) -> None:
        check_topology(self.topology)

    def init(self, worker: Worker) -> SGPState:
        if worker.rank == 0:
            worker.note("period", 1)
        return SGPState(pushed=_with_weight_one(worker.parameters))

    def after_step(self, worker: Worker, state: SGPState) -> None:
        if worker.size == 1:
            return
        model = worker.parameters
        state.pushed[:-1] += model - state.debiased()  # −γ g(z), or whatever the optimizer makes of g
        state.pushed = mix(worker, state, self.topology, state.pushed)
        model.copy_(state.debiased())

    def finish(self, worker: Worker, state: SGPState) -> None:
        report_mean(worker)

    def merged(self, states: Sequence[SGPState], rank: int, size: int) -> SGPState:
        """All start from the mean of the de-biased models, with weights of 1."""
        mean = torch.stack([state.debiased() for state in states]).mean(0)
        return SGPState(news=max(state.news for state in states), pushed=_with_weight_one(mean))


def _with_weight_one(model: Tensor) -> Tensor:
    return torch.cat([model, model.new_ones(1)])
