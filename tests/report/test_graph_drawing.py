"""Topologies drawn: every rank and edge once, and found again from what a run says of its strategy."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from tacit import Complete, ExponentialGraph, Graph, Hypercube, OnePeer, RandomRegular, Ring, Star, Topology, Torus
from tacit.report import Comparison, Entry, render
from tacit.report.graph import MOST_EDGES, graph_figure, short_name, topology_of
from tests.report.synthetic_runs import local_run

LOLLIPOP = Graph([(0, 1), (1, 2), (2, 0), (2, 3), (3, 4)])


def places(figure: dict[str, Any]) -> list[tuple[float, float]]:
    ranks = figure["data"][-1]
    return list(zip(ranks["x"], ranks["y"], strict=True))


def lines(figure: dict[str, Any]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Return the ends of every drawn line."""
    traces = [trace for trace in figure["data"] if trace["mode"] == "lines"]
    points = [(x, y) for trace in traces for x, y in zip(trace["x"], trace["y"], strict=True)]
    return list(zip(points[::3], points[1::3], strict=True))


@pytest.mark.parametrize(
    ("topology", "size"),
    [
        (Complete(), 7),
        (Ring(), 9),
        (Star(), 6),
        (Hypercube(), 32),
        (RandomRegular(degree=3), 12),
        (LOLLIPOP, 5),
        (RandomRegular(degree=4), 70),
        (Torus(rows=2, columns=2), 4),
        (ExponentialGraph(), 8),
        (OnePeer(), 8),
        (Ring(), 2),
    ],
    ids=str,
)
def test_every_edge_is_drawn_between_its_ranks(topology: Topology, size: int) -> None:
    figure = graph_figure(topology, size)
    at = places(figure)
    rounds = [topology.neighbours(size, t) for t in range(topology.cycle(size))]
    edges = [(i, j) for neighbours in rounds for i, out in enumerate(neighbours) for j in out]
    wanted = [(at[i], at[j]) for i, j in edges if topology.is_directed or i < j]
    assert sorted(lines(figure)) == sorted(wanted)


@pytest.mark.parametrize(
    ("topology", "size"), [(Hypercube(), 2**n) for n in range(1, 9)] + [(Star(), 50), (Torus(), 12)]
)
def test_no_two_ranks_share_a_place(topology: Topology, size: int) -> None:
    at = places(graph_figure(topology, size))
    extent = max(x for x, _ in at) - min(x for x, _ in at)
    assert min(max(abs(a - c), abs(b - d)) for (a, b), (c, d) in itertools.combinations(at, 2)) > extent / 500


def test_edges_round_a_torus_leave_across_the_border() -> None:
    figure = graph_figure(Torus(rows=3, columns=4), 12)
    dotted = [trace for trace in figure["data"] if trace.get("line", {}).get("dash") == "dot"]
    assert len(dotted) == 1
    assert len(dotted[0]["x"]) == 3 * 2 * (3 + 4)  # two stubs for each row and each column


def test_arrows_show_which_way_an_edge_carries() -> None:
    drawn = {name: graph_figure(kind, 8)["data"] for name, kind in (("one way", ExponentialGraph()), ("both", Ring()))}
    arrows = [trace for trace in drawn["one way"] if trace["mode"] == "markers"]
    assert [len(trace["x"]) for trace in arrows] == [8 * 3]
    at = places({"data": drawn["one way"]})
    targets = [at[j] for out in ExponentialGraph().neighbours(8) for j in out]
    for x, y, angle, (there_x, there_y) in zip(
        *(arrows[0][k] for k in "xy"), arrows[0]["marker"]["angle"], targets, strict=True
    ):
        way = math.hypot(there_x - x, there_y - y)
        turned = (
            x + way * math.sin(math.radians(angle)),
            y + way * math.cos(math.radians(angle)),
        )  # clockwise from the top
        assert turned == pytest.approx((there_x, there_y), abs=1e-3)
    assert not [trace for trace in drawn["both"] if trace["mode"] == "markers"]


def test_a_page_stays_small_however_many_edges_there_are() -> None:
    figure = graph_figure(Complete(), 150)
    assert 1000 < len(lines(figure)) <= MOST_EDGES
    assert len(places(figure)) == 150


@pytest.mark.parametrize(
    ("strategy", "topology"),
    [
        ("Gossip(local_steps=4, topology=Ring())", Ring()),
        ("Gossip(topology=Torus(rows=2), compressor=Lattice(bits=8))", Torus(rows=2)),
        ("Gossip(topology=Graph(((0, 1), (1, 0)), directed=True))", Graph([(0, 1), (1, 0)], directed=True)),
        ("Gossip(topology=RandomRegular(degree=4, seed=2))", RandomRegular(degree=4, seed=2)),
        ('Gossip(topology=Graph("absent.txt"))', None),
        ("Gossip(topology=<mine>)", None),
        ("Gossip(topology=Ring(__import__('os')))", None),
        ("Gossip(topology=Nothing())", None),
        ("LocalSGD(period=Every(8))", None),
        ("my own strategy", None),
        ("", None),
        ("no_such_module:Own(topology=Ring())", Ring()),
        ("Gossip(topology=no_such_module:Own())", None),
        ("Gossip(topology=Graph(edges=Ring()))", None),
    ],
)
def test_a_runs_strategy_tells_its_topology(strategy: str, topology: Topology | None) -> None:
    assert topology_of(strategy) == topology


def test_a_report_draws_each_topology_of_its_runs_once() -> None:
    spellings = {"slow": "Gossip(topology=Ring())", "fast": "Gossip(lr=2, topology=Ring())", "all": "AllReduce()"}
    entries = []
    for seed, (label, strategy) in enumerate(spellings.items()):
        run = local_run(steps=20, workers=6, seed=seed)
        run.strategy = strategy
        entries.append(Entry(label, [run]))
    page = render(Comparison(entries, "digits", "6 workers"))
    assert page.count('data-figure="graph-') == 1
    assert "Ring(), 6 workers" in page
    assert "slow; fast" in page
    assert "<h2>Topology</h2>" not in render(Comparison(entries[2:], "digits", "6 workers"))


def test_a_long_list_of_edges_is_named_by_its_length() -> None:
    assert short_name(LOLLIPOP) == "Graph(((0, 1), (0, 2), (1, 2), (2, 3), (3, 4)))"
    assert short_name(Graph([(i, i + 1) for i in range(40)])) == "Graph(… 40 edges)"
    assert short_name(Ring()) == "Ring()"
