"""PullSwarm: the one-sided form in SwarmSGD's released code (Nadiradze et al., NeurIPS 2021, arXiv 1910.12308).

    x_i ← (x_i + w_j)/2          every H steps, with a random neighbour j, which does not change
    w_i ← x_i                    after every step, and after the average: a copy for other nodes to read

The mean of the models is not conserved, unlike in the algorithm that the paper analyses, ``SwarmSGD``. A node waits for
the copy, but not for its partner's computation: the partner's message handler sends the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from tacit.core.messages import Message
from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, Strategy, TakesJoiners
from tacit.core.worker import Worker
from tacit.errors import BadMessage, PeerLost, require
from tacit.strategies.swarm.local_steps import Geometric, check_local_steps, draw_steps, mean_steps
from tacit.strategies.swarm.partners import first_model
from tacit.strategies.swarm.reconcile import mean_of_all
from tacit.strategies.vector_checks import received_model
from tacit.topology import Complete, Topology


@dataclass(frozen=True)
class PullRequest(Message, wire="pull"):
    """Request for the receiver's copy."""


@dataclass(frozen=True)
class PullResponse(Message, wire="pulled"):
    """The sender's copy of its model; empty if it has no trained model."""

    model: Tensor


@dataclass
class PullSwarmState:
    """The copy that other nodes read, and the next exchange."""

    snapshot: Tensor  # w
    due: int  # the step after which the next exchange takes place
    exchanges: int = 0  # number of exchanges so far
    is_ready: bool = True  # False while a joining node has no trained model

    earlier_names: ClassVar = {"snapshot": "window", "exchanges": "meetings", "is_ready": "is_member"}  # in version 0.1


@dataclass(frozen=True, kw_only=True)
class PullSwarm(Strategy[PullSwarmState], TakesJoiners, MergesStates):
    """Average with a copy of a random neighbour's model every few local steps (SwarmSGD's released code)."""

    local_steps: int | Geometric = field(default=4, metadata=ALWAYS_SPELLED)  # H; larger = fewer messages
    topology: Topology = Complete()

    handles = (PullRequest,)
    skips_lost_workers, keeps_models_apart, regroups = True, True, False  # an exchange skips a lost partner

    def __post_init__(self) -> None:
        check_local_steps(self.local_steps)
        topology = self.topology
        require(isinstance(topology, Topology), f"topology={topology!r} must be a topology such as Complete().")

    def init(self, worker: Worker) -> PullSwarmState:
        if worker.rank == 0:
            worker.note("period", mean_steps(self.local_steps))
        return PullSwarmState(worker.parameters.clone(), draw_steps(self.local_steps, worker.random))

    def join(self, worker: Worker, state: PullSwarmState) -> None:
        """Take the model of a neighbour that has trained; send no copy until then."""
        state.is_ready = False

        def ask(neighbour: int, timeout_s: float) -> Tensor:
            model = self._pull(worker, neighbour, timeout_s)
            return state.snapshot[:0] if model is None else model

        model = first_model(worker, self.topology.neighbours(worker.size)[worker.rank], ask)
        if model is not None:
            worker.parameters.copy_(model)
        state.snapshot.copy_(worker.parameters)
        state.is_ready, state.due = True, worker.step + draw_steps(self.local_steps, worker.random)

    def after_step(self, worker: Worker, state: PullSwarmState) -> None:
        model = worker.parameters
        if worker.step >= state.due and worker.size > 1:
            state.due = worker.step + draw_steps(self.local_steps, worker.random)
            neighbours = self.topology.neighbours(worker.size, state.exchanges)[worker.rank]
            state.exchanges += 1
            theirs = self._pull(worker, neighbours[int(worker.random.integers(len(neighbours)))])
            if theirs is not None:
                model.add_(theirs).div_(2)
        state.snapshot.copy_(model)

    def _pull(self, worker: Worker, partner: int, timeout_s: float | None = None) -> Tensor | None:
        """Return a copy of the partner's model; None if it is lost, has not trained or sends no model."""
        worker.network.send(partner, PullRequest())
        try:
            _, response = worker.network.receive(PullResponse, source=partner, timeout_s=timeout_s)
            model = received_model(response.model, worker.parameters) if response.model.numel() else None
        except (PeerLost, BadMessage):
            return None
        worker.note("met", partner)
        return model

    def on_message(self, worker: Worker, state: PullSwarmState, source: int, message: Message) -> None:
        worker.note("met", source)
        worker.network.send(source, PullResponse(state.snapshot if state.is_ready else state.snapshot[:0]))

    def finish(self, worker: Worker, state: PullSwarmState) -> None:
        worker.parameters.copy_(mean_of_all(worker, worker.parameters))

    def merged(self, states: Sequence[PullSwarmState], rank: int, size: int) -> PullSwarmState:
        """Start all nodes from the mean of the snapshots."""
        own = states[rank % len(states)]
        return PullSwarmState(torch.stack([state.snapshot for state in states]).mean(0), own.due, own.exchanges)
