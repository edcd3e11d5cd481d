"""D-PSGD: synchronous SGD that averages over neighbours only (Lian et al., NeurIPS 2017, arXiv 1705.09056).

    x_i ← x_i − γ g_i(x_i)
    x_i ← Σ_j W_ij x_j        over i and its neighbours; W symmetric and doubly stochastic (Metropolis–Hastings weights)

Algorithm 1 of the paper has the two lines in the other order, x_i ← Σ_j W_ij x_j − γ g_i(x_i), which allows to overlap
communication with the gradient; the paper permits both. In the order used here ``Complete()`` is synchronous SGD. CHOCO
and SGP use the same order.

Why it works: each round multiplies the distance between models by |λ₂(W)| and leaves their mean unchanged, which
follows synchronous SGD. The traffic of a node grows with the number of its neighbours, not with the number of nodes.
Momentum stays local.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, Strategy
from tacit.core.worker import Worker
from tacit.errors import RunError, require
from tacit.strategies.gossip.members import agree_on_round, in_each_round
from tacit.strategies.gossip.neighbours import (
    GossipState,
    average_over_all,
    check_topology,
    mix,
)
from tacit.topology import Ring, Topology
from tacit.topology.among import among


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

    @in_each_round
    def after_step(self, worker: Worker, state: GossipState) -> None:
        worker.parameters.copy_(mix(worker, state, self.topology, worker.parameters))

    def finish(self, worker: Worker, state: GossipState) -> None:
        average_over_all(worker)

    def regrouped(self, worker: Worker, state: GossipState, members: Sequence[int]) -> None:
        agree_on_round(worker, state, members)
        try:
            check_rows(among(self.topology, worker.size, members), len(members))
        except ValueError as error:
            raise RunError(f"{len(members)} of {worker.size} workers are left: {error}") from None

    def merged(self, states: Sequence[GossipState], rank: int, size: int) -> GossipState:
        """Keep the largest ``last_data_round``."""
        return GossipState(max(state.last_data_round for state in states))


def check_rows(topology: Topology, size: int) -> None:
    """Raise unless the rows of W sum to 1, so that equal models stay equal. On some directed graphs only columns do."""
    for phase in range(topology.cycle(size)):
        rows = topology.mixing(size, phase).sum(1)
        require(
            torch.allclose(rows, torch.ones_like(rows)),
            f"topology={topology}: the rows of its mixing matrix for {size} nodes must sum to 1, otherwise averaging "
            f"does not converge to the mean; use SGP(topology={topology}).",
        )
