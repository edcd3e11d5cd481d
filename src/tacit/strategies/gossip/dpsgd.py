"""D-PSGD: synchronous SGD in which every node averages with its neighbours only (Lian et al., NeurIPS 2017, arXiv
1705.09056).

    x_i ← x_i − γ g_i(x_i)
    x_i ← Σ_j W_ij x_j        over itself and its neighbours; W symmetric and doubly stochastic (Metropolis–Hastings weights)

Algorithm 1 of the paper prints the two lines in the other order, x_i ← Σ_j W_ij x_j − γ g_i(x_i), with which sending
can be hidden behind the gradient; it allows either. In this order ``Complete()`` is synchronous SGD, and CHOCO and SGP
have it too.

Why it works: W moves models towards each other by |λ₂(W)| a step and leaves their mean alone, which walks as that of
synchronous SGD would; and nobody's traffic grows with the number of nodes, only with that of its neighbours. Momentum
stays local.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, Strategy
from tacit.core.worker import Worker
from tacit.errors import require
from tacit.strategies.gossip.neighbours import GossipState, check_topology, mix, report_mean
from tacit.topology import Ring
from tacit.topology.topology import Topology


@dataclass(frozen=True, kw_only=True)
class DPSGD(Strategy[GossipState], MergesStates):
    """Average with all neighbours on a graph after every step (D-PSGD, Lian et al., arXiv 1705.09056)."""

    topology: Topology = field(default=Ring(), metadata=ALWAYS_SPELLED)

    skips_lost_workers = keeps_models_apart = True

    def __post_init__(self) -> None:
        check_topology(self.topology)

    def init(self, worker: Worker) -> GossipState:
        check_rows(self.topology, worker.size)
        if worker.rank == 0:
            worker.note("period", 1)
        return GossipState()

    def after_step(self, worker: Worker, state: GossipState) -> None:
        if worker.size > 1:
            worker.parameters.copy_(mix(worker, state, self.topology, worker.parameters))

    def finish(self, worker: Worker, state: GossipState) -> None:
        report_mean(worker)

    def merged(self, states: Sequence[GossipState], rank: int, size: int) -> GossipState:
        return GossipState(max(state.news for state in states))


def check_rows(topology: Topology, size: int) -> None:
    """Raise unless W keeps models that agree as they are: columns sum to 1 always, rows on some directed graphs do not."""
    for phase in range(topology.cycle(size)):
        rows = topology.mixing(size, phase).sum(1)
        require(
            torch.allclose(rows, torch.ones_like(rows)),
            f"topology={topology}: what its {size} nodes receive does not weigh as much as what they send, so plain averaging finds no mean; "
            f"use SGP(topology={topology}).",
        )
