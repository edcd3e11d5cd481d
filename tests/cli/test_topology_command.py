"""``tacit topology``: properties of graphs as a table, as JSON, and drawn on a self-contained page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tacit import Hypercube, Ring
from tacit.theory import GraphTheory
from tests.cli.command_line import Command


def test_several_topologies_stand_side_by_side(tacit: Command) -> None:
    answer = tacit("topology", "Ring()", "hypercube", "Star", "--workers", "16")
    assert answer.exit_code == 0
    assert "16 workers" in answer.output
    rows = {line.split()[0]: line.split()[1:] for line in answer.output.splitlines() if "()" in line}
    assert rows["Ring()"] == ["2", "8", "0.0507", "0.152", "173", "210", "13.1", "26.2"]
    assert rows["Hypercube()"] == ["4", "4", "0.4", "2.00", "4.00", "31.5", "1.97", "3.94"]
    assert rows["Star()"][:3] == ["1–15,", "mean", "1.88"]
    assert "r²/λ₂²: SwarmSGD's bounds grow with this plus 1" in answer.output


def test_nothing_named_shows_every_kind_that_fits(tacit: Command) -> None:
    shown = tacit("topology", "--workers", "6").output
    for name in ("Complete()", "OnePeer()", "RandomRegular(degree=4)", "Torus()", "Star()"):
        assert f" {name} " in shown
    assert "Hypercube() is not shown: size=6 must be a power of two for a hypercube" in shown


def test_json_holds_the_numbers_of_the_theory(tacit: Command) -> None:
    assert tacit("topology", "Ring", "Hypercube", "--workers", "8", "--json", "numbers.json", "-q").output == ""
    written = json.loads(Path("numbers.json").read_text())
    assert written["topologies"] == [GraphTheory(topology, 8).as_json() for topology in (Ring(), Hypercube())]
    assert written["topologies"][0]["swarm_factor"] == pytest.approx(11.656854)
    assert sorted(path.name for path in Path().iterdir()) == ["numbers.json"]


def test_a_file_of_edges_says_how_many_workers_there_are(tacit: Command) -> None:
    Path("edges.txt").write_text("0 1\n1 2\n2 3\n3 4\n")
    answer = tacit("topology", 'Graph("edges.txt")', "Ring")
    assert answer.exit_code == 0
    assert "5 workers" in answer.output
    assert 'Graph("edges.txt")' in answer.output


def test_the_page_draws_every_graph_and_loads_nothing(tacit: Command) -> None:
    answer = tacit("topology", "Torus()", "OnePeer()", "--workers", "12", "--out", "drawn")
    assert answer.exit_code == 0
    assert "Report: drawn/report.html" in answer.output
    page = Path("drawn/report.html").read_text()
    assert page.count('data-figure="graph-') == 2
    assert "One colour for each of 4 rounds, which then repeat." in page
    assert "Dotted edges continue at the opposite border." in page
    head = page.partition("<script>")[0]
    assert "http" not in head.replace("http-equiv", "")
    again = tacit("topology", "Ring", "--out", "drawn")
    assert (again.exit_code, "choose another --out, or replace its results with --force" in again.errors) == (2, True)
    assert tacit("topology", "Ring", "--out", "drawn", "--force", "-q").exit_code == 0
    assert "Torus()" not in Path("drawn/report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Rign",), "unknown topology 'Rign'; did you mean 'Ring'?"),
        (("LocalSGD",), "LocalSGD is one of the strategies, not of the topologies; those are Complete"),
        (
            ("Hypercube()", "--workers", "6"),
            "size=6 must be a power of two for a hypercube; use 4 ranks, Ring() or ExponentialGraph()",
        ),
        (("RandomRegular",), "RandomRegular needs degree; its arguments are degree (required), seed=0."),
        (("Ring(4)",), "Ring takes no argument without its name"),
        (("Ring", "--workers", "1"), "workers=1 must be at least 2; a graph has edges between workers."),
        (("Graph([(0, 1), (2, 3)])",), "is not connected: there is no path from rank 0 to rank 2"),
        (('Graph("absent.txt")',), "the file of edges absent.txt cannot be read: No such file or directory"),
        (("Graph([(0, 1), (1, 2)])", "--workers", "4"), "size=4: the graph has 3 ranks; use it with 3 workers."),
        (("Ring", "--json", "absent/numbers.json"), "the folder absent is not writable"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_said_with_the_way_out(tacit: Command, arguments: tuple[str, ...], message: str) -> None:
    answer = tacit("topology", *arguments)
    assert answer.exit_code == 2
    assert message in answer.errors
    assert answer.output == ""


def test_the_name_of_a_file_alone_is_answered_with_the_notation(tacit: Command) -> None:
    Path("edges.txt").write_text("0 1\n")
    assert (
        'edges.txt must be a topology, and it is a file; write Graph("edges.txt") to read its edges.'
        in tacit("topology", "edges.txt").errors
    )
