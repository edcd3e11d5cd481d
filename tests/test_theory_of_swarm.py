"""SwarmSGD's bounds: interactions drawn one by one stay below them, and come near enough to show a wrong constant."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as draw

import tacit
from tacit import theory

GRAPHS = [
    theory.GraphTheory(tacit.Complete(), 8),
    theory.GraphTheory(tacit.Ring(), 8),
    theory.GraphTheory(tacit.Hypercube(), 8),
]


class Swarm:
    """Blocking SwarmSGD in one dimension on f_i(x) = √(1 + (x − b_i)²), ``runs`` at a time: |f_i'| < 1, L = 1."""

    def __init__(self, graph: theory.GraphTheory, b: np.ndarray, noise: float, runs: int, start: float = 0.0) -> None:
        near = graph.topology.neighbours(graph.size)
        self.edges = np.array([(i, j) for i in range(graph.size) for j in near[i] if i < j])
        self.b, self.noise, self.random = b, noise, np.random.default_rng(0)
        self.models = np.full((runs, graph.size), start)

    def loss(self, x: np.ndarray) -> np.ndarray:
        return np.sqrt(1 + (x[..., None] - self.b) ** 2).mean(-1)

    @property
    def square(self) -> float:
        """The mean of ‖∇f(μ)‖²."""
        apart = self.models.mean(1)[:, None] - self.b
        return float(((apart / np.sqrt(1 + apart**2)).mean(1) ** 2).mean())

    @property
    def spread(self) -> float:
        """The mean of Γ."""
        return float(((self.models - self.models.mean(1, keepdims=True)) ** 2).sum(1).mean())

    def interact(self, step_size: float, local_steps: int, geometric: bool = False) -> None:
        runs = np.arange(len(self.models))
        pair = self.edges[self.random.integers(0, len(self.edges), len(runs))]
        moved = np.take_along_axis(self.models, pair, 1)
        counts = self.random.geometric(1 / local_steps, pair.shape) if geometric else np.full(pair.shape, local_steps)
        for step in range(int(counts.max())):
            apart = moved - self.b[pair]
            drawn = apart / np.sqrt(1 + apart**2) + self.noise * self.random.choice([-1.0, 1.0], pair.shape)
            moved -= np.where(step < counts, step_size * drawn, 0.0)
        self.models[runs[:, None], pair] = moved.mean(1, keepdims=True)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: str(graph.topology))
@pytest.mark.parametrize(
    ("step_size", "local_steps", "geometric"), [(0.05, 1, False), (0.05, 4, False), (0.3, 3, True)]
)
def test_no_swarm_violates_the_bounds(graph: theory.GraphTheory, step_size: float, local_steps: int, geometric: bool):
    """Nodes with minima of their own and noisy gradients, E‖g̃‖² < 1 + 0.5²; means over 100 runs."""
    b = np.linspace(-3, 3, graph.size)
    swarm = Swarm(graph, b, noise=0.5, runs=100, start=4.0)
    gap = float(swarm.loss(np.array([4.0]))[0] - swarm.loss(np.linspace(-3, 3, 6001)).min())
    options = {"graph": graph, "local_steps": local_steps, "step_size": step_size, "geometric": geometric}
    most, squares = theory.swarm_consensus_bound(second_moment=1.25, **options), []
    for interaction in range(1, 401):
        squares.append(swarm.square)
        swarm.interact(step_size, local_steps, geometric)
        assert swarm.spread <= most
        assert np.mean(squares) <= theory.swarm_gradient_bound(
            interactions=interaction, gap=gap, smoothness=1.0, second_moment=1.25, **options
        )


@pytest.mark.parametrize(("graph", "share"), [(GRAPHS[0], 10), (GRAPHS[1], 6)], ids=["complete", "ring"])
def test_nodes_that_pull_apart_come_near_the_bound_on_their_distance(graph: theory.GraphTheory, share: float):
    """Half of the nodes have gradient +1, the other half, on the ring its other half, −1: Γ is a good part of its
    bound.
    """
    b = np.where(np.arange(8) < 4, 1e6, -1e6)
    swarm, total = Swarm(graph, b, noise=0.0, runs=200), 0.0
    for interaction in range(1200):
        swarm.interact(0.1, 2)
        total += swarm.spread if interaction >= 600 else 0.0
    bound = theory.swarm_consensus_bound(graph=graph, local_steps=2, step_size=0.1, second_moment=1.0)
    assert bound / share < total / 600 <= bound


def test_a_long_way_comes_near_the_bound_on_the_gradient():
    """From far away to the minimum ‖∇f‖² is nearly 1 all the way, and the bound 2: the first term has the right size."""
    graph, start, step_size = theory.GraphTheory(tacit.Complete(), 8), 40.0, 0.02
    interactions = round(graph.size * start / (2 * step_size))
    swarm, squares = Swarm(graph, np.zeros(8), noise=0.0, runs=1, start=start), []
    for _ in range(interactions):
        squares.append(swarm.square)
        swarm.interact(step_size, 1)
    bound = theory.swarm_gradient_bound(
        interactions=interactions,
        graph=graph,
        local_steps=1,
        step_size=step_size,
        gap=start - 1,
        smoothness=1.0,
        second_moment=1.0,
    )
    assert 0.4 * bound < np.mean(squares) <= bound


def test_geometric_steps_have_the_moments_of_the_distribution():
    """The bounds are linear in E[H²], and the last term in E[(H−1)H(2H−1)]: compared with sums over the distribution of
    mean 3.
    """
    counts = np.arange(1, 400)
    law = (1 / 3) * (2 / 3) ** (counts - 1)
    square, within = law @ counts**2, law @ ((counts - 1) * counts * (2 * counts - 1)) / 18
    options = {"graph": GRAPHS[0], "local_steps": 3, "step_size": 0.1, "second_moment": 2.0}
    drawn, fixed = (theory.swarm_consensus_bound(geometric=each, **options) for each in (True, False))
    assert drawn / fixed == pytest.approx(square / 9)
    bound = theory.swarm_gradient_bound(interactions=10, gap=0.0, smoothness=0.5, geometric=True, **options)
    by_hand = 2 * 0.5 * 0.1 * square * 2 / (8 * 3) + 2 * 0.25 * (drawn / 8 + 0.01 * 2 * within)
    assert bound == pytest.approx(by_hand)


def test_the_bound_by_hand():
    """Complete graph of 8: r = 7, λ₂ = 8; H = 2, η = 0.1, L = 3, M² = 5."""
    options = {"graph": GRAPHS[0], "local_steps": 2, "step_size": 0.1, "second_moment": 5.0}
    ratio = 7 / 8
    spread = (4 * ratio + 16 * ratio**2) * 0.01 * 4 * 5
    assert theory.swarm_consensus_bound(**options) == pytest.approx(8 * spread)
    bound = theory.swarm_gradient_bound(interactions=100, gap=7.0, smoothness=3.0, **options)
    assert bound == pytest.approx(8 * 7 / (0.1 * 2 * 100) + 2 * 3 * 0.1 * 4 * 5 / 16 + 18 * (spread + 0.01 * 5 * 0.5))


@given(
    draw.sampled_from(GRAPHS),
    draw.floats(1.0, 50.0),
    draw.floats(0.0, 10.0),
    draw.floats(0.01, 10.0),
    draw.floats(0.0, 10.0),
    draw.integers(0, 10**9),
)
def test_the_derived_bound_implies_the_papers(
    graph: theory.GraphTheory, local_steps: float, gap: float, smoothness: float, second_moment: float, more: int
):
    """At η = n/√T and T ≥ n⁴; so the constants that we remember of the paper are not too small."""
    interactions = graph.size**4 + more
    step_size = theory.swarm_step_size(interactions=interactions, size=graph.size)
    options = {
        "interactions": interactions,
        "graph": graph,
        "local_steps": local_steps,
        "gap": gap,
        "smoothness": smoothness,
        "second_moment": second_moment,
    }
    derived = theory.swarm_gradient_bound(step_size=step_size, geometric=True, **options)
    assert derived <= theory.swarm_paper_bound(**options) * (1 + 1e-12)


def test_the_step_size_and_bound_of_the_paper():
    """§2.5: η = n/√T, T ≥ n⁴."""
    assert theory.swarm_step_size(interactions=4096, size=8) == pytest.approx(8 / 64)
    found = theory.swarm_paper_bound(
        interactions=10**6, graph=GRAPHS[0], local_steps=4, gap=2.0, smoothness=0.5, second_moment=3.0
    )
    assert found == pytest.approx((4 * 2 / 4 + 2304 * 16 * 1 * 3 * (49 / 64 + 1)) / 1000)
    assert theory.swarm_paper_bound(
        interactions=10**6, graph=GRAPHS[0], local_steps=4, gap=0.0, smoothness=2.0, second_moment=3.0
    ) == pytest.approx(4 * 2304 * 16 * 3 * (49 / 64 + 1) / 1000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"graph": theory.GraphTheory(tacit.Star(), 8)},
            "graph=Star.*: the bounds need an undirected graph whose nodes all have the same degree",
        ),
        ({"graph": theory.GraphTheory(tacit.ExponentialGraph(), 8)}, "the bounds need an undirected graph"),
        ({"graph": tacit.Ring()}, "must be a GraphTheory, such as GraphTheory"),
        ({"local_steps": 0}, "local_steps=0 must be at least 1"),
        ({"local_steps": 2.5}, "local_steps=2.5 must be at least 1, and a whole number unless geometric=True"),
        ({"local_steps": math.nan}, "local_steps=nan must be at least 1"),
        ({"step_size": 0.0}, "step_size=0 must be positive"),
        ({"second_moment": -1.0}, "second_moment=-1 must be finite and not negative"),
        ({"gap": -1.0}, "gap=-1 must be finite and not negative"),
        ({"smoothness": 0.0}, "smoothness=0 must be positive"),
        ({"interactions": 0}, "interactions=0 must be a whole number"),
    ],
)
def test_arguments_out_of_range_explain_themselves(arguments: dict, message: str):
    given = {
        "interactions": 9,
        "graph": GRAPHS[0],
        "local_steps": 2,
        "step_size": 0.1,
        "gap": 1.0,
        "smoothness": 1.0,
        "second_moment": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        theory.swarm_gradient_bound(**given | arguments)


def test_too_few_interactions_are_told():
    with pytest.raises(
        ValueError, match="interactions=4095 must be at least size⁴ = 4096, the condition of the theorem"
    ):
        theory.swarm_step_size(interactions=4095, size=8)
    with pytest.raises(ValueError, match="size=1 must be a whole number, at least 2"):
        theory.swarm_step_size(interactions=4095, size=1)
