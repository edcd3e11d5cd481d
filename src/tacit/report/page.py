"""The report: one HTML page that needs nothing else, with the table, the figures and how to read them."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from tacit.errors import TacitError
from tacit.record.files import write_text
from tacit.record.run import Run
from tacit.report import figures, graph, servers, units
from tacit.report.columns import cells, columns_of, small_print
from tacit.report.comparison import Comparison, jsonable
from tacit.report.curves import AXES
from tacit.report.exchanges import HEADINGS, exchanges_of
from tacit.report.planned.page_parts import HEADINGS as PLANNED_HEADINGS
from tacit.report.planned.page_parts import figure as planned_figure
from tacit.report.planned.page_parts import planned_runs, section
from tacit.report.timeline import Strip
from tacit.report.verdict import remarks, verdict

_HERE: Final = Path(__file__).parent
_MOST_PLANNED: Final = 4
"""Runs that the page shows next to their plans."""
_APART: Final = ("predicted", "drift")
"""Parts of a record that have a section of their own."""
_WIDE: Final = 0.12
"""The least share of time whose number stands in its part of a bar, also on a phone."""


def write_report(comparison: Comparison | Sequence[Run], path: str | os.PathLike[str]) -> Path:
    """Write the page about a comparison, or about some runs, to ``path``, atomically; return the path."""
    if not isinstance(comparison, Comparison):
        comparison = Comparison.of(comparison)
    return write_page(render(comparison), path)


def write_page(text: str, path: str | os.PathLike[str]) -> Path:
    """Write a page's text to ``path``, whole or not at all; return the path."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, text)
    except OSError as error:
        raise TacitError(
            f"could not write the report to {target}: {error.strerror or error}; "
            f"free some space, or choose another place."
        ) from error
    return target


def fill_in(template: str, drawn: Mapping[str, figures.Figure], /, **values: object) -> str:
    """Return a template with its values, and with everything that the figures ``drawn`` need: style, script, plotly."""
    return _templates().get_template(template).render(**values, figures=_embedded(drawn), **_embedded_files())


@functools.cache
def _templates() -> Environment:
    """Return the environment that keeps compiled templates: to compile one takes as long as to draw the figures."""
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["breakable"] = _breakable
    environment.filters["activity_name"] = figures.activity_name
    return environment


@functools.cache
def _embedded_files() -> dict[str, Markup]:
    """Return the style, the script and plotly, which are the same on every page."""
    files = {"css": (_HERE / "page.css").read_text("utf-8"), "script": (_HERE / "page.js").read_text("utf-8")}
    return {name: Markup(text) for name, text in {**files, "plotly": get_plotlyjs()}.items()}


def render(comparison: Comparison) -> str:
    """Return the page as text."""
    labels, styles = [entry.label for entry in comparison.entries], figures.colours(comparison)
    strips = figures.strips(comparison)
    graphs = graph.topologies_of(comparison)
    drawn = _drawn(comparison) | {f"strip-{label}": figure for label, _, figure in strips}
    planned = planned_runs([run for entry in comparison.entries for run in entry.runs])[:_MOST_PLANNED]
    drawn |= {f"planned-{i}": figure for i, one in enumerate(planned) if (figure := planned_figure(one))}
    served = servers.served(comparison)
    drawn |= {f"staleness-{one.label}": servers.staleness_figure(one) for one in served if one.ages.any()}
    paces = {"pace": servers.pace_figure(comparison, served), "k": servers.k_figure(comparison, served)}
    drawn |= {name: figure for name, figure in paces.items() if figure}
    drawn |= {f"graph-{i}": graph.graph_figure(used, size) for i, (used, size, _) in enumerate(graphs)}
    return fill_in(
        "page.html",
        drawn,
        comparison=comparison,
        title=comparison.workload,
        verdict=verdict(comparison),
        remarks=remarks(comparison),
        target="" if comparison.target is None else units.target(comparison.target),
        facts=_facts(comparison),
        table=_table(comparison),
        exchanges=exchanges_of(comparison),
        exchange_headings=HEADINGS,
        planned=[section(one, f"planned-{i}") for i, one in enumerate(planned)],
        planned_headings=PLANNED_HEADINGS,
        served=served,
        served_headings=servers.HEADINGS,
        axes=AXES,
        drawn=set(drawn),
        metric_name=comparison.metric_name or "metric",
        strips=[
            {"label": label, "strategy": labels.index(label), "hidden": _hidden(comparison, label, strip)}
            for label, strip, _ in strips
        ],
        graphs=[
            {"title": f"{graph.short_name(used)}, {size} workers", "labels": labels, "remark": graph.remark(used, size)}
            for used, size, labels in graphs
        ],
        strategies=[{"label": label, "colour": styles[label][0]} for label in labels],
        activities=_activities(comparison, [strip for _, strip, _ in strips]),
        shares=_shares(comparison),
        is_over_seeds=max(len(entry.runs) for entry in comparison.entries) > 1,
        record=_record(comparison),
        reproduce=comparison.reproduce or _config(comparison),
    )


def _drawn(comparison: Comparison) -> dict[str, figures.Figure]:
    """Return the figures that have measurements."""
    drawn = {
        "loss": figures.loss_figure(comparison),
        "metric": figures.metric_figure(comparison),
        "period": figures.period_figure(comparison),
        "spread": figures.spread_figure(comparison),
    }
    return {name: figure for name, figure in drawn.items() if figure}


def _activities(comparison: Comparison, strips: Sequence[Strip]) -> dict[str, str]:
    """Return the activities that are drawn, with their colours: in the whole run, or in the strip of its beginning."""
    occurring = {name for row in comparison.rows for name, share in row.shares.items() if share >= figures.VISIBLE}
    occurring |= {bar.activity for strip in strips for bar in strip.bars}
    return {name: colour for name, colour in figures.ACTIVITY_COLOURS.items() if name in occurring}


def _shares(comparison: Comparison) -> list[dict[str, Any]]:
    """Return one stacked bar per strategy: the shares of the workers' time over the whole run."""
    bars = []
    for place, row in enumerate(comparison.rows):
        visible = {name: row.shares[name] for name in figures.ACTIVITY_COLOURS if row.shares[name] >= figures.VISIBLE}
        parts = [
            {"activity": name, "percent": f"{100 * share:.4g}", "text": units.share(share), "is_wide": share >= _WIDE}
            for name, share in visible.items()
        ]
        description = ", ".join(f"{figures.activity_name(str(part['activity']))} {part['text']}" for part in parts)
        bars.append({"label": row.label, "strategy": place, "parts": parts, "description": description})
    return bars


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    runs = [run for entry in comparison.entries for run in entry.runs]
    seeds = sorted({run.seed for run in runs})
    facts = [
        ("workload", comparison.workload),
        ("cluster", units.abbreviated(comparison.cluster)),
        ("workers", _span([run.workers for run in runs])),
        ("steps", _span([run.steps for run in runs])),
        ("seeds" if len(seeds) > 1 else "seed", ", ".join(map(str, seeds)) if len(seeds) <= 8 else f"{len(seeds)}"),
    ]
    return [(name, value) for name, value in facts if value]


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return units.count(low) if low == high else f"{units.count(low)}–{units.count(high)}"


def _table(comparison: Comparison) -> dict[str, Any]:
    """Return the table for the template: groups of headings, headings, and rows of cells."""
    columns = columns_of(comparison)
    by_column = [cells(comparison, column) for column in columns]
    groups: list[dict[str, Any]] = []
    for column in columns:
        if not groups or groups[-1]["name"] != column.group:
            groups.append({"name": column.group, "width": 0})
        groups[-1]["width"] += 1
    starts = {sum(group["width"] for group in groups[:i]) for i in range(len(groups))}
    rows = [
        {"label": row.label, "small_print": small_print(row), "note": row.note, "cells": [c[i] for c in by_column]}
        for i, row in enumerate(comparison.rows)
    ]
    return {"groups": groups, "columns": columns, "rows": rows, "starts": starts}


def _hidden(comparison: Comparison, label: str, strip: Strip) -> int:
    """Return the number of a strategy's workers that its strip does not show."""
    entry = next(entry for entry in comparison.entries if entry.label == label)
    return max(0, entry.runs[0].workers - sum(rank >= 0 for rank in strip.ranks))


def _record(comparison: Comparison) -> list[tuple[str, str]]:
    """Return versions, engine and host of the first run, nested names joined by spaces."""

    def flat(mapping: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
        pairs = []
        for key, value in mapping.items():
            name = str(key) if not prefix or prefix == "versions" else f"{prefix} {key}"
            pairs += flat(value, name) if isinstance(value, Mapping) else [(name.replace("_", " "), str(value))]
        return pairs

    record = comparison.entries[0].runs[0].record
    return flat({name: value for name, value in record.items() if name not in _APART})


def _config(comparison: Comparison) -> str:
    run = comparison.entries[0].runs[0]
    return run.toml() if run.config else ""


def _breakable(label: str) -> Markup:
    """Return an escaped label with line breaks allowed after brackets and equals signs."""
    return Markup(re.sub(r"([(=])(?=[^)]{8})", r"\1<wbr>", str(escape(label))))


def _embedded(value: object) -> Markup:
    """Return JSON for a script element, without any «<» that could end the element."""
    text = json.dumps(jsonable(value), separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
