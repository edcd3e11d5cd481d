"""CHOCO-SGD: gossip in which only compressed differences travel (Koloskova, Stich & Jaggi, ICML 2019, arXiv
1902.00340).

    x_i ← x_i − η g_i(x_i)
    q_i ← C(x_i − x̂_i),   x̂_j ← x̂_j + q_j             for itself and all neighbours: x̂_j is what everybody around j believes x_j to be
    x_i ← x_i + γ Σ_j W_ij (x̂_j − x̂_i)

A node keeps x̂_i and s_i = Σ_j W_ij x̂_j, all it needs of its neighbours' x̂ (the paper's memory-efficient form): s_i ←
s_i + Σ_j W_ij q_j. Both in float64: sums over a whole run. x̂ starts as the model that all start from, which nobody has
to be told; the paper starts it at 0.

Why it works: as models settle there is less and less to say, so what compression leaves out tends to 0, where averaging
compressed models themselves would stall at the compressor's error. γ tames what is left out meanwhile; with ``Dense()``
and γ = 1 this is D-PSGD. Momentum stays local.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.compression import TopK
from tacit.compression.compressor import Compressed, Compressor, Memory
from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, Strategy
from tacit.core.worker import Worker
from tacit.errors import BadMessage, NotFinite, require
from tacit.strategies.gossip.neighbours import GossipState, check_topology, report_mean, swap
from tacit.topology import Ring
from tacit.topology.topology import Topology


@dataclass(kw_only=True)
class CHOCOState(GossipState):
    """What is believed of this node and around it."""

    believed: Tensor  # x̂_i
    around: Tensor  # s_i = Σ_j W_ij x̂_j
    memory: Memory = field(default_factory=dict)  # the compressor's own


@dataclass(frozen=True, kw_only=True)
class CHOCO(Strategy[CHOCOState], MergesStates):
    """Gossip compressed differences to what neighbours believe of the model, after every step (CHOCO-SGD, Koloskova et
    al., arXiv 1902.00340).
    """

    topology: Topology = field(default=Ring(), metadata=ALWAYS_SPELLED)  # undirected, and the same in all rounds
    compressor: Compressor = field(default=TopK(fraction=0.1), metadata=ALWAYS_SPELLED)
    gamma: float = field(default=0.2, metadata=ALWAYS_SPELLED)  # γ; larger = sooner agreed, too large = divergence

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
            f"{compressor} decodes against a vector near the one sent, and differences have none; use QSGD(bits=8).",
        )
        require(
            isinstance(gamma, int | float) and 0 < gamma <= 1,
            f"gamma={gamma} must be above 0 and at most 1; the more is left out, the smaller.",
        )

    def init(self, worker: Worker) -> CHOCOState:
        topology, model = self.topology, worker.parameters
        require(
            not topology.is_directed and topology.cycle(worker.size) == 1,
            f"topology={topology}: CHOCO needs edges that carry both ways in every round, since neighbours believe what they were told; "
            f"use Ring(), or SGP(topology={topology}).",
        )
        self._scale(model.numel())
        if worker.rank == 0:
            worker.note("period", 1)
        believed = model.to(torch.float64, copy=True)
        return CHOCOState(believed=believed, around=believed.clone())

    def after_step(self, worker: Worker, state: CHOCOState) -> None:
        if worker.size == 1:
            return
        model = worker.parameters
        if not bool(model.sum().isfinite()):
            raise NotFinite(worker.rank, worker.step, float(model.sum()), "model's sum")
        scale = self._scale(model.numel())
        change = self.compressor.compress_change(
            model, state.believed, worker.random, state.memory, worker.layout.shapes, model.dtype, scale
        )
        change = change if change.is_owned else change.snapshot()
        for weight, body in swap(worker, state, self.topology, change):
            _read(body).add_into(state.around, weight * scale)
        model.add_((state.around - state.believed).to(model), alpha=self.gamma)

    def finish(self, worker: Worker, state: CHOCOState) -> None:
        report_mean(worker)

    def merged(self, states: Sequence[CHOCOState], rank: int, size: int) -> CHOCOState:
        """All believe the same of each other: the mean of what was believed."""
        mean = torch.stack([state.believed for state in states]).mean(0)
        news, memory = max(state.news for state in states), states[rank % len(states)].memory
        return CHOCOState(news=news, believed=mean, around=mean.clone(), memory=memory)

    def _scale(self, dimension: int) -> float:
        """Return what decoded words are multiplied by: 1/(1 + ω) makes an unbiased compressor that does not contract
        contractive.
        """
        if self.compressor.contraction(dimension) is not None:
            return 1.0
        variance = self.compressor.variance(dimension)
        if variance is None:
            raise ValueError(
                f"CHOCO needs a contractive or an unbiased compressor; for {dimension} numbers {self.compressor} is neither."
            )
        return 1.0 / (1.0 + variance)


def _read(body: Tensor | Compressed) -> Compressed:
    if not isinstance(body, Compressed):
        raise BadMessage(f"a {type(body).__name__} came where a compressed vector was expected.")
    return body
