"""Asynchronous D-PSGD: average with one random neighbour per step (Lian et al., ICML 2018, arXiv 1710.06952).

    g_i at x̂_i                      x̂_i: the model when the gradient computation started
    X_i, X_j ← (X_i + X_j)/2        with a random neighbour j, atomically
    X_i ← X_i − γ g_i(x̂_i),  x̂_i ← X_i

The paper calls it AD-PSGD. In this library ADPSGD is the adaptive periodic averaging of Jiang & Agrawal (arXiv
2007.06134, ``LocalSGD`` with a ``VariancePeriod``), hence the full name.

X_i is a buffer that other nodes change while node i computes. The paper uses locks to average atomically, and a
bipartite graph to avoid deadlock: one half sends requests, the other half only responds. Here any node may send a
request along any edge. A node that waits for its response still responds to others, in its message handler, so no cycle
of nodes can wait. Both sides add half of the difference instead of assigning the mean: j when the request arrives, i
when the response arrives. Σ X is conserved under any interleaving; without interleaving the update is the paper's. A
node that responds while it waits for its own response uses a weight below 1/2, which the response contains
(``theory.overlaps``); two halves would swap models.

Why it works: a slow node delays only the nodes that send it requests, by no more than the time of a message. Momentum
stays local. ``SwarmSGD`` does not wait for responses, takes local steps between exchanges, and can send lattice points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from tacit.core.messages import Message
from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, Strategy
from tacit.core.worker import Worker
from tacit.errors import BadMessage, PeerLost, require
from tacit.strategies.gossip.neighbours import average_over_all, check_topology
from tacit.strategies.vector_checks import received_model
from tacit.theory.overlaps import CROSSING_WEIGHT, OVERLAPPING_WEIGHT
from tacit.topology import Complete, Topology


@dataclass(frozen=True)
class AverageRequest(Message, wire="avgask"):
    """The initiator's model."""

    number: int
    model: Tensor


@dataclass(frozen=True)
class AverageResponse(Message, wire="avgans"):
    """The partner's model before its own change, and ``weight``: the part of the difference that both sides add."""

    number: int
    model: Tensor
    weight: float

    def __post_init__(self) -> None:
        require(0 < self.weight <= 1 / 2, f"weight={self.weight} must be above 0 and at most 1/2.")


@dataclass
class AsynchronousState:
    """The buffer of a node, and its request."""

    buffer: Tensor  # X
    base: Tensor  # X before the optimizer's update
    requested: int = -1  # the node whose response is outstanding; −1: none

    earlier_names: ClassVar = {"requested": "asked"}  # in checkpoints of version 0.1


@dataclass(frozen=True, kw_only=True)
class AsynchronousDPSGD(Strategy[AsynchronousState], MergesStates):
    """Average with one random neighbour after every gradient (AD-PSGD, Lian et al., arXiv 1710.06952)."""

    topology: Topology = field(default=Complete(), metadata=ALWAYS_SPELLED)

    handles = (AverageRequest,)
    skips_lost_workers, keeps_models_apart, regroups = True, True, False  # an exchange skips a lost partner

    def __post_init__(self) -> None:
        check_topology(self.topology)

    def init(self, worker: Worker) -> AsynchronousState:
        if worker.rank == 0:
            worker.note("period", 1)
        return AsynchronousState(worker.parameters.clone(), worker.parameters.clone())

    def before_step(self, worker: Worker, state: AsynchronousState) -> None:
        """Average X with a neighbour; the optimizer applies the gradient of x̂ to the result."""
        if worker.size > 1:
            self._average(worker, state)
            for own in (worker.parameters, state.base):
                own.copy_(state.buffer)

    def after_step(self, worker: Worker, state: AsynchronousState) -> None:
        if worker.size > 1:
            state.buffer.add_(worker.parameters - state.base)  # −γ g(x̂)
            worker.parameters.copy_(state.buffer)

    def on_message(self, worker: Worker, state: AsynchronousState, source: int, message: Message) -> None:
        assert isinstance(message, AverageRequest)
        own, theirs = state.buffer.clone(), received_model(message.model, state.buffer)
        overlapping = CROSSING_WEIGHT if state.requested == source else OVERLAPPING_WEIGHT
        weight = 1 / 2 if state.requested < 0 else overlapping
        state.buffer.add_((theirs - own).mul_(weight))
        worker.note("met", source)
        worker.network.send(source, AverageResponse(message.number, own, weight).owned())

    def finish(self, worker: Worker, state: AsynchronousState) -> None:
        """Wait for the last exchange of all nodes, after which X does not change, and average over all nodes."""
        if worker.size > 1:
            worker.network.all_reduce_mean(torch.zeros(1), extra_state=False)
            worker.parameters.copy_(state.buffer)
            average_over_all(worker)

    def reported(self, worker: Worker, state: AsynchronousState) -> Tensor | None:
        """Return X_i, which neighbours may have changed since the last step."""
        return state.buffer if worker.size > 1 else None

    def merged(self, states: Sequence[AsynchronousState], rank: int, size: int) -> AsynchronousState:
        """Start all nodes from the mean of the buffers."""
        mean = torch.stack([state.buffer for state in states]).mean(0)
        return AsynchronousState(mean, mean.clone())

    def _average(self, worker: Worker, state: AsynchronousState) -> None:
        """X_i ← X_i + w (X_j − X_i) with a random neighbour j, which adds the opposite; skip a lost neighbour."""
        network, number = worker.network, worker.step
        neighbours = self.topology.neighbours(worker.size, number)[worker.rank]
        partner, own = neighbours[int(worker.random.integers(len(neighbours)))], state.buffer.clone()
        state.requested = partner
        network.send(partner, AverageRequest(number, own).owned())
        try:
            while (response := network.receive(AverageResponse, partner)[1]).number != number:
                pass  # a late response to an earlier, abandoned request
            theirs = received_model(response.model, own)
        except (PeerLost, BadMessage):
            worker.note("skipped", 1)
            return
        finally:
            state.requested = -1
        state.buffer.add_((theirs - own).mul_(response.weight))
        worker.note("met", partner)
