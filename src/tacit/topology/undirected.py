"""Undirected graphs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.errors import require
from tacit.topology.topology import Topology


@dataclass(frozen=True)
class Complete(Topology):
    """Complete graph: every rank is a neighbour of every other."""

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        return [[j for j in range(size) if j != i] for i in range(size)]

    # Computed without the list of all edges, which has a million entries for a thousand ranks.
    def draw_edge(self, size: int, random: np.random.Generator) -> tuple[int, int]:
        require(size >= 2, f"size={size} must be at least 2 to draw an edge.")
        source, step = int(random.integers(size)), 1 + int(random.integers(size - 1))
        return source, (source + step) % size

    def draw_matching(self, size: int, random: np.random.Generator) -> tuple[int | None, ...]:
        """Return each rank's partner in a uniformly random pairing; if ``size`` is odd, one rank has None."""
        partner: list[int | None] = [None] * size
        order = random.permutation(size).tolist()
        for one, other in zip(order[::2], order[1::2], strict=False):
            partner[one], partner[other] = other, one
        return tuple(partner)


@dataclass(frozen=True)
class Ring(Topology):
    """Ring: the neighbours of rank i are i − 1 and i + 1 (mod n)."""

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        return [{(i - 1) % size, (i + 1) % size} for i in range(size)]


@dataclass(frozen=True, kw_only=True)
class Torus(Topology):
    """Torus: a grid of rows × columns whose opposite borders are joined; each rank has the four neighbours around it.

    By default rows and columns are as close to each other as the size permits: 12 ranks are 3 × 4. The rank at (row,
    column) is row · columns + column.
    """

    rows: int | None = None
    columns: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("rows", self.rows), ("columns", self.columns)):
            require(
                value is None or (isinstance(value, int) and value >= 2),
                f"{name}={value} must be a whole number, at least 2; a torus of one row is Ring().",
            )

    def shape(self, size: int) -> tuple[int, int]:
        """Return (rows, columns) for ``size`` ranks."""
        if self.rows is not None:
            rows, columns = self.rows, self.columns or size // self.rows
        elif self.columns is not None:
            rows, columns = size // self.columns, self.columns
        else:
            rows = _divisor_nearest_to_the_root(size)
            columns = size // rows
        require(
            rows * columns == size,
            f"size={size}: {self} does not hold {size} ranks; omit rows and columns to derive them from the size.",
        )
        require(
            min(rows, columns) >= 2,
            f"size={size}: a torus needs at least two rows of two ranks; use Ring() for {size} ranks.",
        )
        return rows, columns

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        rows, columns = self.shape(size)
        around = ((-1, 0), (1, 0), (0, -1), (0, 1))
        return [
            {(i // columns + down) % rows * columns + (i % columns + right) % columns for down, right in around}
            for i in range(size)
        ]


@dataclass(frozen=True)
class Hypercube(Topology):
    """Hypercube: neighbours are ranks whose numbers differ in one binary digit; log₂ n neighbours each."""

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        require(
            size & (size - 1) == 0,
            f"size={size} must be a power of two for a hypercube; use {1 << (size.bit_length() - 1)} ranks, Ring() or "
            f"ExponentialGraph().",
        )
        return [[i ^ (1 << digit) for digit in range(size.bit_length() - 1)] for i in range(size)]


@dataclass(frozen=True)
class Star(Topology):
    """Star: rank 0 is the only neighbour of all other ranks."""

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        return [range(1, size), *([0] for _ in range(1, size))]


@dataclass(frozen=True, kw_only=True)
class RandomRegular(Topology):
    """Random connected graph in which every rank has ``degree`` neighbours; equal ``seed``, equal graph."""

    degree: int  # larger = information spreads in fewer rounds
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (("degree", self.degree, 1), ("seed", self.seed, 0)):
            whole = isinstance(value, int) and not isinstance(value, bool)
            require(whole and value >= least, f"{name}={value} must be a whole number, at least {least}.")

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        import networkx  # takes 0.2 s, and few runs need it

        degree, name = self.degree, f"size={size}, degree={self.degree}"
        require(degree < size, f"{name}: degree must be below size; lower degree or use Complete().")
        require(size * degree % 2 == 0, f"{name}: size or degree must be even, since every edge has two ends.")
        require(degree > 1 or size == 2, f"{name}: the graph would be disconnected pairs; use degree=2 or more.")
        random = np.random.default_rng(self.seed)
        while True:  # from degree=3 on nearly all graphs are connected; of 2-regular graphs about 2/√size
            graph = networkx.random_regular_graph(degree, size, seed=random)
            if networkx.is_connected(graph):
                return [list(graph.adj[i]) for i in range(size)]


def _divisor_nearest_to_the_root(size: int) -> int:
    return next(rows for rows in range(math.isqrt(size), 0, -1) if size % rows == 0)
