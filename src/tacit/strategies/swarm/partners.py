"""Choice of partners of a non-blocking SwarmSGD node, and the model request of a node that joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from torch import Tensor

from tacit.compression import Lattice
from tacit.core.worker import Worker
from tacit.errors import BadMessage, PeerLost, TimedOut
from tacit.strategies.swarm.messages import SwarmJoinRequest, SwarmJoinResponse
from tacit.strategies.swarm.state import SwarmState
from tacit.strategies.vector_checks import received_model
from tacit.topology import Complete, Topology

_MOST_SKIPPED: Final = 8
"""Exchanges that are skipped for one outstanding response."""
FIRST_WAIT_S: Final = 10.0
"""How long a node that joins waits for a neighbour's model before it asks the next one; twice as long in each round."""
JOIN_ROUNDS: Final = 6
"""How often a node that joins asks each silent neighbour."""


def draw_neighbour(worker: Worker, state: SwarmState, topology: Topology) -> int | None:
    """Return a random neighbour that is not unresponsive; None if there is none."""
    if isinstance(topology, Complete) and not state.unresponsive:  # needs no list of all ranks
        return (worker.rank + 1 + int(worker.random.integers(worker.size - 1))) % worker.size
    neighbours = topology.neighbours(worker.size, state.exchanges)[worker.rank]
    responsive = [peer for peer in neighbours if peer not in state.unresponsive]
    return responsive[int(worker.random.integers(len(responsive)))] if responsive else None


def sends_buffer(worker: Worker, state: SwarmState, topology: Topology, compressor: Lattice | None) -> bool:
    """Return whether the next exchange starts with a request, which contains the buffer, not the working model.

    The first lattice vector is as wide as the progress of the model. A node without a neighbour adopts its buffer.
    """
    if state.in_flight >= 0 or state.has_response or state.unresponsive or not (compressor is None or state.memory):
        return False
    return isinstance(topology, Complete) or bool(topology.neighbours(worker.size, state.exchanges + 1)[worker.rank])


def abandon_overdue(state: SwarmState) -> bool:
    """Return whether the outstanding response is overdue; if so, stop waiting and mark its partner as unresponsive."""
    if state.exchanges - state.requested_at <= _MOST_SKIPPED:
        return False
    state.unresponsive.append(state.requested[state.in_flight])
    state.in_flight = -1
    return True


def request_trained_model(worker: Worker, topology: Topology) -> Tensor | None:
    """Return the model of the first neighbour, in random order, that has trained; None if there is none."""
    network = worker.network

    def ask(neighbour: int, timeout_s: float) -> Tensor:
        network.send(neighbour, SwarmJoinRequest())
        model = network.receive(SwarmJoinResponse, source=neighbour, timeout_s=timeout_s)[1].model
        return received_model(model, worker.parameters) if model.numel() else model

    return first_model(worker, topology.neighbours(worker.size)[worker.rank], ask)


def first_model(worker: Worker, neighbours: Sequence[int], ask: Callable[[int, float], Tensor]) -> Tensor | None:
    """Return the first model that is not empty, asking ``neighbours`` in random order; None if none has trained.

    ask: asks one neighbour and waits a given time. A request or its answer may be lost: silent neighbours are asked
    again after all others. Raise ``TimedOut`` if no neighbour has answered at last.
    """
    silent = [neighbours[place] for place in worker.random.permutation(len(neighbours)).tolist()]
    answers, error = 0, None
    for number in range(JOIN_ROUNDS):
        asked, silent = silent, []
        for neighbour in asked:
            try:
                model = ask(neighbour, FIRST_WAIT_S * 2**number)
            except (PeerLost, BadMessage):
                continue
            except TimedOut as timed_out:
                silent.append(neighbour)
                error = timed_out
                continue
            if model.numel():
                return model
            answers += 1
        if not silent:
            return None
    if not answers and error is not None:
        raise error
    return None
