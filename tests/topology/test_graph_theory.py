"""What is said of graphs against closed forms, and against meetings carried out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as draw

from tacit import Complete, ExponentialGraph, Graph, Hypercube, OnePeer, RandomRegular, Ring, Star, Topology, Torus
from tacit.theory import GraphTheory
from tests.topology.drawn_graphs import graphs, undirected

Drawn = tuple[Topology, int]
close = pytest.approx


def gamma(x: np.ndarray) -> float:
    """Return Γ = Σ (x_i − x̄)²."""
    return float(((x - x.mean()) ** 2).sum())


def expected_gamma(topology: Topology, size: int, x: np.ndarray) -> float:
    """Return E Γ after one meeting, over all edges that ``draw_edge`` chooses among, each as likely."""
    rounds = [topology.neighbours(size, t) for t in range(topology.cycle(size))]
    after = []
    for i, j in sorted({(i, j) for neighbours in rounds for i, out in enumerate(neighbours) for j in out}):
        met = x.copy()
        met[i] = met[j] = (x[i] + x[j]) / 2
        after.append(gamma(met))
    return float(np.mean(after))


def eigenvectors(topology: Topology, size: int) -> np.ndarray:
    """Return the eigenvectors of the Laplacian as columns, the slowest to agree after the constant one."""
    laplacian = np.zeros((size, size))
    for i, out in enumerate(topology.neighbours(size)):
        laplacian[i, i] = len(out)
        laplacian[i, list(out)] = -1
    return np.linalg.eigh(laplacian)[1]


@pytest.mark.parametrize("size", [2, 3, 4, 7, 16, 33])
def test_rings_against_closed_forms(size: int) -> None:
    ring = GraphTheory(Ring(), size)
    smallest = 2 - 2 * math.cos(2 * math.pi / size) if size > 2 else 2.0
    assert ring.algebraic_connectivity == close(smallest)
    assert ring.diameter == size // 2
    if size > 2:  # W = I − L/3, whose other eigenvalues are 1 − (2 − 2 cos 2πk/n)/3
        moduli = sorted(abs(1 - (2 - 2 * math.cos(2 * math.pi * k / size)) / 3) for k in range(size))
        assert ring.spectral_gap == close(1 - moduli[-2])


@pytest.mark.parametrize("size", [2, 3, 8, 21])
def test_complete_graphs_against_closed_forms(size: int) -> None:
    complete = GraphTheory(Complete(), size)
    assert (complete.degree, complete.diameter, complete.edges) == (size - 1, 1, size * (size - 1) // 2)
    assert complete.algebraic_connectivity == close(size)
    assert complete.spectral_gap == close(1.0)
    assert complete.swarm_factor == close((1 - 1 / size) ** 2)
    assert complete.contraction == close(1 - 1 / (size - 1), abs=1e-12)


@pytest.mark.parametrize("digits", [1, 2, 3, 5])
def test_hypercubes_against_closed_forms(digits: int) -> None:
    cube = GraphTheory(Hypercube(), 2**digits)
    assert (cube.degree, cube.diameter) == (digits, digits)
    assert cube.algebraic_connectivity == close(2.0)
    assert cube.spectral_gap == close(2 / (digits + 1) if digits > 1 else 1.0)
    assert cube.swarm_factor == close((digits / 2) ** 2)


def test_the_other_kinds_against_closed_forms() -> None:
    star = GraphTheory(Star(), 9)
    assert (star.algebraic_connectivity, star.degree, star.diameter) == (close(1.0), close(16 / 9), 2)
    assert not star.is_regular
    torus = GraphTheory(Torus(), 20)
    assert torus.algebraic_connectivity == close(2 - 2 * math.cos(2 * math.pi / 5))
    assert torus.diameter == 2 + 2
    assert GraphTheory(ExponentialGraph(), 16).spectral_gap == close(2 / 5)  # 2/(1 + log₂ n), Ying et al.
    path = GraphTheory(Graph([(0, 1), (1, 2), (2, 3)]), 4)
    assert path.algebraic_connectivity == close(2 - 2 * math.cos(math.pi / 4))


@pytest.mark.parametrize(("size", "rounds"), [(2, 1), (8, 3), (64, 6), (6, 3), (11, 4)])
def test_one_peer_informs_all_in_a_cycle_and_on_powers_of_two_wholly(size: int, rounds: int) -> None:
    one_peer = GraphTheory(OnePeer(), size)
    assert one_peer.diameter == rounds
    assert (one_peer.spectral_gap == 1.0) == (size.bit_count() == 1)
    root = [np.exp(2j * math.pi * k / size) for k in range(1, size)]  # W of round j has eigenvalues (1 + ω^(k 2^j))/2
    second = max(abs(np.prod([(1 + omega ** (2**j)) / 2 for j in range(rounds)])) for omega in root)
    assert one_peer.spectral_gap == close(1 - second ** (1 / rounds), abs=1e-2 if one_peer.spectral_gap == 1 else 1e-9)


@settings(deadline=None)
@given(graphs, draw.integers(0, 2**32 - 1))
def test_an_interaction_leaves_at_most_the_contraction_of_gamma(drawn: Drawn, seed: int) -> None:
    topology, size = drawn
    theory = GraphTheory(topology, size)
    x = np.random.default_rng(seed).standard_normal(size)
    assert expected_gamma(topology, size, x) <= theory.contraction * gamma(x) + 1e-12


@settings(deadline=None)
@given(undirected)
def test_the_contraction_is_met_by_the_slowest_start(drawn: Drawn) -> None:
    topology, size = drawn
    slowest = eigenvectors(topology, size)[:, 1]
    left = expected_gamma(topology, size, slowest) / gamma(slowest)
    assert left == close(GraphTheory(topology, size).contraction, abs=1e-12)


@settings(deadline=None)
@given(draw.integers(2, 20), draw.integers(0, 2**32 - 1))
def test_on_the_complete_graph_gamma_shrinks_by_the_same_from_any_start(size: int, seed: int) -> None:
    """algorithms.md §2.8(1): E Γ' = (1 − 1/(n−1)) Γ exactly."""
    x = np.random.default_rng(seed).standard_normal(size)
    assert expected_gamma(Complete(), size, x) == close((1 - 1 / (size - 1)) * gamma(x), abs=1e-12)


def test_drawn_meetings_take_the_expected_time_to_consensus() -> None:
    """Mean over 400 trials of ln(Γ₀/Γ) along drawn edges: expectations shrink at least as fast as the theory says."""
    theory, trials = GraphTheory(Complete(), 16), 400
    random = np.random.default_rng(0)
    x = random.standard_normal((trials, 16))
    before = ((x - x.mean(1, keepdims=True)) ** 2).sum()
    for trial in range(trials):
        for _ in range(round(theory.consensus_interactions)):
            i, j = Complete().draw_edge(16, random)
            x[trial, i] = x[trial, j] = (x[trial, i] + x[trial, j]) / 2
    after = ((x - x.mean(1, keepdims=True)) ** 2).sum()
    assert after / before == close(theory.contraction ** round(theory.consensus_interactions), rel=0.05)
    assert theory.consensus_time == close(theory.consensus_interactions / 16)


def expected_after_a_round(topology: Topology, x: np.ndarray, overlapping: float, crossing: float) -> float:
    """Return E Γ after all ranks have asked a neighbour at once: over all choices of neighbours and all orders of
    arrival.
    """
    size, after = len(x), []
    for partners in itertools.product(*topology.neighbours(size)):
        for order in itertools.permutations(range(size)):
            models, answers = x.copy(), np.zeros(size)
            for i in order:
                j = partners[i]
                weight = crossing if partners[j] == i else overlapping
                answers[i] = weight * (models[j] - x[i])
                models[j] -= answers[i]
            after.append(gamma(models + answers))
    return float(np.mean(after))


@pytest.mark.parametrize("topology", [Complete(), Star(), Ring()], ids=str)
@pytest.mark.parametrize("weights", [(1 / 3, 1 / 4), (1 / 2, 1 / 2)], ids=str)
def test_simultaneous_exchanges_leave_what_an_enumeration_finds(
    topology: Topology, weights: tuple[float, float]
) -> None:
    theory = GraphTheory(topology, 4)
    exact = max(
        expected_after_a_round(topology, start, *weights)
        for start in eigenvectors(topology, 4).T[[1, 3]]  # of unit length: Γ = 1
    )
    measured = theory.simultaneous_contraction(
        overlapping_weight=weights[0], crossing_weight=weights[1], rounds=20_000, seed=3
    )
    assert measured == close(exact, abs=0.01)
    assert theory.simultaneous_contraction(seed=1) == theory.simultaneous_contraction(seed=1)


def test_exchanges_that_overlap_are_nearly_as_good_as_one_after_another() -> None:
    for topology, worse in ((Complete(), 1.06), (Hypercube(), 1.0), (Ring(), 1.0)):
        theory = GraphTheory(topology, 16)
        assert theory.simultaneous_contraction(rounds=20_000) < worse * theory.contraction**16
    halves = {"overlapping_weight": 1 / 2, "crossing_weight": 1 / 2}
    assert (
        GraphTheory(Complete(), 16).simultaneous_contraction(**halves)
        > 1.4 * GraphTheory(Complete(), 16).contraction ** 16
    )
    two = GraphTheory(Complete(), 2)
    assert (two.simultaneous_contraction(), two.simultaneous_contraction(**halves)) == (
        close(0.0, abs=1e-12),
        close(1.0),
    )


@settings(deadline=None)
@given(undirected, draw.integers(0, 2**32 - 1))
def test_a_round_with_all_neighbours_takes_off_the_spectral_gap(drawn: Drawn, seed: int) -> None:
    topology, size = drawn
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal(size))
    left = float((topology.mixing(size) @ x - x.mean()).norm() / (x - x.mean()).norm())
    assert left <= 1 - GraphTheory(topology, size).spectral_gap + 1e-9


def test_the_hub_of_a_star_takes_part_in_every_meeting() -> None:
    star, ring = GraphTheory(Star(), 12), GraphTheory(Ring(), 12)
    assert star.busiest_meetings == close(star.consensus_interactions)
    assert ring.busiest_meetings == close(2 * ring.consensus_time)


def test_two_ranks_agree_in_one_meeting() -> None:
    for topology in (Complete(), Ring(), Hypercube(), OnePeer(), Star()):
        theory = GraphTheory(topology, 2)
        assert (theory.contraction, theory.consensus_interactions) == (close(0.0, abs=1e-12), 1.0)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="size=1 must be at least 2"):
        GraphTheory(Ring(), 1)
    with pytest.raises(ValueError, match=r"must be a topology, such as Ring\(\)"):
        GraphTheory("Ring()", 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"crossing_weight=0.6 must be above 0 and at most 1/2"):
        GraphTheory(Ring(), 4).simultaneous_contraction(crossing_weight=0.6)
    with pytest.raises(ValueError, match="rounds=0 must be a whole number, at least 1"):
        GraphTheory(Ring(), 4).simultaneous_contraction(rounds=0)
    with pytest.raises(ValueError, match="size=6, degree=6"):
        GraphTheory(RandomRegular(degree=6), 6)
