"""Custom graphs: from networkx, from a list of edges, or from a file of edges."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from tacit.errors import BadData, require
from tacit.topology.topology import Topology

# Two ranks separated by blanks or a comma; networkx.write_edgelist appends the edge's attributes in braces.
# networkx.read_edgelist is not used: its errors name no line, and it accepts one kind of separator only.
_LINE: Final = re.compile(r"(\d+)(?:\s*,\s*|\s+)(\d+)(?:\s*\{.*\})?")


@runtime_checkable
class NetworkXGraph(Protocol):
    """The part of a ``networkx`` graph that is used; a protocol, so that networkx need not be imported."""

    @property
    def nodes(self) -> Any: ...
    @property
    def edges(self) -> Any: ...
    def is_directed(self) -> bool: ...


@dataclass(frozen=True)
class Graph(Topology):
    """Custom graph: a networkx graph, edges such as [(0, 1), (1, 2)], or the name of a text file with an edge per line.

    Ranks are 0 … n−1. If the nodes of a networkx graph are 0 … n−1, they are the ranks; otherwise they are numbered in
    the order of the graph. A DiGraph implies ``directed``. A line of a file holds two ranks separated by blanks or a
    comma; "#" starts a comment. Weights are ignored.
    """

    edges: Sequence[tuple[int, int]] | str | NetworkXGraph
    directed: bool = field(default=False, kw_only=True)
    _pairs: tuple[tuple[int, int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        given = os.fspath(self.edges) if isinstance(self.edges, os.PathLike) else self.edges
        if isinstance(given, NetworkXGraph):
            object.__setattr__(self, "directed", self.directed or given.is_directed())
            pairs = _from_networkx(given)
        else:
            pairs = _from_file(Path(given)) if isinstance(given, str) else _from_pairs(given)
        if not self.directed:
            pairs = [(min(pair), max(pair)) for pair in pairs]
        object.__setattr__(self, "_pairs", tuple(sorted(set(pairs))))
        object.__setattr__(self, "edges", given if isinstance(given, str) else self._pairs)
        self.neighbours(self.size)

    @property
    def is_directed(self) -> bool:
        return self.directed

    @property
    def size(self) -> int:
        """The number of ranks."""
        return 1 + max(max(pair) for pair in self._pairs)

    def targets(self, size: int, round: int) -> Sequence[Collection[int]]:
        require(size == self.size, f"size={size}: the graph has {self.size} ranks; use it with {self.size} workers.")
        reach: list[set[int]] = [set() for _ in range(size)]
        for i, j in self._pairs:
            reach[i].add(j)
            if not self.directed:
                reach[j].add(i)
        return reach


def _from_pairs(given: object) -> list[tuple[int, int]]:
    require(
        isinstance(given, Iterable) and not isinstance(given, bytes),
        f"edges={given!r} must be a networkx graph, a list of edges such as [(0, 1), (1, 2)] or the name of a file.",
    )
    pairs = [_pair(edge) for edge in given]  # type: ignore[attr-defined]  # just required
    require(len(pairs) > 0, "edges=[] is empty; a graph needs at least one edge.")
    return pairs


def _pair(edge: object) -> tuple[int, int]:
    match edge:
        case [int() as i, int() as j] if i >= 0 and j >= 0 and i != j:
            return int(i), int(j)
    raise ValueError(f"edge {edge!r} must be two different ranks, whole numbers from 0, such as (0, 1).")


def _from_networkx(graph: NetworkXGraph) -> list[tuple[int, int]]:
    nodes = list(graph.nodes)
    are_ranks = all(type(node) is int for node in nodes) and set(nodes) == set(range(len(nodes)))
    rank_of = {node: node if are_ranks else i for i, node in enumerate(nodes)}
    pairs = _from_pairs([(rank_of[edge[0]], rank_of[edge[1]]) for edge in graph.edges])
    isolated = set(range(len(nodes))) - {rank for pair in pairs for rank in pair}
    require(
        not isolated,
        f"{len(isolated)} of {len(nodes)} nodes have no edge, first rank {min(isolated, default=0)}; add edges.",
    )
    return pairs


def _from_file(path: Path) -> list[tuple[int, int]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadData(
            f"the file of edges {path} cannot be read: {reason}; give a text file with two ranks per line."
        ) from None
    pairs = []
    for number, line in enumerate(lines, 1):
        if not (text := line.partition("#")[0].strip()):
            continue
        if (found := _LINE.fullmatch(text)) is None:
            raise BadData(f"{path}, line {number}: {text[:40]!r} is not an edge; write two ranks, such as 0 1.")
        try:
            pairs.append(_pair((int(found[1]), int(found[2]))))
        except ValueError as error:
            raise BadData(f"{path}, line {number}: {error}") from None
    if not pairs:
        raise BadData(f"{path} holds no edge; write two ranks per line, such as 0 1.")
    return pairs
