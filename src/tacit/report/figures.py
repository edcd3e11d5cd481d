"""Figures of the report for plotly.js; the page sets the colours of text and grid, light or dark."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from tacit.report import units
from tacit.report.comparison import Comparison
from tacit.report.curves import AXES, Curve, over_seeds, period_rows, spread_rows
from tacit.report.timeline import Bar, Strip, first_run, strip, window_s

Figure = dict[str, Any]
Curves = dict[str, list[Curve | None]]  # by axis, one per strategy

# First colours that colour-blind readers can distinguish: Okabe and Ito's palette without yellow, which is invisible on
# white, and two of Paul Tol's. Then four more that differ from these and from each other at least as much as the two
# blues do (CIELAB), and are visible on white and on black.
PALETTE: Final = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#882255",
    "#999933",
    "#6A5ACD",
    "#D81B60",
    "#1B5E20",
    "#00838F",
)
GREY: Final = "#767676"
DASHES: Final = ("solid", "dash", "dot", "dashdot")  # for strategies that share a colour, if there are more than twelve
ACTIVITY_COLOURS: Final = {
    "computing": "#9CC3DE",
    "waiting": "#E4572E",
    "talking": "#5B3E8C",
    "cancelled": "#B9B9B9",
    "finished": "#F2C9B8",
    "hooks": "#C9A227",
    "other": "rgba(128,128,128,.18)",
}
VISIBLE: Final = 5e-4  # a share of time below this is not drawn
AXIS_TITLES: Final = {**AXES, "time_s": "time (s)", "gradients": "gradients used"}


def activity_name(activity: str) -> str:
    """Return the name of an activity on the page; compare.json keeps the name ``talking``."""
    return "communicating" if activity == "talking" else activity


def colours(comparison: Comparison) -> dict[str, tuple[str, str]]:
    """Return each strategy's colour and dash, the same in every figure."""
    others = [entry.label for entry in comparison.entries if entry.label != comparison.baseline]
    styles = {
        label: (PALETTE[i % len(PALETTE)], DASHES[i // len(PALETTE) % len(DASHES)]) for i, label in enumerate(others)
    }
    return {**styles, comparison.baseline: (GREY, "solid")} if comparison.baseline is not None else styles


def loss_figure(comparison: Comparison) -> Figure | None:
    """Return the loss against time, bytes, rounds and steps, with a line at the target."""
    figure = _curves_figure(comparison, _model_curves(comparison, "loss"), "loss", "loss")
    if figure and comparison.target is not None:
        note = f"target {units.target(comparison.target)}"
        line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": comparison.target, "y1": comparison.target}
        figure["layout"]["shapes"] = [{**line, "line": {"width": 1, "dash": "dot", "color": GREY}}]
        figure["target"] = {"value": comparison.target, "text": note}
    return figure


def metric_figure(comparison: Comparison) -> Figure | None:
    """Return the metric against the same axes, if the runs measured one."""
    return _curves_figure(comparison, _model_curves(comparison, "metric"), "metric", comparison.metric_name or "metric")


def period_figure(comparison: Comparison) -> Figure | None:
    """Return the steps between rounds over the run."""
    histories = [[period_rows(run) for run in entry.runs] for entry in comparison.entries]
    curves = {axis: [over_seeds(seeds, axis, "period", is_stepwise=True) for seeds in histories] for axis in AXES}
    return _curves_figure(comparison, curves, "period", "steps between rounds", is_stepwise=True)


def spread_figure(comparison: Comparison) -> Figure | None:
    """Return the spread of the workers' models."""
    histories = [[spread_rows(run) for run in entry.runs] for entry in comparison.entries]
    widest = max((row["spread"] for seeds in histories for rows in seeds for row in rows), default=0.0)
    rounding = 1e-9 * widest  # what is left after averaging every step would stretch the log axis by ten decades
    histories = [[[row for row in rows if row["spread"] > rounding] for rows in seeds] for seeds in histories]
    curves = {axis: [over_seeds(seeds, axis, "spread") for seeds in histories] for axis in AXES}
    return _curves_figure(comparison, curves, "spread", "mean ‖xᵢ − x̄‖²")


def strips(comparison: Comparison) -> list[tuple[str, Strip, Figure]]:
    """Return, for each strategy, the first rounds of its lowest seed, over the same interval of time."""
    traces = [first_run(entry.runs).trace.columns() for entry in comparison.entries]
    until_s, most_workers = window_s(traces), 16 if len(traces) <= 2 else 10 if len(traces) <= 5 else 6
    drawn = [strip(columns, until_s, most_workers) for columns in traces]
    return [(e.label, s, _strip_figure(s)) for e, s in zip(comparison.entries, drawn, strict=True) if s.bars]


def _strip_figure(drawn: Strip) -> Figure:
    names = {rank: "server" if rank < 0 else f"worker {rank}" for rank in drawn.ranks}
    figure = go.Figure()
    for activity, colour in ACTIVITY_COLOURS.items():
        bars = [bar for bar in drawn.bars if bar.activity == activity]
        if bars:
            figure.add_bar(
                y=[names[bar.rank] for bar in bars],
                base=[_short(bar.start_s) for bar in bars],
                x=[_short(bar.end_s - bar.start_s) for bar in bars],
                text=[_hover(bar) for bar in bars],
                orientation="h",
                name=activity_name(activity),
                marker={"color": colour, "line": {"width": 0.5, "color": "rgba(255,255,255,.85)"}},
                textposition="none",
                hovertemplate="%{y} %{text}<extra></extra>",
            )
    if drawn.faults:
        marks = {"symbol": "x", "size": 9, "color": "#000", "line": {"color": "#fff", "width": 1}}
        text = [_safe(fault.label) for fault in drawn.faults]
        x, y = [fault.end_s for fault in drawn.faults], [names[fault.rank] for fault in drawn.faults]
        figure.add_scatter(
            x=x, y=y, mode="markers", marker=marks, text=text, hovertemplate="%{y}: %{text}<extra></extra>"
        )
    figure.update_layout(
        barmode="overlay", bargap=0.22, height=44 + 15 * len(names), margin=_margin(left=70, bottom=34)
    )
    figure.update_xaxes(range=[0, drawn.until_s], ticksuffix=" s", zeroline=False)
    order = {"categoryorder": "array", "categoryarray": list(names.values())}
    figure.update_yaxes(autorange="reversed", fixedrange=True, showgrid=False, tickfont_size=10, dtick=1, **order)
    return plain(figure)


def _model_curves(comparison: Comparison, y: str) -> Curves:
    return {axis: [entry.curve(axis, y) for entry in comparison.entries] for axis in AXES}


def _curves_figure(
    comparison: Comparison, curves: Curves, y: str, title: str, *, is_stepwise: bool = False
) -> Figure | None:
    """Return a figure of ``y`` with a band and a line per strategy, and under «axes» its traces for every x axis."""
    styles = colours(comparison)
    if not any(curves["time_s"]) and not any(curves["step"]):
        return None
    figure = go.Figure()
    for entry in comparison.entries:
        colour, dash = styles[entry.label]
        shape = "hv" if is_stepwise else "linear"
        name = _safe(entry.label)
        band = go.Scatter(fill="toself", fillcolor=_tinted(colour), line={"width": 0}, hoverinfo="skip", mode="lines")
        line = go.Scatter(mode="lines", line={"color": colour, "dash": dash, "width": 2.4, "shape": shape})
        line.update(hovertemplate=f"<b>{name}</b><br>%{{x:.4~g}}, %{{y:.4~g}}<extra></extra>")
        figure.add_traces([t.update(legendgroup=entry.label, name=name, showlegend=False) for t in (band, line)])
    margin = _margin(left=60, bottom=46, top=28)  # the top leaves room for plotly's own tools
    figure.update_layout(height=440 if y == "loss" else 300, margin=margin, hovermode="closest")
    figure.update_yaxes(title_text=title, zeroline=False, automargin=True)
    figure.update_xaxes(zeroline=False)
    axes = {axis: _traces(on_axis, axis, is_stepwise) for axis, on_axis in curves.items()}
    return {**plain(figure), "axes": axes, "ranges": _ranges([c for c in curves["step"] if c], y)}


def _traces(curves: Sequence[Curve | None], axis: str, is_stepwise: bool) -> Figure:
    """Return the x and y of every trace on one axis, in the order band, line, band, line."""
    xs, ys = list[list[float]](), list[list[float]]()
    for curve in curves:
        if curve is None:
            xs, ys = [*xs, [], []], [*ys, [], []]
            continue
        low, high, along = curve.low, curve.high, curve.x
        if is_stepwise:  # the band's outline has the stairs of the line
            low, high, along = np.repeat(low, 2)[:-1], np.repeat(high, 2)[:-1], np.repeat(along, 2)[1:]
        is_band = bool((high > low).any())
        xs += [_numbers(np.concatenate([along, along[::-1]])) if is_band else [], _numbers(curve.x)]
        ys += [_numbers(np.concatenate([high, low[::-1]])) if is_band else [], _numbers(curve.mean)]
    return {"title": AXIS_TITLES[axis], "x": xs, "y": ys, "is_bytes": axis == "bytes_sent"}


def _ranges(curves: Sequence[Curve], y: str) -> dict[str, list[float] | None]:
    """Return the vertical range on a linear and a log axis; for losses blind to what blew up above the start."""
    values = np.concatenate([np.concatenate([curve.low, curve.high]) for curve in curves] or [np.empty(0)])
    if y == "loss" and len(values):
        values = values[values <= max(float(curve.high[0]) for curve in curves)]
    logs = np.log10(values[values > 0])
    linear = {"loss": _padded(values), "period": [0.0, 1.08 * float(values.max(initial=1.0))]}.get(y)
    return {"linear": linear, "log": _padded(logs)}


def _padded(values: np.ndarray) -> list[float] | None:
    low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
    room = 0.04 * (high - low)
    return [low - room, high + room] if low < high else None


def _hover(bar: Bar) -> str:
    times = units.between(bar.start_s, bar.end_s, units.seconds) or units.seconds(bar.start_s)
    step = f", step {bar.step}" if bar.step else ""
    what = f" for {_safe(bar.label)}" if bar.activity == "waiting" and bar.label else ""
    return f"{activity_name(bar.activity)}{what}<br>{times}{step}"


def _margin(*, left: int, bottom: int, top: int = 8) -> dict[str, int]:
    return {"l": left, "r": 22, "t": top, "b": bottom}


def _tinted(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},.16)"


def _numbers(values: np.ndarray) -> list[float]:
    return [_short(value) for value in values]


def _short(value: float) -> float:
    return float(f"{value:.6g}")  # six digits are more than a screen has


def _safe(text: str) -> str:
    return html.escape(text)  # plotly reads a little HTML in names and texts


def plain(figure: go.Figure) -> Figure:
    """Return the figure as JSON holds it, without plotly's own template of colours."""
    figure.update_layout(template=None, showlegend=False)
    plain: Figure = json.loads(figure.to_json())
    plain["layout"].pop("template", None)
    return plain
