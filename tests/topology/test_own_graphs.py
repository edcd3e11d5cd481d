"""Graphs of one's own: from networkx, from edges, from a file; whatever is wrong with them is said."""

from __future__ import annotations

import dataclasses
import pickle
import re
from pathlib import Path

import networkx
import numpy as np
import pytest

import tacit
from tacit import BadData, Graph, Ring


def test_a_networkx_graph_whose_nodes_are_ranks_keeps_them() -> None:
    graph = networkx.Graph([(3, 1), (1, 0), (0, 2)])
    assert Graph(graph).neighbours(4) == ((1, 2), (0, 3), (0,), (1,))


def test_other_nodes_are_numbered_in_the_graphs_order() -> None:
    assert Graph(networkx.grid_2d_graph(2, 2)).neighbours(4) == ((1, 2), (0, 3), (0, 3), (1, 2))
    assert Graph(networkx.path_graph(["c", "a", "b"])).neighbours(3) == ((1,), (0, 2), (1,))


def test_a_digraph_is_directed_and_equal_edges_make_equal_graphs() -> None:
    cycle = Graph(networkx.DiGraph([(0, 1), (1, 2), (2, 0)]))
    assert cycle.is_directed
    assert cycle.neighbours(3) == ((1,), (2,), (0,))
    assert cycle == Graph([(2, 0), (0, 1), (1, 2)], directed=True)
    assert hash(cycle) == hash(Graph([(2, 0), (0, 1), (1, 2)], directed=True))
    assert Graph([(1, 0), (0, 1), (1, 2)]) == Graph([(0, 1), (2, 1)])


def test_a_file_holds_an_edge_a_line(tmp_path: Path) -> None:
    file = tmp_path / "edges.txt"
    file.write_text("# a square\n0 1\n\n1,2   # with a comment\n 2 , 3\n3\t0\n")
    assert Graph(str(file)).neighbours(4) == Ring().neighbours(4)
    assert Graph(file) == Graph(str(file))  # type: ignore[arg-type]
    assert str(Graph(str(file))) == f'Graph("{file}")'


def test_what_networkx_writes_is_read(tmp_path: Path) -> None:
    file = tmp_path / "petersen.txt"
    networkx.write_edgelist(networkx.petersen_graph(), file)
    assert Graph(str(file)).neighbours(10) == Graph(networkx.petersen_graph()).neighbours(10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n1 x\n", r"edges.txt, line 2: '1 x' is not an edge; write two ranks, such as 0 1"),
        ("0 1 2\n", "line 1: '0 1 2' is not an edge"),
        ("0 -1\n", "line 1: '0 -1' is not an edge"),
        ("0 1\n\n2 2\n", r"line 3: edge \(2, 2\) must be two different ranks"),
        ("# nothing\n", "edges.txt holds no edge; write two ranks per line"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "edges.txt").write_text(text)
    with pytest.raises(BadData, match=message):
        Graph(str(tmp_path / "edges.txt"))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        BadData, match=r"the file of edges .*absent.txt cannot be read: No such file or directory; give a"
    ):
        Graph(str(tmp_path / "absent.txt"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadData, match="it is not UTF-8 text"):
        Graph(str(tmp_path / "binary"))


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([], r"edges=\[\] is empty; a graph needs at least one edge"),
        (5, "edges=5 must be a networkx graph, a list of edges such as"),
        ([(0, 0)], r"edge \(0, 0\) must be two different ranks"),
        ([(0, -1)], r"edge \(0, -1\) must be two different ranks"),
        ([(0, 1.5)], r"edge \(0, 1.5\) must be two different ranks"),
        ([(0, 1, 2)], r"edge \(0, 1, 2\) must be two different ranks"),
        ([(0, 1), (2, 3)], "Graph with size=4 is not connected: there is no path from rank 0 to rank 2"),
        (networkx.empty_graph(3), "is empty; a graph needs at least one edge"),
        (networkx.Graph({0: [1], 2: []}), "1 of 3 nodes have no edge, first rank 2; add edges"),
    ],
)
def test_edges_that_make_no_connected_graph_are_refused(edges: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Graph(edges)  # type: ignore[arg-type]


def test_a_directed_graph_must_be_strongly_connected() -> None:
    with pytest.raises(ValueError, match="is not strongly connected: there is no path from rank 2 to rank 0"):
        Graph([(0, 1), (1, 0), (1, 2)], directed=True)
    with pytest.raises(ValueError, match="is not strongly connected: there is no path from rank 0 to rank 2"):
        Graph([(0, 1), (1, 0), (2, 1)], directed=True)


def test_a_graph_fits_its_own_size_alone() -> None:
    with pytest.raises(ValueError, match="size=4: the graph has 3 ranks; use it with 3 workers"):
        Graph([(0, 1), (1, 2)]).neighbours(4)


def test_a_topology_travels_between_processes() -> None:
    asked = Graph([(0, 1), (1, 2)])
    asked.mixing(3)
    assert pickle.loads(pickle.dumps(asked)) == asked


def test_results_that_a_topology_keeps_change_neither_equality_nor_notation() -> None:
    fresh, used = Graph([(0, 1), (1, 2)]), Graph([(0, 1), (1, 2)])
    used.mixing(3)
    used.draw_matching(3, np.random.default_rng(0))
    assert used == fresh and hash(used) == hash(fresh) and str(used) == str(fresh) and repr(used) == repr(fresh)
    assert set(vars(used)) == {field.name for field in dataclasses.fields(used)}


def test_networkx_is_loaded_only_where_it_is_needed() -> None:
    """It takes 0.2 s, and only random regular graphs and drawings need it."""
    source = Path(tacit.__file__).parent
    files = [
        path.relative_to(source).as_posix() for path in source.rglob("*.py") if "import networkx" in path.read_text()
    ]
    assert sorted(files) == ["report/graph.py", "topology/undirected.py"]
    assert not any(re.search(r"^(import|from) networkx", (source / file).read_text(), re.MULTILINE) for file in files)
