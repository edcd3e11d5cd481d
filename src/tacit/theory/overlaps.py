"""Overlapping exchanges: their weights, and the ratio of Γ after and before a round in which all ranks send a request.

Such rounds occur in SwarmSGD if step times are equal. Rank i sends x_i to j. Both add a part w of the difference: j
adds w (x_i − x_j) when the request arrives, and i adds w (x_j − x_i) when the response arrives. For a single exchange
w = 1/2 makes both models the mean. If j has an outstanding request to k, it will also add a part of x_k − x_j, with the
x_j that it sent. With w = 1/2 both times nothing of x_j remains at j, and models are swapped instead of averaged.

    j's request is to i     w = 1/4: the two exchanges together make both models the mean.
    j's request is to k     w = 1/3: the Metropolis weight 1/(1 + d) of a node in d = 2 exchanges at once.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tacit.topology import Topology

CROSSING_WEIGHT: Final = 1 / 4
OVERLAPPING_WEIGHT: Final = 1 / 3


def gamma_after_a_round(
    topology: Topology, start: np.ndarray, overlapping: float, crossing: float, rounds: int, seed: int
) -> float:
    """Return the mean over random rounds of Γ after the round divided by Γ of ``start``.

    In a round every rank sends a request to a random neighbour at the same time. Requests arrive in random order, all
    of them before any response.
    """
    random, size = np.random.default_rng(seed), len(start)
    requests = np.tile(start - start.mean(), (rounds, 1))
    models, responses, rows = requests.copy(), np.empty_like(requests), np.arange(rounds)
    partners = _partners(topology, size, rounds, random)
    arrival = random.permuted(np.tile(np.arange(size), (rounds, 1)), axis=1)
    for source in arrival.T:  # the next request of every round
        target = partners[rows, source]
        weight = np.where(partners[rows, target] == source, crossing, overlapping)
        own = models[rows, target]
        change = weight * (requests[rows, source] - own)
        models[rows, target] = own + change
        responses[rows, source] = -change
    after = ((models + responses) ** 2).sum(1)
    return float(after.mean() / (requests[0] ** 2).sum())


def _partners(topology: Topology, size: int, rounds: int, random: np.random.Generator) -> np.ndarray:
    """Return a random partner of every rank, [rounds, size]; the rounds of a changing graph occur equally often."""
    cycle, chances = topology.cycle(size), random.random((rounds, size))
    partners = np.empty((rounds, size), np.int64)
    for phase in range(cycle):
        for rank, reach in enumerate(topology.neighbours(size, phase)):
            drawn = (chances[phase::cycle, rank] * len(reach)).astype(np.int64)
            partners[phase::cycle, rank] = np.array(reach)[drawn]
    return partners
