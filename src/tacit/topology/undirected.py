"""Graphs whose edges carry both ways."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from tacit.errors import require
from tacit.topology.topology import Topology


@dataclass(frozen=True)
class Complete(Topology):
    """Everybody may speak to everybody."""

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        return [[j for j in range(size) if j != i] for i in range(size)]

    # Drawn by arithmetic: a list of a thousand ranks' million edges is not needed for it.
    def draw_edge(self, size: int, random: np.random.Generator) -> tuple[int, int]:
        require(size >= 2, f"size={size}: a single worker has nobody to meet; draw edges for 2 workers or more.")
        source, step = int(random.integers(size)), 1 + int(random.integers(size - 1))
        return source, (source + step) % size

    def draw_matching(self, size: int, random: np.random.Generator) -> tuple[int | None, ...]:
        """Return everybody's partner in a uniformly random pairing; with an odd ``size`` one rank has None."""
        partner: list[int | None] = [None] * size
        order = random.permutation(size).tolist()
        for one, other in zip(order[::2], order[1::2], strict=False):
            partner[one], partner[other] = other, one
        return tuple(partner)


@dataclass(frozen=True)
class Ring(Topology):
    """Each rank speaks to the one before and the one after it."""

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        return [{(i - 1) % size, (i + 1) % size} for i in range(size)]


@dataclass(frozen=True, kw_only=True)
class Torus(Topology):
    """A grid of rows × columns whose opposite borders are joined; each rank speaks to the four around it.

    Not given, the two are as near to each other as the size allows: 12 ranks are 3 × 4. Rank = row · columns + column.
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
            f"size={size}: {self} does not hold {size} ranks; leave rows and columns out to have them chosen from the size.",
        )
        require(
            min(rows, columns) >= 2,
            f"size={size}: a torus needs two rows of two ranks at least; use Ring() for {size}.",
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
    """Ranks whose numbers differ in one binary digit speak to each other: log₂ n neighbours each."""

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        require(
            size & (size - 1) == 0,
            f"size={size}: a hypercube needs a power of two; use Ring() or ExponentialGraph(), or {2 ** (size.bit_length() - 1)} ranks.",
        )
        return [[i ^ (1 << digit) for digit in range(size.bit_length() - 1)] for i in range(size)]


@dataclass(frozen=True)
class Star(Topology):
    """Rank 0 speaks to all others, and they to it alone."""

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        return [range(1, size), *([0] for _ in range(1, size))]


@dataclass(frozen=True, kw_only=True)
class RandomRegular(Topology):
    """A random connected graph in which everybody has ``degree`` neighbours; ``seed`` decides which, on all ranks
    alike.
    """

    degree: int  # larger = news spreads in fewer rounds
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (("degree", self.degree, 1), ("seed", self.seed, 0)):
            whole = isinstance(value, int) and not isinstance(value, bool)
            require(whole and value >= least, f"{name}={value} must be a whole number, at least {least}.")

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        import networkx  # takes 0.2 s, and few runs need it

        degree, name = self.degree, f"size={size}, degree={self.degree}"
        require(degree < size, f"{name}: nobody has more than {size - 1} neighbours; lower degree or use Complete().")
        require(size * degree % 2 == 0, f"{name}: size or degree must be even, since every edge has two ends.")
        require(degree > 1 or size == 2, f"{name}: pairs that never meet others cannot agree; use degree=2 or more.")
        random = np.random.default_rng(self.seed)
        while True:  # from degree=3 on nearly the first is connected; of 2-regular graphs about 2/√size
            graph = networkx.random_regular_graph(degree, size, seed=random)
            if networkx.is_connected(graph):
                return [list(graph.adj[i]) for i in range(size)]


def _divisor_nearest_to_the_root(size: int) -> int:
    return next(rows for rows in range(math.isqrt(size), 0, -1) if size % rows == 0)
