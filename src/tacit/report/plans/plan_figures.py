"""Figures of plan.html: predicted times with their ranges, and time against bytes."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any, Final

import plotly.graph_objects as go

from tacit.report import units
from tacit.report.figures import GREY, PALETTE, Figure, plain
from tacit.report.plans.plan_rows import PlanRow, Table, interval_text, pareto_front, timed

_BEST, _OTHER, _BASELINE = PALETTE[2], PALETTE[0], GREY
_LINE_HEIGHT: Final = 38
_LONGEST: Final = 58
"""Longest name inside a figure, in characters."""
_WIDE_RANGE: Final = 12.0
"""Numbers that differ by more than this factor are drawn on a log axis."""


def times_figure(rows: Sequence[PlanRow], lr: float | None) -> Figure | None:
    """Return the predicted times to the target, or losses, one line per candidate: a dot and its range.

    Filled: with the user's learning rate. Open: at the best learning rate that was tried.
    """
    known = [row for row in rows if row.interval is not None]
    if not known:
        return None
    figure = go.Figure()
    own = [(row, row.own) for row in known if row.own is not None]
    tuned = [(row, row.tuned) for row in known if row.tuned is not None and row.table["best_lr"] != lr]
    for marks, symbol in ((own, "circle"), (tuned, "circle-open")):
        if marks:
            figure.add_scatter(**_dots(marks, known, symbol, lr))
    figure.update_layout(
        height=60 + _LINE_HEIGHT * len(known),
        margin={"l": 8, "r": 22, "t": 8, "b": 40},
        annotations=[_name_above(place, row) for place, row in enumerate(known)],
    )
    figure.update_yaxes(range=[len(known) - 0.4, -0.75], showticklabels=False, showgrid=False, zeroline=False)
    highest = max(interval["high"] for _, interval in [*own, *tuned])
    lowest = min(interval["low"] for _, interval in [*own, *tuned])
    figure.update_xaxes(zeroline=False, **_axis(lowest, highest, known[0].text))
    return plain(figure)


def front_figure(rows: Sequence[PlanRow]) -> Figure | None:
    """Return time against bytes, with a line through the rows that no other one beats in both."""
    known = timed(rows)
    if len(known) < 2:
        return None
    figure = go.Figure()
    front = pareto_front(rows)
    least = min((row.table["bytes_to_target"] for row in known if row.table["bytes_to_target"]), default=1.0)
    nothing = least / 2  # where a worker alone, who sends nothing, is drawn on a log axis
    figure.add_scatter(
        x=[_median(row) for row in front],
        y=[row.table["bytes_to_target"] or nothing for row in front],
        mode="lines",
        line={"color": GREY, "width": 1.4, "dash": "dot", "shape": "hv"},
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=[_median(row) for row in known],
        y=[row.table["bytes_to_target"] or nothing for row in known],
        mode="markers+text",
        text=[str(row.number) for row in known],
        textposition="top center",
        customdata=[_safe(f"{row.number}  {row.name}") for row in known],
        hovertemplate="<b>%{customdata}</b><br>%{hovertext}<extra></extra>",
        hovertext=[f"{row.text(_median(row))}, {units.size(row.table['bytes_to_target'])}" for row in known],
        marker={"size": 11, "color": [_colour(row) for row in known]},
    )
    times_s, sent = [_median(row) for row in known], [float(row.table["bytes_to_target"]) for row in known]
    across, up = _axis(min(times_s), max(times_s), known[0].text), _axis(min(sent) or nothing, max(sent), units.size)
    if min(sent) == 0 and up.get("type") == "log":
        up |= {"tickvals": [nothing, *up["tickvals"][1:]], "ticktext": ["0 B", *up["ticktext"][1:]]}
    figure.update_layout(height=360, margin={"l": 74, "r": 22, "t": 14, "b": 46}, hovermode="closest")
    figure.update_xaxes(title_text="loss" if known[0].is_loss else "time to the target", zeroline=False, **across)
    figure.update_yaxes(title_text="bytes of all workers", zeroline=False, **up)
    return plain(figure)


def _dots(
    marks: Sequence[tuple[PlanRow, Table]], known: Sequence[PlanRow], symbol: str, lr: float | None
) -> dict[str, Any]:
    medians = [interval["median"] for _, interval in marks]
    rates = [lr if symbol == "circle" else row.table["best_lr"] for row, _ in marks]
    return {
        "x": medians,
        "y": [known.index(row) for row, _ in marks],
        "mode": "markers",
        "marker": {"size": 10, "symbol": symbol, "color": [_colour(row) for row, _ in marks], "line": {"width": 2}},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [interval["high"] - interval["median"] for _, interval in marks],
            "arrayminus": [interval["median"] - interval["low"] for _, interval in marks],
            "color": GREY,
            "thickness": 1.6,
            "width": 4,
        },
        "customdata": [_safe(row.name) for row, _ in marks],
        "text": [
            " ".join(filter(None, ("" if rate is None else f"lr {rate:g}:", text, span and f"({span})")))
            for rate, (text, span) in zip(
                rates, (interval_text(one, is_loss=row.is_loss) for row, one in marks), strict=True
            )
        ],
        "hovertemplate": "<b>%{customdata}</b><br>%{text}<extra></extra>",
    }


def _name_above(place: int, row: PlanRow) -> dict[str, Any]:
    name = row.name if len(row.name) <= _LONGEST else f"{row.name[: _LONGEST - 1]}…"
    text = f"{row.number}  {_safe(name)}"
    return {
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "y": place,
        "yanchor": "bottom",
        "yshift": 4,
        "showarrow": False,
        "text": f"<b>{text}</b>" if row.is_best else text,
        "font": {"size": 12},
    }


def _axis(lowest: float, highest: float, show: Any) -> dict[str, Any]:
    """Return an axis with round numbers and units: on a log scale if the numbers differ by much, else from zero."""
    if lowest > 0 and highest / lowest > _WIDE_RANGE:
        low, high = math.log10(lowest / 1.25), math.log10(highest * 1.25)
        digits = (1, 2, 5) if high - low < 2.2 else (1,)
        marks = [d * 10.0**p for p in range(math.floor(low), math.ceil(high) + 1) for d in digits]
        shown = [mark for mark in marks if low <= math.log10(mark) <= high]
        return {"type": "log", "range": [low, high], "tickvals": shown, "ticktext": [show(mark) for mark in shown]}
    step = _round_step(highest / 5)
    shown = [step * place for place in range(math.floor(highest * 1.06 / step) + 1)]
    return {"range": [0, highest * 1.06], "tickvals": shown, "ticktext": [show(mark) for mark in shown]}


def _round_step(about: float) -> float:
    power = 10.0 ** math.floor(math.log10(about))
    return next(digit * power for digit in (1.0, 2.0, 5.0, 10.0) if digit * power >= about)


def _colour(row: PlanRow) -> str:
    return _BEST if row.is_best else _BASELINE if row.is_baseline else _OTHER


def _median(row: PlanRow) -> float:
    assert row.interval is not None
    return float(row.interval["median"])


def _safe(text: str) -> str:
    return html.escape(text)
