"""Consensus on a graph: how fast models that are averaged along its edges converge to their mean.

n ranks. A: the adjacency matrix of all rounds together; (A + Aᵀ)/2 on directed graphs. L = D − A: its Laplacian, with
eigenvalues 0 = λ₁ < λ₂ ≤ … r: the degree; the *mean* degree if ranks differ. Γ = Σ ‖x_i − x̄‖²: the consensus distance.
W: the topology's mixing matrix.

    one edge     x_i, x_j ← (x_i + x_j)/2 is a projection, W_e² = W_e = W_eᵀ, so
                 E‖W_e x − x̄‖² = (x − x̄)ᵀ E[W_e] (x − x̄). For uniformly drawn edges E[W_e] = I − L/(r n), and
                 E Γ' ≤ (1 − λ₂/(r n)) Γ, with equality for the eigenvector of λ₂.
                 On the complete graph λ₂ = n and r = n − 1, every x is such a vector, and E Γ' = (1 − 1/(n−1)) Γ.
                 This holds for atomic exchanges: each ends before the next begins. ``simultaneous_contraction``
                 measures overlapping exchanges; ``overlaps`` has their weights in SwarmSGD.
    all edges    ‖W x − x̄‖ ≤ |λ₂(W)| ‖x − x̄‖ on undirected graphs; on directed ones |λ₂(W)| is the asymptotic rate.
    SwarmSGD     The bounds grow with r²/λ₂² + 1 (Nadiradze et al., NeurIPS 2021, arXiv 1910.12308). The proof is for
                 regular graphs. With the mean degree as r, E[W_e] = I − L/(r n) holds on irregular graphs too; the
                 rest of the proof does not carry over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacit.core.specs import Parameters
from tacit.errors import require
from tacit.theory.overlaps import CROSSING_WEIGHT, OVERLAPPING_WEIGHT, gamma_after_a_round
from tacit.topology import Topology


@dataclass(frozen=True)
class GraphTheory(Parameters):
    """Properties of ``topology`` with ``size`` ranks.

    Eigenvalues for a thousand ranks take seconds to compute, and are computed once.
    """

    topology: Topology
    size: int
    _adjacency: np.ndarray = field(init=False, repr=False, compare=False)  # 1 if the row's rank sends to the column's
    _computed: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(isinstance(self.topology, Topology), f"topology={self.topology!r} must be a topology, such as Ring().")
        require(self.size >= 2, f"size={self.size} must be at least 2.")
        adjacency = np.zeros((self.size, self.size))
        for t in range(self.topology.cycle(self.size)):
            for rank, targets in enumerate(self.topology.neighbours(self.size, t)):
                adjacency[rank, list(targets)] = 1
        object.__setattr__(self, "_adjacency", adjacency)

    @property
    def degrees(self) -> tuple[int, ...]:
        """For each rank the number of ranks that it sends to, over all rounds."""
        return tuple(int(degree) for degree in self._adjacency.sum(1))

    @property
    def degree(self) -> float:
        """r: the mean degree over all ranks."""
        return sum(self.degrees) / self.size

    @property
    def is_regular(self) -> bool:
        """Whether all ranks have the same degree."""
        return len(set(self.degrees)) == 1

    @property
    def edges(self) -> int:
        """The number of edges over all rounds; directed edges count separately."""
        return sum(self.degrees) if self.topology.is_directed else sum(self.degrees) // 2

    @property
    def diameter(self) -> int:
        """The number of rounds in which information from every rank reaches all others."""
        return int(self._once("diameter", self._count_rounds))

    @property
    def algebraic_connectivity(self) -> float:
        """λ₂, the second smallest eigenvalue of the Laplacian; larger = better connected."""
        return self._once("algebraic_connectivity", lambda: float(np.linalg.eigvalsh(self._laplacian)[1]))

    @property
    def spectral_gap(self) -> float:
        """1 − |λ₂(W)|: the relative decrease of the distance to the mean per round; the mean over a cycle of rounds."""
        return self._once("spectral_gap", self._compute_spectral_gap)

    @property
    def swarm_factor(self) -> float:
        """r²/λ₂², the factor of the graph in SwarmSGD's bounds: (1 − 1/n)² on the complete graph."""
        return (self.degree / self.algebraic_connectivity) ** 2

    @property
    def contraction(self) -> float:
        """1 − λ₂/(r n): the largest expected ratio of Γ after and before one atomic exchange along a random edge."""
        return max(0.0, 1 - self.algebraic_connectivity / (self.degree * self.size))

    def simultaneous_contraction(
        self,
        *,
        overlapping_weight: float = OVERLAPPING_WEIGHT,
        crossing_weight: float = CROSSING_WEIGHT,
        rounds: int = 4096,
        seed: int = 0,
    ) -> float:
        """Return the ratio of Γ after and before a round of n overlapping exchanges, one request per rank at once.

        Compare with ``contraction ** size``, n exchanges in sequence. The weights are SwarmSGD's (``overlaps``); 1/2
        for both ignores the overlap. The result is the larger ratio of two starts: the eigenvector of λ₂, and that of
        the largest eigenvalue, in which neighbours differ most and models are swapped. It is a mean over ``rounds``
        random rounds, with a standard error of about 0.3/√rounds.
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
        """Expected exchanges until Γ is e times smaller, from the worst start: 1/ln(1/contraction), at least 1."""
        rounding = self.size * float(np.finfo(np.float64).eps)
        return max(1.0, -1 / math.log(self.contraction)) if self.contraction > rounding else 1.0

    @property
    def consensus_time(self) -> float:
        """``consensus_interactions`` in units of n exchanges: two per rank on average."""
        return self.consensus_interactions / self.size

    @property
    def busiest_meetings(self) -> float:
        """Expected exchanges of the busiest rank until consensus. They run in sequence, so no schedule is faster."""
        met = self._adjacency.sum(0) + self._adjacency.sum(1)
        return self.consensus_interactions * float(met.max()) / float(self._adjacency.sum())

    def as_json(self) -> dict[str, Any]:
        """Return all properties by name."""
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

    def _once(self, name: str, compute: Callable[[], float]) -> float:
        if name not in self._computed:
            self._computed[name] = compute()
        return self._computed[name]

    def _count_rounds(self) -> int:
        everyone = (1 << self.size) - 1
        known, rounds = [1 << rank for rank in range(self.size)], 0  # sets of ranks as bits
        while any(ranks != everyone for ranks in known):
            before = tuple(known)
            for rank, targets in enumerate(self.topology.neighbours(self.size, rounds)):
                for target in targets:
                    known[target] |= before[rank]
            rounds += 1
        return rounds

    def _compute_spectral_gap(self) -> float:
        rounds = [self.topology.mixing(self.size, t).numpy() for t in range(self.topology.cycle(self.size))]
        over_a_cycle = rounds[0]
        for mixing in rounds[1:]:
            over_a_cycle = mixing @ over_a_cycle
        eigenvalues = np.linalg.eigvals if self.topology.is_directed else np.linalg.eigvalsh
        second = float(np.sort(np.abs(eigenvalues(over_a_cycle)))[-2])
        rounding = self.size * float(np.finfo(np.float64).eps)  # a root would amplify it
        return 1 - (second ** (1 / len(rounds)) if second > rounding else 0.0)
