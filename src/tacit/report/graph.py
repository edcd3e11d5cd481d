"""Drawings of topologies for plotly.js, and the topologies of a comparison's runs."""

from __future__ import annotations

import dataclasses
import math
from typing import Final

import numpy as np
import plotly.graph_objects as go

from tacit import strategies, topology
from tacit.core.calls import Call
from tacit.report.comparison import Comparison
from tacit.report.figures import GREY, PALETTE, Figure, plain
from tacit.report.strategy_texts import call_in, made
from tacit.topology import Graph, Hypercube, Neighbours, RandomRegular, Star, Topology, Torus

MOST_EDGES: Final = 3000
"""Largest number of edges that are drawn; more would only make the page larger."""
HEIGHT: Final = 380
_EDGE_COLOUR: Final = "rgba(128,128,128,.55)"
_NODE_SIZES: Final = ((20, 22), (40, 17), (80, 12), (300, 7))  # up to so many ranks, so many pixels
_LABELLED: Final = 40
"""Largest number of ranks for which dots carry their rank."""


def topologies_of(comparison: Comparison) -> list[tuple[Topology, int, list[str]]]:
    """Return each topology of the runs once, with the number of workers and the labels of its strategies."""
    found: dict[tuple[Topology, int], list[str]] = {}
    for entry in comparison.entries:
        run = entry.runs[0]
        used = topology_of(run.strategy)
        if used is not None and run.workers >= 2 and _fits(used, run.workers):
            found.setdefault((used, run.workers), []).append(entry.label)
    return [(used, size, labels) for (used, size), labels in found.items()]


def topology_of(strategy: str) -> Topology | None:
    """Return the topology in a strategy's text, or the default of its class; None where tacit has no such class."""
    call = call_in(strategy)
    if call is None:
        return None
    given = dict(call.keywords).get("topology")
    if given is not None:
        return made(given, topology, Topology) if isinstance(given, Call) else None  # type: ignore[type-abstract]
    kind = getattr(strategies, call.name, None)
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    default = next((field.default for field in fields if field.name == "topology"), None)
    return default if isinstance(default, Topology) else None


def graph_figure(used: Topology, size: int) -> Figure:
    """Return the graph over ``size`` ranks, with arrows on directed edges and one colour per round if edges change."""
    places = _places(used, size)
    figure = go.Figure()
    rounds = used.cycle(size)
    for t in range(rounds):
        edges = _edges(used.neighbours(size, t), is_directed=used.is_directed)
        kept = edges[:: max(1, math.ceil(len(edges) * rounds / MOST_EDGES))]
        colour = _EDGE_COLOUR if rounds == 1 else PALETTE[t % len(PALETTE)]
        lines, stubs = _segments(used, places[kept])
        _add_lines(figure, lines, colour, "solid")
        _add_lines(figure, stubs, colour, "dot")
        if used.is_directed and size <= _LABELLED:
            _add_arrows(figure, places[kept], colour, size)
    _add_ranks(figure, places, [used.neighbours(size, t) for t in range(rounds)])
    figure.update_layout(height=HEIGHT, margin={"l": 8, "r": 8, "t": 8, "b": 8}, hovermode="closest")
    low, high = places.min(0), places.max(0)
    room = 0.12 * float((high - low).max()) + (0.45 if isinstance(used, Torus) else 0.0)
    hidden = {"visible": False, "fixedrange": True}
    figure.update_xaxes(range=[float(low[0]) - room, float(high[0]) + room], **hidden)
    figure.update_yaxes(range=[float(low[1]) - room, float(high[1]) + room], scaleanchor="x", **hidden)
    return plain(figure)


def short_name(used: Topology) -> str:
    """Return the text of the topology; a long list of edges is replaced by its length."""
    spelled = str(used)
    if isinstance(used, Graph) and isinstance(used.edges, tuple) and len(spelled) > 60:
        return f"Graph(… {len(used.edges)} edges)"
    return spelled


def remark(used: Topology, size: int) -> str:
    """Return what the drawing alone does not show."""
    rounds = used.cycle(size)
    count = sum(len(_edges(used.neighbours(size, t), is_directed=used.is_directed)) for t in range(rounds))
    notes = []
    if rounds > 1:
        notes.append(f"One colour for each of {rounds} rounds, which then repeat.")
    if isinstance(used, Torus):
        notes.append("Dotted edges continue at the opposite border.")
    if count > MOST_EDGES:
        notes.append(f"Only some of its {count:,} edges are drawn.")
    return " ".join(notes)


def _fits(used: Topology, size: int) -> bool:
    try:
        used.neighbours(size)
    except ValueError:
        return False
    return True


def _places(used: Topology, size: int) -> np.ndarray:
    """Return where each rank is drawn: [size, 2]."""
    match used:
        case Torus():
            _, columns = used.shape(size)
            return np.array([(rank % columns, -(rank // columns)) for rank in range(size)], dtype=float)
        case Hypercube():
            return _projected(size)
        case Star():
            return np.concatenate([np.zeros((1, 2)), _circle(size - 1)])
        case Graph() | RandomRegular():
            return _sprung(used.neighbours(size))
    return _circle(size)


def _circle(size: int) -> np.ndarray:
    """Return ``size`` places clockwise from the top."""
    angles = 2 * math.pi * np.arange(size) / max(size, 1)
    return np.stack([np.sin(angles), np.cos(angles)], 1)


def _projected(size: int) -> np.ndarray:
    """Return a projection of a hypercube's corners: each binary digit has its own direction."""
    digits = size.bit_length() - 1
    angles = math.pi * (np.arange(digits) + 0.18) / max(digits, 1)
    lengths = 1 + 0.35 * np.arange(digits)[::-1]  # unequal, or opposite corners would coincide
    directions = np.stack([np.cos(angles), np.sin(angles)], 1) * lengths[:, None]
    corners = (np.arange(size)[:, None] >> np.arange(digits)) & 1
    return np.asarray((corners - 0.5) @ directions)


def _sprung(neighbours: Neighbours) -> np.ndarray:
    """Return places at which edges are about equally long."""
    import networkx  # takes 0.2 s, and few pages need it

    graph = networkx.Graph([(i, j) for i, out in enumerate(neighbours) for j in out])
    is_small = len(neighbours) <= 64  # Kamada and Kawai's draws better, and takes n³
    found = networkx.kamada_kawai_layout(graph) if is_small else networkx.spring_layout(graph, seed=0)
    return np.array([found[rank] for rank in range(len(neighbours))])


def _edges(neighbours: Neighbours, *, is_directed: bool) -> np.ndarray:
    pairs = [(i, j) for i, out in enumerate(neighbours) for j in out if is_directed or i < j]
    return np.array(pairs, dtype=int).reshape(-1, 2)


def _segments(used: Topology, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges as lines [edges, 2, 2], and those across the border of a torus as stubs."""
    way = ends[:, 1] - ends[:, 0]
    longest = np.abs(way).max(1, initial=0.0)
    goes_round = (longest > 1) & isinstance(used, Torus)
    outward = -0.42 * way[goes_round] / longest[goes_round, None]
    starts, targets = ends[goes_round, 0], ends[goes_round, 1]
    stubs = [np.stack([starts, starts + outward], 1), np.stack([targets, targets - outward], 1)]
    return ends[~goes_round], np.concatenate(stubs)


def _add_lines(figure: go.Figure, lines: np.ndarray, colour: str, dash: str) -> None:
    if len(lines):
        gaps = np.full((len(lines), 1), None)
        x, y = (np.concatenate([lines[:, :, axis].round(4), gaps], 1).ravel().tolist() for axis in (0, 1))
        line = {"color": colour, "width": 1.2 if len(lines) < 500 else 0.5, "dash": dash}
        figure.add_scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip")


def _add_arrows(figure: go.Figure, ends: np.ndarray, colour: str, ranks: int) -> None:
    """Add an arrowhead to each edge, near its target; ``ends`` is [edges, 2, 2]."""
    way = ends[:, 1] - ends[:, 0]
    across = float((ends.max((0, 1)) - ends.min((0, 1))).max())  # drawn about 270 pixels wide
    back = across / 270 * (_pixels(ranks) / 2 + 4)
    tips = ends[:, 1] - back * way / np.linalg.norm(way, axis=1, keepdims=True)
    angles = np.degrees(np.arctan2(way[:, 0], way[:, 1]))
    marks = {"symbol": "triangle-up", "size": 7, "color": colour, "angle": _numbers(angles)}
    figure.add_scatter(x=_numbers(tips[:, 0]), y=_numbers(tips[:, 1]), mode="markers", marker=marks, hoverinfo="skip")


def _add_ranks(figure: go.Figure, places: np.ndarray, rounds: list[Neighbours]) -> None:
    size = len(places)
    texts = [_hover(rank, [neighbours[rank] for neighbours in rounds]) for rank in range(size)]
    marks = {
        "size": _pixels(size),
        "color": PALETTE[0] if len(rounds) == 1 else GREY,
        "line": {"width": 0},
        "opacity": 1,
    }
    figure.add_scatter(
        x=_numbers(places[:, 0]),
        y=_numbers(places[:, 1]),
        mode="markers+text" if size <= _LABELLED else "markers",
        marker=marks,
        text=[str(rank) for rank in range(size)],
        textposition="middle center",
        textfont={"color": "#fff", "size": 11 if size <= 20 else 9},
        hovertext=texts,
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _pixels(ranks: int) -> int:
    return next((pixels for most, pixels in _NODE_SIZES if ranks <= most), 4)


def _hover(rank: int, rounds: list[tuple[int, ...]]) -> str:
    if len(rounds) > 1:
        lines = [f"round {t}: {', '.join(map(str, out))}" for t, out in enumerate(rounds)]
        return "<br>".join([f"<b>rank {rank}</b> sends to", *lines])
    shown = ", ".join(map(str, rounds[0][:12])) + (" …" if len(rounds[0]) > 12 else "")
    return f"<b>rank {rank}</b>, {len(rounds[0])} neighbour{'s' * (len(rounds[0]) != 1)}<br>{shown}"


def _numbers(values: np.ndarray) -> list[float]:
    return [float(value) for value in values.round(4)]  # more than a screen has
