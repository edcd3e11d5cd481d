"""Base class of topologies: neighbours, mixing weights, and random edges and matchings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tacit.core.specs import Spec, with_python_numbers
from tacit.errors import require

Neighbours = tuple[tuple[int, ...], ...]
"""For every rank the other ranks that it sends to, ascending."""


@dataclass(frozen=True)
class Topology(Spec, ABC):
    """Base class of topologies: a graph over the ranks of a run.

    Derive a frozen dataclass. Override ``targets``, which returns the ranks that each rank sends to; for a graph that
    changes from round to round also ``cycle``, and for a directed graph ``is_directed``. The number of ranks is an
    argument of every method, so that one value fits all sizes. A single worker has no neighbours in any topology.

    >>> from dataclasses import dataclass
    >>> import tacit
    >>> @dataclass(frozen=True)
    ... class Line(tacit.Topology):
    ...     def targets(self, size, round):
    ...         return [{rank - 1, rank + 1} & set(range(size)) for rank in range(size)]
    >>> Line().neighbours(4)
    ((1,), (0, 2), (1, 3), (2,))
    """

    # Results by size.
    _neighbours: dict[int, list[Neighbours]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _mixing: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _arcs: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)
    _partners: dict[int, list[list[int]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def is_directed(self) -> bool:
        """Whether an edge i → j lets i send to j without j sending to i."""
        return False

    def cycle(self, size: int) -> int:
        """Return the number of rounds after which the graphs repeat; 1 for a graph that does not change."""
        return 1

    @abstractmethod
    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        """Return whom every rank sends to in ``round``, itself left out; complain of a ``size`` that does not fit."""

    @with_python_numbers
    def neighbours(self, size: int, round: int = 0) -> Neighbours:
        """Return for every rank the other ranks that it sends to in ``round``, ascending; raise if disconnected."""
        require(_is_whole(size) and size >= 1, f"size={size} must be a whole number, at least 1.")
        require(_is_whole(round) and round >= 0, f"round={round} must be a whole number, at least 0.")
        if size == 1:
            return ((),)
        rounds = self._neighbours.get(size)
        if rounds is None:
            rounds = [tuple(tuple(sorted(r)) for r in self.targets(size, t)) for t in range(self.cycle(size))]
            _require_connected(rounds, size, self)
            self._neighbours[size] = rounds
        return rounds[round % len(rounds)]

    @with_python_numbers
    def mixing(self, size: int, round: int = 0) -> Tensor:
        """Return W, float64 [size, size], such that x ← W x averages with all neighbours; do not write to it.

        Undirected graphs: Metropolis–Hastings weights, W_ij = 1/(1 + max(d_i, d_j)) for neighbours, and W_ii such that
        rows sum to 1. W is symmetric and doubly stochastic on every graph, so the mean is conserved. Directed graphs:
        rank j keeps 1/(1 + d_j) of its value and sends as much to each of its d_j out-neighbours. Columns sum to 1, so
        the sum is conserved (push-sum divides by weights that are sent along).
        """
        phase = round % self.cycle(size)
        if (size, phase) not in self._mixing:
            self._mixing[size, phase] = _mixing_matrix(self.neighbours(size, phase), is_directed=self.is_directed)
        return self._mixing[size, phase]

    @with_python_numbers
    def draw_edge(self, size: int, random: np.random.Generator) -> tuple[int, int]:
        """Return a uniformly random edge (source, target); an undirected edge in a random direction.

        If the graph changes, the edges of all its rounds count, here and in ``draw_matching``.
        """
        arcs = self._all_arcs(size)
        source, target = arcs[int(random.integers(len(arcs)))]
        return int(source), int(target)

    @with_python_numbers
    def draw_matching(self, size: int, random: np.random.Generator) -> tuple[int | None, ...]:
        """Return each rank's partner in a random matching along edges, or None.

        In random order each free rank takes a free neighbour. No edge connects two ranks without partner, and every
        edge can occur. Directions of edges are ignored.
        """
        partners = self._all_partners(size)
        partner: list[int | None] = [None] * size
        chances = random.random(size)
        for rank in random.permutation(size).tolist():
            if partner[rank] is None and (free := [other for other in partners[rank] if partner[other] is None]):
                other = free[int(chances[rank] * len(free))]
                partner[rank], partner[other] = other, rank
        return tuple(partner)

    def _all_arcs(self, size: int) -> np.ndarray:
        """Return every (source, target) of any round once; an undirected edge in both directions."""
        if size not in self._arcs:
            rounds = [self.neighbours(size, t) for t in range(self.cycle(size))]
            arcs = sorted({(i, j) for neighbours in rounds for i, out in enumerate(neighbours) for j in out})
            require(len(arcs) > 0, f"size={size} must be at least 2 to draw an edge.")
            self._arcs[size] = np.array(arcs)
        return self._arcs[size]

    def _all_partners(self, size: int) -> list[list[int]]:
        """Return for every rank its neighbours of any round, in either direction."""
        if size not in self._partners:
            sets: list[set[int]] = [set() for _ in range(size)]
            for i, j in self._all_arcs(size).tolist() if size > 1 else ():
                sets[i].add(j)
                sets[j].add(i)
            self._partners[size] = [sorted(ranks) for ranks in sets]
        return self._partners[size]


def _mixing_matrix(neighbours: Neighbours, *, is_directed: bool) -> Tensor:
    weights = torch.zeros(len(neighbours), len(neighbours), dtype=torch.float64)
    degrees = torch.tensor([len(out) for out in neighbours], dtype=torch.float64)
    for i, out in enumerate(neighbours):
        targets = torch.tensor(out, dtype=torch.int64)
        if is_directed:
            weights[targets, i] = 1 / (1 + degrees[i])
        else:
            weights[i, targets] = 1 / (1 + torch.maximum(degrees[i], degrees[targets]))
    weights.diagonal().copy_(1 - weights.sum(0))
    return weights


def _require_connected(rounds: Sequence[Neighbours], size: int, topology: Topology) -> None:
    """Raise unless there is a path from every rank to every other, along the edges of all rounds."""
    there: list[set[int]] = [set() for _ in range(size)]
    back: list[set[int]] = [set() for _ in range(size)]
    for neighbours in rounds:
        for i, out in enumerate(neighbours):
            there[i].update(out)
            for j in out:
                back[j].add(i)
    for edges, path in ((there, "from rank 0 to rank {}"), (back, "from rank {} to rank 0")):
        cut_off = sorted(set(range(size)) - _reached(edges))
        require(
            not cut_off,
            f"{type(topology).__name__} with size={size} is not {'strongly ' * topology.is_directed}connected: there "
            f"is no path {path.format(cut_off[0]) if cut_off else ''} ({len(cut_off)} of {size} ranks are cut off); "
            f"add edges.",
        )


def _reached(edges: Sequence[Collection[int]]) -> set[int]:
    seen, todo = {0}, [0]
    while todo:
        new = [j for j in edges[todo.pop()] if j not in seen]
        seen.update(new)
        todo.extend(new)
    return seen


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
