"""What a graph promises to gossip: how fast models that meet along its edges come together.

n ranks. A: the adjacency of all rounds together, (A + Aᵀ)/2 where edges carry one way. L = D − A its Laplacian, 0 = λ₁
< λ₂ ≤ … its eigenvalues. r: the degree; where ranks differ, the *mean* degree. Γ = Σ ‖x_i − x̄‖², the consensus
distance. W: the topology's mixing matrix.

    one drawn edge     x_i, x_j ← (x_i + x_j)/2 is a projection, W_e² = W_e = W_eᵀ, so E‖W_e x − x̄‖² = (x − x̄)ᵀ E[W_e] (x − x̄), and with edges
                       drawn uniformly E[W_e] = I − L/(r n):      E Γ' ≤ (1 − λ₂/(r n)) Γ, with equality for the eigenvector of λ₂.
                       On the complete graph λ₂ = n and r = n − 1, every x is one, and E Γ' = (1 − 1/(n−1)) Γ exactly.
                       This is for atomic exchanges: none begins before the last one has ended. Of exchanges that overlap, the part of Γ that is left
                       is measured by ``simultaneous_contraction``; ``overlaps`` says how SwarmSGD weighs them.
    all at once        ‖W x − x̄‖ ≤ |λ₂(W)| ‖x − x̄‖ on undirected graphs; on directed ones |λ₂(W)| is the rate in the long run.
    SwarmSGD           its bounds grow with r²/λ₂² + 1 (Nadiradze et al., NeurIPS 2021, arXiv 1910.12308). Proved for regular graphs; with the mean
                       degree as r, E[W_e] = I − L/(r n) holds on irregular ones too, but what else the proof needs of
                       regularity does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tacit.core.specs import Parameters
from tacit.errors import require
from tacit.theory.overlaps import CROSSING_WEIGHT, OVERLAPPING_WEIGHT, gamma_after_a_round
from tacit.topology import Topology


@dataclass(frozen=True)
class GraphTheory(Parameters):
    """The numbers of ``topology`` over ``size`` ranks.

    Eigenvalues of a thousand ranks take seconds, and are taken once.
    """

    topology: Topology
    size: int

    def __post_init__(self) -> None:
        require(isinstance(self.topology, Topology), f"topology={self.topology!r} must be a topology, such as Ring().")
        require(self.size >= 2, f"size={self.size}: a graph needs 2 ranks at least to have somebody to agree with.")
        self.topology.neighbours(self.size)  # complains of a size that does not fit

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """Of each rank how many others it sends to, over all rounds."""
        return tuple(int(degree) for degree in self._adjacency.sum(1))

    @property
    def degree(self) -> float:
        """r: the mean over ranks of the degree."""
        return sum(self.degrees) / self.size

    @property
    def is_regular(self) -> bool:
        """Whether all ranks have the same degree."""
        return len(set(self.degrees)) == 1

    @property
    def edges(self) -> int:
        """The number of edges, over all rounds; on directed graphs each direction is one."""
        return sum(self.degrees) if self.topology.is_directed else sum(self.degrees) // 2

    @cached_property
    def diameter(self) -> int:
        """The rounds until everybody has heard of everybody, when all speak to all their neighbours in every round."""
        everybody = (1 << self.size) - 1
        heard, rounds = [1 << rank for rank in range(self.size)], 0  # sets of ranks as binary digits
        while any(known != everybody for known in heard):
            before = tuple(heard)
            for rank, out in enumerate(self.topology.neighbours(self.size, rounds)):
                for other in out:
                    heard[other] |= before[rank]
            rounds += 1
        return rounds

    @cached_property
    def algebraic_connectivity(self) -> float:
        """λ₂, the second smallest eigenvalue of the Laplacian; larger = harder to cut in two."""
        return float(np.linalg.eigvalsh(self._laplacian)[1])

    @cached_property
    def spectral_gap(self) -> float:
        """1 − |λ₂(W)|, what each round with all neighbours takes off the distance to the mean; of graphs that change,
        the mean over a cycle.
        """
        rounds = [self.topology.mixing(self.size, t).numpy() for t in range(self.topology.cycle(self.size))]
        over_a_cycle = rounds[0]
        for mixing in rounds[1:]:
            over_a_cycle = mixing @ over_a_cycle
        eigenvalues = np.linalg.eigvals if self.topology.is_directed else np.linalg.eigvalsh
        second = float(np.sort(np.abs(eigenvalues(over_a_cycle)))[-2])
        rounding = self.size * float(np.finfo(np.float64).eps)  # a root would make much of it
        return 1 - (second ** (1 / len(rounds)) if second > rounding else 0.0)

    @property
    def swarm_factor(self) -> float:
        """r²/λ₂², what SwarmSGD's bounds charge for the graph: (1 − 1/n)² on the complete one."""
        return (self.degree / self.algebraic_connectivity) ** 2

    @property
    def contraction(self) -> float:
        """1 − λ₂/(r n): the most that is left of Γ, in expectation, after one atomic interaction along a uniformly
        drawn edge.
        """
        return max(0.0, 1 - self.algebraic_connectivity / (self.degree * self.size))

    def simultaneous_contraction(
        self,
        *,
        overlapping_weight: float = OVERLAPPING_WEIGHT,
        crossing_weight: float = CROSSING_WEIGHT,
        rounds: int = 4096,
        seed: int = 0,
    ) -> float:
        """Return what is left of Γ after a round in which all ranks ask a random neighbour at the same moment: n
        exchanges that overlap.

        Compare it with ``contraction ** size``, n exchanges one after another. The weights are SwarmSGD's
        (``overlaps``); with 1/2 for both, models take halves whatever overlaps. Of two starts the slower one counts:
        the eigenvector of λ₂, and that of the largest eigenvalue, in which neighbours differ most, so that models swap.
        Measured over so many drawn ``rounds``: the standard error is about 0.3/√rounds.
        """
        for name, weight in (("overlapping_weight", overlapping_weight), ("crossing_weight", crossing_weight)):
            require(0 < weight <= 1 / 2, f"{name}={weight} must be above 0 and at most 1/2.")
        require(isinstance(rounds, int) and rounds >= 1, f"rounds={rounds} must be a whole number, at least 1.")
        starts = np.linalg.eigh(self._laplacian)[1][:, [1, -1]].T
        return max(
            gamma_after_a_round(self.topology, start, overlapping_weight, crossing_weight, rounds, seed)
            for start in starts
        )

    @property
    def consensus_interactions(self) -> float:
        """Expected interactions that make Γ e times smaller, from the worst start: 1/ln(1/contraction), one at least."""
        rounding = self.size * float(np.finfo(np.float64).eps)
        return max(1.0, -1 / math.log(self.contraction)) if self.contraction > rounding else 1.0

    @property
    def consensus_time(self) -> float:
        """The same in parallel time, n interactions being one unit: everybody has then met two others, on average."""
        return self.consensus_interactions / self.size

    @property
    def busiest_meetings(self) -> float:
        """Expected interactions of the busiest rank in that time: they come one after another, so no schedule is faster
        than them.
        """
        met = self._adjacency.sum(0) + self._adjacency.sum(1)
        return self.consensus_interactions * float(met.max()) / float(self._adjacency.sum())

    def as_json(self) -> dict[str, Any]:
        """Return all of it under the names above."""
        names = (
            "size",
            "edges",
            "degree",
            "is_regular",
            "diameter",
            "algebraic_connectivity",
            "spectral_gap",
            "swarm_factor",
            "contraction",
            "consensus_interactions",
            "consensus_time",
            "busiest_meetings",
        )
        return {"topology": str(self.topology), "is_directed": self.topology.is_directed} | {
            name: getattr(self, name) for name in names
        }

    @property
    def _laplacian(self) -> np.ndarray:
        both_ways = (self._adjacency + self._adjacency.T) / 2
        laplacian: np.ndarray = np.diag(both_ways.sum(1)) - both_ways
        return laplacian

    @cached_property
    def _adjacency(self) -> np.ndarray:
        """1 where the row's rank sends to the column's in some round."""
        adjacency = np.zeros((self.size, self.size))
        for t in range(self.topology.cycle(self.size)):
            for rank, out in enumerate(self.topology.neighbours(self.size, t)):
                adjacency[rank, list(out)] = 1
        return adjacency
