"""PullSwarm: what the authors of SwarmSGD released as code (Nadiradze et al., NeurIPS 2021, arXiv 1910.12308).

    w_i ← x_i                    after every step: a copy of the model that others may read
    x_i ← (x_i + w_j)/2          every H steps, with a random neighbour j, which is not changed

One-sided: the mean of the models is not conserved, unlike in the algorithm that the paper analyses, ``SwarmSGD``. A
node waits for the copy to come, though not for its partner, whose handler sends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.core.messages import Message
from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, Strategy, TakesJoiners
from tacit.core.worker import Worker
from tacit.errors import PeerLost, require
from tacit.strategies.swarm.local_steps import Geometric, check_local_steps, draw_steps, mean_steps
from tacit.strategies.swarm.reconcile import mean_of_all
from tacit.topology import Complete
from tacit.topology.topology import Topology


@dataclass(frozen=True)
class Pull(Message, wire="pull"):
    """Give me your model."""


@dataclass(frozen=True)
class Pulled(Message, wire="pulled"):
    """The copy that was asked for."""

    model: Tensor


@dataclass
class PullSwarmState:
    """The copy that others read, and the next meeting."""

    window: Tensor
    due: int
    meetings: int = 0
    is_member: bool = True  # has a model worth averaging


@dataclass(frozen=True, kw_only=True)
class PullSwarm(Strategy[PullSwarmState], TakesJoiners, MergesStates):
    """Average with a copy of a random neighbour's model every few local steps, the neighbour unchanged (SwarmSGD's
    released code).
    """

    local_steps: int | Geometric = field(default=4, metadata=ALWAYS_SPELLED)  # H; larger = fewer messages
    topology: Topology = Complete()

    handles = (Pull,)
    skips_lost_workers = keeps_models_apart = True

    def __post_init__(self) -> None:
        check_local_steps(self.local_steps)
        require(
            isinstance(self.topology, Topology), f"topology={self.topology!r} must be a topology such as Complete()."
        )

    def init(self, worker: Worker) -> PullSwarmState:
        if worker.rank == 0:
            worker.note("period", mean_steps(self.local_steps))
        return PullSwarmState(worker.parameters.clone(), draw_steps(self.local_steps, worker.random))

    def join(self, worker: Worker, state: PullSwarmState) -> None:
        """Take the model of a neighbour that has trained; until then nobody gets to see this node's own."""
        state.is_member = False
        reach = self.topology.neighbours(worker.size)[worker.rank]
        for place in worker.random.permutation(len(reach)).tolist():
            model = self._pulled(worker, reach[place])
            if model is not None:
                worker.parameters.copy_(model)
                break
        state.window.copy_(worker.parameters)
        state.is_member, state.due = True, worker.step + draw_steps(self.local_steps, worker.random)

    def after_step(self, worker: Worker, state: PullSwarmState) -> None:
        model = worker.parameters
        if worker.step >= state.due and worker.size > 1:
            state.due = worker.step + draw_steps(self.local_steps, worker.random)
            reach = self.topology.neighbours(worker.size, state.meetings)[worker.rank]
            state.meetings += 1
            pulled = self._pulled(worker, reach[int(worker.random.integers(len(reach)))])
            if pulled is not None:
                model.add_(pulled.to(model)).div_(2)
        state.window.copy_(model)

    def _pulled(self, worker: Worker, partner: int) -> Tensor | None:
        """Return a copy of the partner's model; None if it is gone or has not trained."""
        worker.network.send(partner, Pull())
        try:
            _, pulled = worker.network.receive(Pulled, source=partner)
        except PeerLost:
            return None
        worker.note("met", partner)
        return pulled.model if pulled.model.numel() else None

    def on_message(self, worker: Worker, state: PullSwarmState, source: int, message: Message) -> None:
        worker.note("met", source)
        worker.network.send(source, Pulled(state.window if state.is_member else state.window[:0]))

    def finish(self, worker: Worker, state: PullSwarmState) -> None:
        worker.parameters.copy_(mean_of_all(worker, worker.parameters))

    def merged(self, states: Sequence[PullSwarmState], rank: int, size: int) -> PullSwarmState:
        """All start from the mean of their models."""
        own = states[rank % len(states)]
        return PullSwarmState(torch.stack([state.window for state in states]).mean(0), own.due, own.meetings)
