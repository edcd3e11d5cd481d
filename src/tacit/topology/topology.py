"""What every topology answers: who may speak to whom, with which weights, and who meets whom when meetings are drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.core.specs import Spec, with_python_numbers
from tacit.errors import require

Neighbours = tuple[tuple[int, ...], ...]
"""Of every rank the ranks it sends to, ascending, itself left out."""


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

    @property
    def is_directed(self) -> bool:
        """Whether an edge i → j lets i send to j without j sending to i."""
        return False

    def cycle(self, size: int) -> int:
        """Return after how many rounds the graphs repeat: 1 for a graph that never changes."""
        return 1

    @abstractmethod
    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        """Return whom every rank sends to in ``round``, itself left out; complain of a ``size`` that does not fit."""

    @with_python_numbers
    def neighbours(self, size: int, round: int = 0) -> Neighbours:
        """Return of every rank the ranks it sends to in ``round``, ascending, itself left out; refuse a graph in parts."""
        require(_is_whole(size) and size >= 1, f"size={size} must be a whole number, at least 1.")
        require(_is_whole(round) and round >= 0, f"round={round} must be a whole number, at least 0.")
        if size == 1:
            return ((),)
        rounds = self._known.get(size)
        if rounds is None:
            rounds = [tuple(tuple(sorted(r)) for r in self.targets(size, t)) for t in range(self.cycle(size))]
            _require_connected(rounds, size, self)
            self._known[size] = rounds
        return rounds[round % len(rounds)]

    @with_python_numbers
    def mixing(self, size: int, round: int = 0) -> Tensor:
        """Return W, float64 [size, size], such that x ← W x is one exchange with all neighbours; do not write into it.

        Undirected graphs: Metropolis–Hastings weights, W_ij = 1/(1 + max(d_i, d_j)) for neighbours and W_ii the rest to
        1: symmetric and doubly stochastic on every graph, so the mean stays. Directed graphs: rank j keeps 1/(1 + d_j)
        of its own and sends as much to each of its d_j out-neighbours: columns sum to 1, so the *sum* stays (push-sum
        divides by the weights that travel along).
        """
        phase = round % self.cycle(size)
        if (size, phase) not in self._matrices:
            self._matrices[size, phase] = _mixing(self.neighbours(size, phase), is_directed=self.is_directed)
        return self._matrices[size, phase]

    @with_python_numbers
    def draw_edge(self, size: int, random: np.random.Generator) -> tuple[int, int]:
        """Return one edge, each as likely as any other; of an undirected graph either end comes first as likely.

        Of a graph that changes, the edges of all its rounds count, here and in ``draw_matching``.
        """
        arcs = self._arcs(size)
        source, target = arcs[int(random.integers(len(arcs)))]
        return int(source), int(target)

    @with_python_numbers
    def draw_matching(self, size: int, random: np.random.Generator) -> tuple[int | None, ...]:
        """Return everybody's partner in a random matching along edges, or None: in random order each free rank takes a
        free neighbour.

        No edge is left between two ranks without a partner, and every edge can occur. Directions of edges do not matter
        here.
        """
        beside = self._beside(size)
        partner: list[int | None] = [None] * size
        chances = random.random(size)
        for rank in random.permutation(size).tolist():
            if partner[rank] is None and (free := [other for other in beside[rank] if partner[other] is None]):
                other = free[int(chances[rank] * len(free))]
                partner[rank], partner[other] = other, rank
        return tuple(partner)

    def _arcs(self, size: int) -> np.ndarray:
        """Return every (source, target) of any round once: an undirected edge twice, once in each direction."""
        if ("arcs", size) not in self._drawn:
            rounds = [self.neighbours(size, t) for t in range(self.cycle(size))]
            arcs = sorted({(i, j) for neighbours in rounds for i, out in enumerate(neighbours) for j in out})
            require(
                len(arcs) > 0, f"size={size}: a single worker has nobody to meet; draw edges for 2 workers or more."
            )
            self._drawn["arcs", size] = np.array(arcs)
        found: np.ndarray = self._drawn["arcs", size]
        return found

    def _beside(self, size: int) -> list[list[int]]:
        """Return everybody's neighbours of any round, in either direction."""
        if ("beside", size) not in self._drawn:
            sets: list[set[int]] = [set() for _ in range(size)]
            for i, j in self._arcs(size).tolist() if size > 1 else ():
                sets[i].add(j)
                sets[j].add(i)
            self._drawn["beside", size] = [sorted(found) for found in sets]
        found: list[list[int]] = self._drawn["beside", size]
        return found

    # Kept beside the fields, which alone decide on equality and spelling.
    @cached_property
    def _known(self) -> dict[int, list[Neighbours]]:
        return {}

    @cached_property
    def _matrices(self) -> dict[tuple[int, int], Tensor]:
        return {}

    @cached_property
    def _drawn(self) -> dict[tuple[str, int], Any]:
        return {}


def _mixing(neighbours: Neighbours, *, is_directed: bool) -> Tensor:
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
    """Complain unless news of every rank can come to every other, over the rounds together."""
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
            f"{type(topology).__name__} with size={size} is not {'strongly ' * topology.is_directed}connected: there is no path "
            f"{path.format(cut_off[0]) if cut_off else ''} ({len(cut_off)} of {size} ranks are cut off), so they would never agree; add edges.",
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
