"""Laws of topologies: connected, mixing without losing the mean, and meetings drawn along edges alone."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as draw

from tacit import Complete, ExponentialGraph, Hypercube, OnePeer, RandomRegular, Ring, Star, Topology, Torus
from tests.topology.drawn_graphs import directed, graphs, undirected

Drawn = tuple[Topology, int]


def arcs(topology: Topology, size: int) -> set[tuple[int, int]]:
    """Return (source, target) of every edge of every round."""
    rounds = [topology.neighbours(size, t) for t in range(topology.cycle(size))]
    return {(i, j) for neighbours in rounds for i, out in enumerate(neighbours) for j in out}


@settings(deadline=None)
@given(graphs)
def test_neighbours_are_ascending_others(drawn: Drawn) -> None:
    topology, size = drawn
    for t in range(topology.cycle(size)):
        neighbours = topology.neighbours(size, t)
        assert len(neighbours) == size
        for rank, out in enumerate(neighbours):
            assert list(out) == sorted(set(out) - {rank})
            assert set(out) <= set(range(size))


@settings(deadline=None)
@given(undirected)
def test_undirected_edges_carry_both_ways(drawn: Drawn) -> None:
    topology, size = drawn
    assert not topology.is_directed
    assert all((j, i) in arcs(topology, size) for i, j in arcs(topology, size))


@settings(deadline=None)
@given(undirected)
def test_metropolis_weights_are_symmetric_and_doubly_stochastic(drawn: Drawn) -> None:
    topology, size = drawn
    weights = topology.mixing(size)
    assert weights.dtype == torch.float64
    assert torch.equal(weights, weights.T)
    assert (weights >= -1e-15).all()
    torch.testing.assert_close(weights.sum(1), torch.ones(size, dtype=torch.float64))
    degrees = [len(out) for out in topology.neighbours(size)]
    assert all(weights[i, j] == 1 / (1 + max(degrees[i], degrees[j])) for i, j in arcs(topology, size))


@settings(deadline=None)
@given(directed)
def test_push_sum_weights_share_a_column_among_a_rank_and_those_it_sends_to(drawn: Drawn) -> None:
    topology, size = drawn
    assert topology.is_directed
    for t in range(topology.cycle(size)):
        weights = topology.mixing(size, t)
        torch.testing.assert_close(weights.sum(0), torch.ones(size, dtype=torch.float64))
        for rank, out in enumerate(topology.neighbours(size, t)):
            held = weights[:, rank].nonzero().flatten().tolist()
            assert held == sorted([rank, *out])
            torch.testing.assert_close(weights[held, rank], torch.full_like(weights[held, rank], 1 / (1 + len(out))))


@settings(deadline=None)
@given(graphs)
def test_repeated_mixing_brings_everybody_to_agreement(drawn: Drawn) -> None:
    """Push-sum divides by the weights that travel along; on undirected graphs they stay 1."""
    topology, size = drawn
    x, weight = torch.arange(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64)
    cycle = topology.cycle(size)
    over_a_cycle = torch.linalg.multi_dot([topology.mixing(size, t) for t in reversed(range(cycle))] * 2)
    many = torch.linalg.matrix_power(over_a_cycle, 4096)
    torch.testing.assert_close((many @ x) / (many @ weight), torch.full_like(x, (size - 1) / 2), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("digits", range(1, 7))
def test_one_peer_averages_exactly_in_log2_rounds(digits: int) -> None:
    size = 2**digits
    assert OnePeer().cycle(size) == digits
    x = torch.randn(size, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mixed = x
    for t in range(digits):
        assert all(len(out) == 1 for out in OnePeer().neighbours(size, t))
        mixed = OnePeer().mixing(size, t) @ mixed
    torch.testing.assert_close(mixed, x.mean(0).expand_as(x))


@settings(deadline=None)
@given(draw.integers(2, 70), draw.integers(0, 200))
def test_one_peer_goes_through_the_exponential_graph_round_by_round(size: int, t: int) -> None:
    assert arcs(OnePeer(), size) == arcs(ExponentialGraph(), size)
    hop = 2 ** (t % OnePeer().cycle(size))
    assert hop < size
    assert OnePeer().neighbours(size, t) == tuple(((rank + hop) % size,) for rank in range(size))


@settings(deadline=None)
@given(graphs, draw.integers(0, 2**32 - 1))
def test_a_matching_pairs_neighbours_and_leaves_no_edge_between_two_without_partner(drawn: Drawn, seed: int) -> None:
    topology, size = drawn
    partners = topology.draw_matching(size, np.random.default_rng(seed))
    assert len(partners) == size
    edges = arcs(topology, size)
    for rank, partner in enumerate(partners):
        if partner is not None:
            assert partners[partner] == rank
            assert (rank, partner) in edges or (partner, rank) in edges
    assert not any(partners[i] is None and partners[j] is None for i, j in edges)


@settings(deadline=None)
@given(draw.integers(1, 60), draw.integers(0, 2**32 - 1))
def test_on_the_complete_graph_a_matching_is_perfect_but_for_an_odd_one(size: int, seed: int) -> None:
    partners = Complete().draw_matching(size, np.random.default_rng(seed))
    assert sum(partner is None for partner in partners) == size % 2


DRAWN_FROM: list[Drawn] = [
    (Complete(), 5),
    (Ring(), 6),
    (Star(), 5),
    (Torus(), 6),
    (Hypercube(), 8),
    (RandomRegular(degree=3), 8),
    (ExponentialGraph(), 6),
    (OnePeer(), 8),
]


@pytest.mark.parametrize(("topology", "size"), DRAWN_FROM, ids=str)
def test_every_edge_is_drawn_equally_often(topology: Topology, size: int) -> None:
    random, draws = np.random.default_rng(0), 6000
    counted = Counter(topology.draw_edge(size, random) for _ in range(draws))
    edges = arcs(topology, size)
    assert set(counted) == edges
    mean = draws / len(edges)
    assert sum((count - mean) ** 2 / mean for count in counted.values()) < len(edges) + 5 * (2 * len(edges)) ** 0.5


@pytest.mark.parametrize(("topology", "size"), DRAWN_FROM, ids=str)
def test_every_edge_occurs_in_some_matching(topology: Topology, size: int) -> None:
    random = np.random.default_rng(0)
    met = {
        frozenset((rank, partner))
        for _ in range(400)
        for rank, partner in enumerate(topology.draw_matching(size, random))
        if partner is not None
    }
    assert met == {frozenset(edge) for edge in arcs(topology, size)}


@pytest.mark.parametrize(("topology", "size"), [(Complete(), 6), (Ring(), 7), (Hypercube(), 8)], ids=str)
def test_where_edges_are_alike_all_meet_equally_often(topology: Topology, size: int) -> None:
    random, counted = np.random.default_rng(0), Counter[tuple[int, int]]()
    for _ in range(3000):
        partners = topology.draw_matching(size, random)
        counted.update((i, j) for i, j in enumerate(partners) if j is not None and i < j)
    mean = counted.total() / (len(arcs(topology, size)) / 2)
    assert all(abs(count - mean) < 5 * mean**0.5 for count in counted.values())


@settings(deadline=None)
@given(graphs, draw.integers(0, 2**32 - 1))
def test_equal_streams_draw_equal_meetings(drawn: Drawn, seed: int) -> None:
    topology, size = drawn
    one, other = np.random.default_rng(seed), np.random.default_rng(seed)
    for _ in range(3):
        assert topology.draw_matching(size, one) == topology.draw_matching(size, other)
        assert topology.draw_edge(size, one) == topology.draw_edge(size, other)


@pytest.mark.parametrize("topology", [*(topology for topology, _ in DRAWN_FROM), Torus(rows=2, columns=3)], ids=str)
def test_one_alone_has_nobody_to_speak_to(topology: Topology) -> None:
    assert topology.neighbours(1) == ((),)
    assert topology.mixing(1).tolist() == [[1.0]]
    assert topology.draw_matching(1, np.random.default_rng(0)) == (None,)
    with pytest.raises(ValueError, match="size=1 must be at least 2 to draw an edge"):
        topology.draw_edge(1, np.random.default_rng(0))


@settings(deadline=None)
@given(draw.integers(2, 6), draw.integers(4, 12), draw.integers(0, 20))
def test_random_regular_graphs_are_regular_connected_and_decided_by_their_seed(
    degree: int, half: int, seed: int
) -> None:
    size = 2 * half
    topology = RandomRegular(degree=degree, seed=seed)
    neighbours = topology.neighbours(size)
    assert {len(out) for out in neighbours} == {degree}
    assert RandomRegular(degree=degree, seed=seed).neighbours(size) == neighbours


def test_another_seed_is_another_graph() -> None:
    drawn = {RandomRegular(degree=3, seed=seed).neighbours(20) for seed in range(5)}
    assert len(drawn) == 5


@pytest.mark.parametrize(("size", "shape"), [(4, (2, 2)), (6, (2, 3)), (12, (3, 4)), (16, (4, 4)), (20, (4, 5))])
def test_a_torus_is_as_square_as_its_size_allows(size: int, shape: tuple[int, int]) -> None:
    assert Torus().shape(size) == shape
    assert Torus(rows=shape[0]).neighbours(size) == Torus(columns=shape[1]).neighbours(size) == Torus().neighbours(size)


def test_hypercube_neighbours_differ_in_one_digit() -> None:
    assert arcs(Hypercube(), 8) == {(i, j) for i, j in itertools.permutations(range(8), 2) if (i ^ j).bit_count() == 1}


@pytest.mark.parametrize(
    ("topology", "size", "message"),
    [
        (
            Hypercube(),
            6,
            r"size=6 must be a power of two for a hypercube; use 4 ranks, Ring\(\) or ExponentialGraph\(\)",
        ),
        (Torus(), 7, r"size=7: a torus needs at least two rows of two ranks; use Ring\(\)"),
        (Torus(rows=3), 8, r"size=8: Torus\(rows=3\) does not hold 8 ranks; omit rows and columns"),
        (Torus(columns=3), 8, r"size=8: Torus\(columns=3\) does not hold 8 ranks"),
        (Torus(rows=2, columns=3), 8, r"size=8: Torus\(rows=2, columns=3\) does not hold 8 ranks"),
        (RandomRegular(degree=8), 8, r"size=8, degree=8: degree must be below size; .* use Complete\(\)"),
        (RandomRegular(degree=3), 7, "size=7, degree=3: size or degree must be even"),
        (RandomRegular(degree=1), 4, "size=4, degree=1: the graph would be disconnected pairs; use degree=2"),
        (Ring(), 0, "size=0 must be a whole number, at least 1"),
        (Ring(), True, "size=True must be a whole number, at least 1"),
    ],
)
def test_a_size_that_does_not_fit_is_refused_with_the_way_out(topology: Topology, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        topology.neighbours(size)


def test_bad_arguments_are_refused_at_construction() -> None:
    with pytest.raises(ValueError, match=r"rows=1 must be a whole number, at least 2; a torus of one row is Ring\(\)"):
        Torus(rows=1)
    with pytest.raises(ValueError, match="degree=0 must be a whole number, at least 1"):
        RandomRegular(degree=0)
    with pytest.raises(ValueError, match="seed=-1 must be a whole number, at least 0"):
        RandomRegular(degree=2, seed=-1)
