"""Topologies and sizes that go together, drawn by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as draw

from tacit import Complete, ExponentialGraph, Graph, Hypercube, OnePeer, RandomRegular, Ring, Star, Topology, Torus

MOST = 24


@draw.composite
def own_graphs(draws: draw.DrawFn, *, directed: bool) -> tuple[Topology, int]:
    """Return a connected graph: everybody has an edge to an earlier rank (directed: a cycle), and some more."""
    size = draws(draw.integers(2, MOST))
    ranks = draw.integers(0, size - 1)
    if directed:
        edges = [(rank, (rank + 1) % size) for rank in range(size)]
    else:
        edges = [(rank, draws(draw.integers(0, rank - 1))) for rank in range(1, size)]
    more = draws(draw.lists(draw.tuples(ranks, ranks).filter(lambda edge: edge[0] != edge[1]), max_size=2 * size))
    return Graph(edges + more, directed=directed), size


def _with_sizes(topology: Topology, sizes: draw.SearchStrategy[int]) -> draw.SearchStrategy[tuple[Topology, int]]:
    return sizes.map(lambda size: (topology, size))


_sizes = draw.integers(2, MOST)
_regular = draw.builds(
    lambda degree, half, seed: (RandomRegular(degree=degree, seed=seed), 2 * half),
    draw.integers(2, 5),
    draw.integers(3, MOST // 2),
    draw.integers(0, 99),
)
_torus = draw.builds(lambda rows, columns: (Torus(rows=rows), rows * columns), draw.integers(2, 5), draw.integers(2, 5))

undirected = draw.one_of(
    *(_with_sizes(topology, _sizes) for topology in (Complete(), Ring(), Star())),
    _with_sizes(Torus(), draw.sampled_from([4, 6, 9, 12, 16, 20])),
    _with_sizes(Hypercube(), draw.sampled_from([2, 4, 8, 16])),
    _regular,
    _torus,
    own_graphs(directed=False),
)
directed = draw.one_of(
    _with_sizes(ExponentialGraph(), _sizes), _with_sizes(OnePeer(), _sizes), own_graphs(directed=True)
)
graphs = undirected | directed
