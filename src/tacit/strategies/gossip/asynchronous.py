"""Asynchronous D-PSGD: every node averages with one random neighbour a step, at its own pace (Lian et al., ICML 2018,
arXiv 1710.06952).

    g_i at x̂_i, the model as it was when the gradient was begun
    X_i, X_j ← (X_i + X_j)/2        with a random neighbour j, in one go
    X_i ← X_i − γ g_i(x̂_i),  x̂_i ← X_i

The paper calls it AD-PSGD. In this library ADPSGD is the adaptive periodic averaging of Jiang & Agrawal (arXiv
2007.06134, ``LocalSGD`` with a ``VariancePeriod``), so this has its name written out.

X_i is a buffer that others change while node i computes. The paper makes averaging atomic by locks, and keeps from
deadlock by a bipartite graph whose one half asks and whose other half only answers. Here anybody asks along any edge: a
node that waits for its answer goes on answering, in its handler, so no cycle can wait. And both sides add half of the
difference, j when it is asked and i when the answer comes, instead of assigning the mean: whatever interleaves, Σ X
stays, and where nothing does this is the paper's update. A node that answers while it waits for its own answer uses a
smaller weight than 1/2, which travels with the answer (``theory.overlaps``): two halves at once would make models swap.

Why it works: a slow node holds up nobody but who asks it, and that only as long as a message takes. Momentum stays
local. ``SwarmSGD`` does not wait for its answers either, takes local steps between exchanges, and sends lattice points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.core.messages import Message
from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, Strategy
from tacit.core.worker import Worker
from tacit.errors import BadMessage, PeerLost, require
from tacit.strategies.gossip.neighbours import check_topology, report_mean
from tacit.theory.overlaps import CROSSING_WEIGHT, OVERLAPPING_WEIGHT
from tacit.topology import Complete
from tacit.topology.topology import Topology


@dataclass(frozen=True)
class AverageAsk(Message, wire="avgask"):
    """My model, which half of the difference to yours is to be added to; give me yours."""

    number: int
    model: Tensor


@dataclass(frozen=True)
class AverageAnswer(Message, wire="avgans"):
    """The partner's model as it was before it added its part, and ``weight``: which part of the difference both sides
    add.
    """

    number: int
    model: Tensor
    weight: float

    def __post_init__(self) -> None:
        require(0 < self.weight <= 1 / 2, f"weight={self.weight} must be above 0 and at most 1/2.")


@dataclass
class AsynchronousState:
    """The model that others change."""

    buffer: Tensor  # X
    base: Tensor  # what the optimizer's update began from
    asked: int = -1  # the node whose answer this one waits for; −1: none


@dataclass(frozen=True, kw_only=True)
class AsynchronousDPSGD(Strategy[AsynchronousState], MergesStates):
    """Average with one random neighbour a step, waiting for no other (AD-PSGD, Lian et al., arXiv 1710.06952)."""

    topology: Topology = field(default=Complete(), metadata=ALWAYS_SPELLED)

    handles = (AverageAsk,)
    skips_lost_workers = keeps_models_apart = True

    def __post_init__(self) -> None:
        check_topology(self.topology)

    def init(self, worker: Worker) -> AsynchronousState:
        if worker.rank == 0:
            worker.note("period", 1)
        return AsynchronousState(worker.parameters.clone(), worker.parameters.clone())

    def before_step(self, worker: Worker, state: AsynchronousState) -> None:
        """The gradient of x̂ is there: average, and let the optimizer go on from the mean."""
        if worker.size > 1:
            self._average(worker, state)
            for own in (worker.parameters, state.base):
                own.copy_(state.buffer)

    def after_step(self, worker: Worker, state: AsynchronousState) -> None:
        if worker.size > 1:
            state.buffer.add_(worker.parameters - state.base)  # −γ g(x̂)
            worker.parameters.copy_(state.buffer)

    def on_message(self, worker: Worker, state: AsynchronousState, source: int, message: Message) -> None:
        assert isinstance(message, AverageAsk)
        own, theirs = state.buffer.clone(), _fitting(message.model, state.buffer)
        overlapping = CROSSING_WEIGHT if state.asked == source else OVERLAPPING_WEIGHT
        weight = 1 / 2 if state.asked < 0 else overlapping
        state.buffer.add_((theirs - own).mul_(weight))
        worker.note("met", source)
        worker.network.send(source, AverageAnswer(message.number, own, weight).owned())

    def finish(self, worker: Worker, state: AsynchronousState) -> None:
        """Once everybody has asked for the last time, and been answered, nothing changes X any more."""
        if worker.size > 1:
            worker.network.all_reduce_mean(torch.zeros(1), extra_state=False)
            worker.parameters.copy_(state.buffer)
            report_mean(worker)

    def reported(self, worker: Worker, state: AsynchronousState) -> Tensor | None:
        """Return X_i: neighbours may have changed it since the last step."""
        return state.buffer if worker.size > 1 else None

    def merged(self, states: Sequence[AsynchronousState], rank: int, size: int) -> AsynchronousState:
        """All start from the mean of their models."""
        mean = torch.stack([state.buffer for state in states]).mean(0)
        return AsynchronousState(mean, mean.clone())

    def _average(self, worker: Worker, state: AsynchronousState) -> None:
        """X_i ← X_i + w (X_j − X_i) with a random neighbour j, which adds the opposite; one that is gone is let go."""
        network, number = worker.network, worker.step
        reach = self.topology.neighbours(worker.size, number)[worker.rank]
        partner, own = reach[int(worker.random.integers(len(reach)))], state.buffer.clone()
        state.asked = partner
        network.send(partner, AverageAsk(number, own).owned())
        try:
            while (answer := network.receive(AverageAnswer, partner)[1]).number != number:
                pass  # it was answered after all, but too late: the answer to a question that was given up
        except PeerLost:
            worker.note("skipped", 1)
            return
        finally:
            state.asked = -1
        state.buffer.add_((_fitting(answer.model, own) - own).mul_(answer.weight))
        worker.note("met", partner)


def _fitting(model: Tensor, own: Tensor) -> Tensor:
    if model.shape != own.shape:
        raise BadMessage(f"a model of {model.numel()} numbers came for {own.numel()} parameters.")
    return model.to(own)
