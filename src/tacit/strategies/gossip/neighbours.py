"""Rounds in which every node speaks to its neighbours and waits for theirs: what D-PSGD, SGP and CHOCO share.

A round follows every step, so a step's number is its round's. It travels with the words, because a neighbour may be a
round ahead.

**How a run of unknown length ends.** A node whose data has ended goes on joining rounds, without gradients, and nobody
sees all others. So the latest round in which anybody had data travels along, and every node keeps the largest it has
heard of: *news*. After round k the news of a node are of round k − h + 1 at least as long as somebody had data then, h
being the rounds in which news of everybody come to everybody. Once they are h rounds old, therefore, all data has
ended, and since everybody's are the same by then, all nodes find that in the same round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tacit.compression.compressor import Compressed
from tacit.core.messages import Message
from tacit.core.worker import Worker
from tacit.errors import BadMessage, RunError, require
from tacit.topology.topology import Topology


@dataclass(frozen=True)
class GossipMessage(Message, wire="gossip"):
    """What a node sends to its neighbours in one round: numbers, or a compressed vector."""

    round: int
    news: int  # the latest round in which anybody had data, as far as its sender knows
    body: Tensor | Compressed


@dataclass
class GossipState:
    """What every method's nodes remember."""

    news: int = 0  # the latest round in which anybody had data, as far as this node knows


def check_topology(topology: object) -> None:
    """Raise unless it is one."""
    require(isinstance(topology, Topology), f"topology={topology!r} must be a topology such as Ring().")


def swap(
    worker: Worker, state: GossipState, topology: Topology, body: Tensor | Compressed
) -> Iterator[tuple[float, Tensor | Compressed]]:
    """Give ``body``, which nobody will write to, to this round's neighbours; yield W_ij and the body of every j that i,
    this worker, hears.

    In rank order, its own among them.
    """
    size, rank, step, network = worker.size, worker.rank, worker.step, worker.network
    if worker.weight > 0:
        state.news = step
    words = GossipMessage(step, state.news, body).owned()
    for to in topology.neighbours(size, step - 1)[rank]:
        network.send(to, words)
    weights = topology.mixing(size, step - 1)[rank]
    heard_from = weights.nonzero().view(-1)
    for source, weight in zip(heard_from.tolist(), weights[heard_from].tolist(), strict=True):
        heard = words if source == rank else network.receive(GossipMessage, source)[1]
        if heard.round != step:
            raise RunError(
                f"rank {rank} is in round {step} and heard from rank {source}, of round {heard.round}: a message in between was lost; "
                f"use a strategy that minds no losses, such as SwarmSGD()."
            )
        state.news = max(state.news, heard.news)
        yield weight, heard.body
    if worker.steps is None and step - state.news >= rounds_to_everybody(topology, size):
        worker.report_total_weight(0.0)


def mix(worker: Worker, state: GossipState, topology: Topology, vector: Tensor) -> Tensor:
    """Return Σ_j W_ij v_j over this worker, i, and whoever sends to it in this round."""
    mixed = torch.zeros_like(vector)
    for weight, theirs in swap(worker, state, topology, vector.clone()):
        if not isinstance(theirs, Tensor) or theirs.shape != vector.shape:
            raise BadMessage(f"something else came where a vector of {vector.numel()} numbers belongs.")
        mixed.add_(theirs.to(mixed), alpha=weight)
    return mixed


def report_mean(worker: Worker) -> None:
    """Leave the mean of all nodes' models in each.

    A named group: modules' buffers, which ride on rounds of all, stay each node's own.
    """
    worker.parameters.copy_(worker.network.all_reduce_mean(worker.parameters, extra_state=False))


@lru_cache
def rounds_to_everybody(topology: Topology, size: int) -> int:
    """Return after how many rounds everybody has heard of everybody, whichever round of its cycle the topology begins
    with.
    """
    everybody, most = (1 << size) - 1, 0
    for first in range(topology.cycle(size)):
        heard, rounds = [1 << rank for rank in range(size)], 0  # sets of ranks as binary digits
        while any(known != everybody for known in heard):
            before = tuple(heard)
            for rank, out in enumerate(topology.neighbours(size, first + rounds)):
                for other in out:
                    heard[other] |= before[rank]
            rounds += 1
        most = max(most, rounds)
    return most
