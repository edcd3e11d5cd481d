"""SGP, stochastic gradient push: push-sum averaging on directed graphs (Assran et al., ICML 2019, arXiv 1811.10792).

    x_i ← x_i − γ g_i(z_i)                              the gradient is that of the de-biased model z
    x_i ← Σ_j P_ij x_j,   w_i ← Σ_j P_ij w_j            P column stochastic: j keeps and sends equal parts
    z_i ← x_i / w_i

On a directed graph x alone does not converge to the mean: a node that receives more than it sends accumulates more
than its share. The weight w starts at 1 and is sent along the same edges, so it accumulates as much, and x/w does
converge to the mean. A node needs to know only its number of out-neighbours. With ``OnePeer()`` each node sends one
message per step, and 2^k nodes have the exact mean after k steps.

The parameters of a node are z, and the reported model is the mean of z. Momentum stays local. The paper's overlapped
form is not implemented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, Strategy
from tacit.core.worker import Worker
from tacit.strategies.gossip.members import agree_on_round, in_each_round
from tacit.strategies.gossip.neighbours import (
    GossipState,
    average_over_all,
    check_topology,
    mix,
)
from tacit.topology import OnePeer, Topology


@dataclass(kw_only=True)
class SGPState(GossipState):
    """The biased model x and its push-sum weight w, concatenated to one vector."""

    pushed: Tensor

    def debiased(self) -> Tensor:
        """Return z = x / w."""
        return self.pushed[:-1] / self.pushed[-1]


@dataclass(frozen=True, kw_only=True)
class SGP(Strategy[SGPState], MergesStates):
    """Average by push-sum on a directed graph after every step (SGP, Assran et al., arXiv 1811.10792)."""

    topology: Topology = field(default=OnePeer(), metadata=ALWAYS_SPELLED)

    skips_lost_workers = keeps_models_apart = True

    def __post_init__(self) -> None:
        check_topology(self.topology)

    def init(self, worker: Worker) -> SGPState:
        if worker.rank == 0:
            worker.note("period", 1)
        return SGPState(pushed=_with_weight_one(worker.parameters))

    @in_each_round
    def after_step(self, worker: Worker, state: SGPState) -> None:
        model = worker.parameters
        state.pushed[:-1] += model - state.debiased()  # −γ g(z), as changed by the optimizer
        state.pushed = mix(worker, state, self.topology, state.pushed)
        model.copy_(state.debiased())

    def finish(self, worker: Worker, state: SGPState) -> None:
        average_over_all(worker)

    def regrouped(self, worker: Worker, state: SGPState, members: Sequence[int]) -> None:
        """Start push-sum anew from the node's model, with weights of 1: those of lost nodes are lost."""
        state.pushed = _with_weight_one(worker.parameters)
        agree_on_round(worker, state, members)

    def merged(self, states: Sequence[SGPState], rank: int, size: int) -> SGPState:
        """Start all nodes from the mean of the de-biased models, with weights of 1."""
        mean = torch.stack([state.debiased() for state in states]).mean(0)
        return SGPState(last_data_round=max(state.last_data_round for state in states), pushed=_with_weight_one(mean))


def _with_weight_one(model: Tensor) -> Tensor:
    return torch.cat([model, model.new_ones(1)])
