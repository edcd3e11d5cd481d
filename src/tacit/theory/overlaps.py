"""Exchanges that overlap: what is left of Γ when all ranks ask a neighbour at the same moment, as SwarmSGD does with
equal step times.

Rank i sends x_i to j. When j receives it, both are to add a part w of the difference: j adds w (x_i − x_j) at once, and
i adds w (x_j − x_i) when the answer comes. One exchange at a time, w = 1/2 makes both models the mean. If j has a
request of its own under way, to k, it will also add a part of x_k − x_j with the x_j of the moment at which it asked:
with w = 1/2 twice, nothing of x_j is left at j, and models swap instead of meeting.

    j has asked i too     w = 1/4: the two exchanges together make both models the mean.
    j has asked k         w = 1/3: the Metropolis weight 1/(1 + d) of a node that takes part in d = 2 exchanges at once.
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
    """Return the mean over drawn rounds of Γ after one, from ``start``, over Γ before it.

    In a round every rank asks a random neighbour at once. Requests arrive in random order, and all of them before any
    answer.
    """
    random, size = np.random.default_rng(seed), len(start)
    asked = np.tile(start - start.mean(), (rounds, 1))
    models, answers, rows = asked.copy(), np.empty_like(asked), np.arange(rounds)
    partners = _partners(topology, size, rounds, random)
    arrival = random.permuted(np.tile(np.arange(size), (rounds, 1)), axis=1)
    for source in arrival.T:  # of every round its next request
        target = partners[rows, source]
        weight = np.where(partners[rows, target] == source, crossing, overlapping)
        own = models[rows, target]
        change = weight * (asked[rows, source] - own)
        models[rows, target] = own + change
        answers[rows, source] = -change
    left = ((models + answers) ** 2).sum(1)
    return float(left.mean() / (asked[0] ** 2).sum())


def _partners(topology: Topology, size: int, rounds: int, random: np.random.Generator) -> np.ndarray:
    """Return whom every rank asks, [rounds, size]; the rounds of a graph that changes come equally often."""
    cycle, chances = topology.cycle(size), random.random((rounds, size))
    partners = np.empty((rounds, size), np.int64)
    for phase in range(cycle):
        for rank, reach in enumerate(topology.neighbours(size, phase)):
            drawn = (chances[phase::cycle, rank] * len(reach)).astype(np.int64)
            partners[phase::cycle, rank] = np.array(reach)[drawn]
    return partners
