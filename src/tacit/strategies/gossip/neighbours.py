"""Rounds in which every node exchanges with its neighbours and waits for them; shared by D-PSGD, SGP and CHOCO.

A round follows every step, so the number of a step is the number of its round. Messages carry it, because a neighbour
may be one round ahead.

**End of a run of unknown length.** A node whose data has ended continues to take part in rounds, without gradients. No
node sees all others, so messages carry the last round in which any node had data, and each node keeps the largest value
that it has received (``last_data_round``). Let h be the number of rounds in which information from every node reaches
every other. If any node has data in round k − h + 1, all nodes know it after round k. When ``last_data_round`` is h
rounds old, the data of all nodes has therefore ended. All nodes have the same value by then, so all detect the end in
the same round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from tacit.compression.compressor import Compressed
from tacit.core.messages import Message
from tacit.core.worker import Worker
from tacit.errors import BadMessage, RunError, require
from tacit.strategies.vector_checks import received_model
from tacit.topology import Topology
from tacit.topology.among import among


@dataclass(frozen=True)
class GossipMessage(Message, wire="gossip"):
    """A tensor or a compressed vector that a node sends to its neighbours in one round."""

    round: int
    last_data_round: int  # the last round in which any node had data, as far as the sender knows
    body: Tensor | Compressed


@dataclass
class GossipState:
    """State that all methods with rounds share."""

    last_data_round: int = 0  # the last round in which any node had data, as far as this node knows

    rank: int = -1  # that has begun the round; a joiner has the state of another one
    under_way: int = 0  # the round that has begun and not ended; 0: none
    members: list[int] = field(default_factory=list)  # who mixes; empty: all ranks
    first_round: int = 0  # of these members

    earlier_names: ClassVar = {"last_data_round": "news"}  # in checkpoints of version 0.1


def check_topology(topology: object) -> None:
    """Raise unless ``topology`` is a ``Topology``."""
    require(isinstance(topology, Topology), f"topology={topology!r} must be a topology such as Ring().")


def exchange(
    worker: Worker, state: GossipState, topology: Topology, body: Tensor | Compressed
) -> Iterator[tuple[float, Tensor | Compressed]]:
    """Send ``body`` to the neighbours of this round; yield W_ij and the body of every j that sends to this worker, i.

    In rank order, including i itself. ``body`` must not be written to afterwards.
    """
    step, network = worker.step, worker.network
    state.rank, state.under_way = worker.rank, step
    if worker.weight > 0:
        state.last_data_round = step
    own = GossipMessage(step, state.last_data_round, body).owned()
    members = state.members or range(worker.size)
    graph = among(topology, worker.size, members)
    size, place = len(members), members.index(worker.rank)
    for target in graph.neighbours(size, step - 1)[place]:
        network.send(members[target], own)
    weights = graph.mixing(size, step - 1)[place]
    sources = weights.nonzero().view(-1)
    for source, weight in zip(sources.tolist(), weights[sources].tolist(), strict=True):
        message = own if source == place else _received(worker, members[source])
        state.last_data_round = max(state.last_data_round, message.last_data_round)
        yield weight, message.body
    state.under_way = 0
    if worker.steps is None and step - state.last_data_round >= rounds_to_reach_all(graph, size):
        worker.report_total_weight(0.0)


def _received(worker: Worker, source: int) -> GossipMessage:
    """Return the message of ``source`` of this round, which may be behind messages sent before the members changed."""
    while (message := worker.network.receive(GossipMessage, source)[1]).round < worker.step:
        pass
    if message.round > worker.step:
        raise RunError(
            f"rank {worker.rank} is in round {worker.step} and received round {message.round} from rank {source}: "
            f"a message was lost; use a strategy that tolerates lost messages, such as SwarmSGD()."
        )
    return message


def mix(worker: Worker, state: GossipState, topology: Topology, vector: Tensor) -> Tensor:
    """Return Σ_j W_ij v_j over this worker, i, and all workers that send to it in this round."""
    mixed, own = torch.zeros_like(vector), vector.clone()
    for weight, theirs in exchange(worker, state, topology, own):
        if not isinstance(theirs, Tensor) or theirs.shape != vector.shape:
            kind = f"{theirs.numel()} numbers" if isinstance(theirs, Tensor) else type(theirs).__name__
            raise BadMessage(f"received {kind}; expected a vector of {vector.numel()} numbers.")
        mixed.add_(own if theirs is own else received_model(theirs, mixed), alpha=weight)
    return mixed


def average_over_all(worker: Worker) -> None:
    """Set the parameters of every node to their mean, without extra state: buffers of modules stay local."""
    worker.parameters.copy_(worker.network.all_reduce_mean(worker.parameters, extra_state=False))


@lru_cache
def rounds_to_reach_all(topology: Topology, size: int) -> int:
    """Return after how many rounds information from every rank has reached all, from any round of the cycle on."""
    everyone, most = (1 << size) - 1, 0
    for first in range(topology.cycle(size)):
        known, rounds = [1 << rank for rank in range(size)], 0  # sets of ranks as bits
        while any(ranks != everyone for ranks in known):
            before = tuple(known)
            for rank, targets in enumerate(topology.neighbours(size, first + rounds)):
                for target in targets:
                    known[target] |= before[rank]
            rounds += 1
        most = max(most, rounds)
    return most
