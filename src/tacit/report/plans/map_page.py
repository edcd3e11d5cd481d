"""map.html: which strategy is fastest where, as a coloured grid with gains, and a table of the strategies that win."""

from __future__ import annotations

import html
import os
from collections import Counter
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go

from tacit.report import units
from tacit.report.figures import GREY, PALETTE, Figure, plain
from tacit.report.page import fill_in, write_page
from tacit.report.plans.plan_rows import Table, interval_text

_CELL_HEIGHT: Final = 46
TITLES: Final = {
    "workers": "workers",
    "bandwidth": "bandwidth",
    "latency": "one-way latency",
    "compute": "factor of all compute times",
    "slow": "factor of the last worker’s compute times",
}


def write_map_page(table: Table, path: str | os.PathLike[str]) -> Path:
    """Write the page about a map, the table of map.json, to ``path``; return the path."""
    return write_page(render_map(table), path)


def render_map(table: Table) -> str:
    """Return the page as text."""
    winners = winners_of(table)
    across, up = table["axes"]
    cells = [cell for row in table["cells"] for cell in row]
    clear = sum(1 for cell in cells if cell is not None and cell["is_clear"])
    return fill_in(
        "plans/map.html",
        {"map": _figure(table, winners)},
        heading=_heading(table, winners),
        across=TITLES[across["name"]],
        up=TITLES[up["name"]],
        facts=[
            ("workload", table["workload"]),
            ("target loss", "" if table["target_loss"] is None else units.target(table["target_loss"])),
            ("cells", str(len(cells))),
            ("clearly faster than DDP", f"{clear} of {len(cells)}"),
        ],
        winners=[
            {"letter": letter_of(place), "name": name, "colour": _colour(place, name), "count": count}
            for place, (name, count) in enumerate(winners.items())
        ],
        warnings=table["warnings"],
    )


def winners_of(table: Table) -> dict[str, int]:
    """Return the names of the fastest candidates with the number of their cells, the most frequent first."""
    counts = Counter(cell_name(cell) for row in table["cells"] for cell in row if cell is not None)
    return dict(counts.most_common())


def cell_name(cell: Table) -> str:
    """Return the fastest candidate of a cell by name: the strategy, and how many take part if not all do."""
    return candidate_name(cell, cell["workers"])


def candidate_name(one: Table, workers: int) -> str:
    """Return the name of a candidate of a map with ``workers`` workers in this cell."""
    if len(one["ranks"]) == workers:
        return str(one["strategy"])
    if len(one["ranks"]) == 1:
        return "one worker alone"
    left_out = workers - len(one["ranks"])
    return f"{one['strategy']} without {left_out} slow worker{'s' * (left_out > 1)}"


def letter_of(place: int) -> str:
    """Return A, B, …, Z, AA, … for the place of a strategy in the list."""
    letters = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


def value_text(name: str, value: float) -> str:
    """Return a value of an axis with its unit."""
    if name == "bandwidth":
        bits = 8 * value
        for scale, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
            if bits >= 0.9995 * scale:
                return f"{units.figure(bits / scale).removesuffix('.00').removesuffix('.0')} {unit}"
        return f"{units.figure(bits)} bit/s"
    if name == "latency":
        return units.seconds(value)
    return f"{value:g}" if name == "workers" else f"{units.figure(value)}×"


def gain_text(cell: Table) -> str:
    """Return how many times as fast as DDP the fastest is; ≈ before it where the two cannot be told apart."""
    if cell["is_ddp"]:
        return "DDP"
    if cell["gain"] is None:
        return "only"
    return f"{'' if cell['is_clear'] else '≈ '}{units.ratio(1 / (1 - cell['gain']))}"


def _colour(place: int, name: str) -> str:
    return GREY if name == "DDP()" else PALETTE[place % len(PALETTE)]


def _heading(table: Table, winners: dict[str, int]) -> str:
    total = sum(winners.values())
    [name, count], *rest = winners.items()
    if not rest:
        return f"{name} is fastest everywhere"
    return f"{name} is fastest in {count} of {total} cells, {rest[0][0]} in {rest[0][1]}"


def _figure(table: Table, winners: dict[str, int]) -> Figure:
    across, up = table["axes"]
    xs = [value_text(across["name"], value) for value in across["values"]]
    ys = [value_text(up["name"], value) for value in up["values"]]
    order = list(winners)
    colours = [_colour(place, name) for place, name in enumerate(order)]
    steps = [(place + end) / len(order) for place in range(len(order)) for end in (0, 1)]
    scale = [[at, colours[number // 2]] for number, at in enumerate(steps)]
    figure = go.Figure()
    figure.add_heatmap(
        x=xs,
        y=ys,
        z=[[None if cell is None else order.index(cell_name(cell)) + 0.5 for cell in row] for row in table["cells"]],
        zmin=0,
        zmax=len(order),
        colorscale=scale,
        showscale=False,
        xgap=2,
        ygap=2,
        text=[[_label(cell, order) for cell in row] for row in table["cells"]],
        texttemplate="%{text}",
        textfont={"color": "#fff", "size": 12},
        hovertext=[[_hover(cell) for cell in row] for row in table["cells"]],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    marked = [(xs[j], ys[i]) for i, row in enumerate(table["cells"]) for j, cell in enumerate(row) if _is_marked(cell)]
    for size in (30, 18) if marked else ():  # two lines of different lengths: a hatched cell
        figure.add_scatter(
            x=[x for x, _ in marked],
            y=[y for _, y in marked],
            mode="markers",
            marker={"symbol": "line-ne-open", "size": size, "line": {"color": "rgba(255,255,255,.55)", "width": 2}},
            hoverinfo="skip",
        )
    figure.update_layout(height=90 + _CELL_HEIGHT * len(ys), margin={"l": 84, "r": 12, "t": 8, "b": 60})
    figure.update_xaxes(title_text=TITLES[across["name"]], type="category", showgrid=False)
    figure.update_yaxes(
        title={"text": TITLES[up["name"]], "standoff": 14}, type="category", showgrid=False, automargin=True
    )
    return plain(figure)


def _is_marked(cell: Table | None) -> bool:
    return cell is not None and not cell["is_clear"] and not cell["is_ddp"]


def _label(cell: Table | None, order: list[str]) -> str:
    if cell is None:
        return ""
    return f"<b>{letter_of(order.index(cell_name(cell)))}</b><br>{gain_text(cell)}"


def _hover(cell: Table | None) -> str:
    if cell is None:
        return "no candidate reaches the target"
    lines = [f"<b>{_safe(cell_name(cell))}</b>: {_times(cell['time_s'])}"]
    if cell["ddp_time_s"] is not None and not cell["is_ddp"]:
        lines.append(f"DDP: {_times(cell['ddp_time_s'])}")
    if cell["second"] is not None:
        lines.append(
            f"next: {_safe(candidate_name(cell['second'], cell['workers']))}: {_times(cell['second']['time_s'])}"
        )
    if _is_marked(cell):
        lines.append("stay with DDP: below 10 %, or the ranges overlap")
    return "<br>".join(lines)


def _times(interval: Any) -> str:
    text, span = interval_text(interval)
    return f"{text} ({span})" if span else text


def _safe(text: str) -> str:
    return html.escape(text)
