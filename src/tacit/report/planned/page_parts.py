"""The section of the page about a run and its plan: curves, the table of causes, and drifts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import plotly.graph_objects as go

from tacit.record.run import Run
from tacit.report import units
from tacit.report.figures import GREY, PALETTE, Figure, plain
from tacit.report.planned.causes import CONVERGENCE, Cause, PlannedRun, planned_run, signed_share

_MORE: Final = 1.3
"""The figure ends at this many times the longest of the compared times."""
_COARSE: Final = 0.1
"""Evaluations are far apart if the gap is more than this share of the steps."""
HEADINGS: Final = ("", "planned", "measured", "difference", "of the planned time", "of the difference")


def planned_runs(runs: Sequence[Run]) -> list[PlannedRun]:
    """Return the runs that have a plan."""
    return [found for run in runs if (found := planned_run(run)) is not None]


def lines(found: PlannedRun) -> list[tuple[str, ...]]:
    """Return the rows of the table of causes, and the sum."""
    whole = Cause("sum", found.planned_s, found.measured_s)
    return [_line(one, found) for one in (*found.causes, whole)]


def _line(one: Cause, found: PlannedRun) -> tuple[str, ...]:
    planned, measured = units.seconds(one.planned_s), units.seconds(one.measured_s)
    if one.name == CONVERGENCE:
        planned = "" if found.planned_steps is None else f"{found.planned_steps:,} steps"
        measured = f"{found.steps:,} steps"
    sign = "+" if one.difference_s > 0 else "−" if one.difference_s < 0 else ""
    return (
        one.name,
        planned,
        measured,
        f"{sign}{units.seconds(abs(one.difference_s))}",
        signed_share(one.difference_s, found.planned_s),
        signed_share(one.difference_s, found.difference_s),
    )


def drift_lines(found: PlannedRun) -> list[str]:
    """Return the drifts that the run has recorded, as sentences."""
    return [
        " ".join(filter(None, (f"{units.seconds(one['time_s'])}, {one['text']}", one.get("replanned"))))
        for one in found.run.record.get("drift", [])
    ]


def figure(found: PlannedRun) -> Figure | None:
    """Return the measured and the predicted loss against time, with the range of the plan; None without losses."""
    curve = found.run.predicted.get("curve")
    rows = [row for row in found.run.history if row["loss"] is not None]
    if not curve or not rows:
        return None
    drawn, end_s = go.Figure(), _MORE * max(found.measured_s, found.high_s or found.planned_s)
    if found.low_s is not None and found.high_s is not None:
        early, late = (
            [time_s * end / found.planned_s for time_s in curve["time_s"]] for end in (found.low_s, found.high_s)
        )
        drawn.add_scatter(
            x=[*early, *reversed(late)],
            y=[*curve["loss"], *reversed(curve["loss"])],
            fill="toself",
            fillcolor="rgba(118,118,118,.18)",
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
        )
    drawn.add_scatter(
        x=curve["time_s"],
        y=curve["loss"],
        mode="lines",
        line={"color": GREY, "dash": "dash", "width": 2.2},
        hovertemplate="planned<br>%{x:.4~g} s, loss %{y:.4~g}<extra></extra>",
    )
    shown = [row for row in rows if row["time_s"] <= end_s]
    drawn.add_scatter(
        x=[row["time_s"] for row in shown],
        y=[row["loss"] for row in shown],
        mode="lines",
        line={"color": PALETTE[0], "width": 2.4},
        hovertemplate="measured<br>%{x:.4~g} s, loss %{y:.4~g}<extra></extra>",
    )
    drawn.update_layout(height=380, margin={"l": 60, "r": 22, "t": 8, "b": 46}, hovermode="closest")
    drawn.update_xaxes(title_text="time (s)", zeroline=False, range=[0, end_s])
    is_log = all(value > 0 for value in (*curve["loss"], *(row["loss"] for row in shown)))
    drawn.update_yaxes(title_text="loss", zeroline=False, automargin=True, type="log" if is_log else "linear")
    return plain(drawn)


def memory_line(found: PlannedRun) -> str:
    """Return predicted and measured peak memory; empty if one of them is not known."""
    planned = found.run.predicted.get("memory_bytes")
    measured = [value for value in found.run.record.get("peak_memory_bytes", {}).values() if value]
    if planned is None or not measured:
        return ""
    return f"Peak memory of a worker: {units.size(max(measured))}, planned {units.size(planned)}."


def grid_line(found: PlannedRun) -> str:
    """Return how exactly the step of the target is known, if evaluations are far apart."""
    steps = [row["step"] for row in found.run.history if row["loss"] is not None and row["step"] <= found.steps]
    gap = steps[-1] - steps[-2] if found.target_loss is not None and len(steps) > 1 else 0
    if gap <= _COARSE * found.steps:
        return ""
    return f"The run was evaluated every {gap} steps: the step of the target is known to within {gap}."


def section(found: PlannedRun, name: str) -> dict[str, Any]:
    """Return what the template needs for one run. name: of its figure."""
    return {
        "sentence": str(found),
        "strategy": found.run.strategy,
        "figure": name,
        "lines": lines(found),
        "drifts": drift_lines(found),
        "remarks": " ".join(filter(None, (memory_line(found), grid_line(found)))),
    }
