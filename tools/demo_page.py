"""Write the page of `make demo`: a comparison, a plan and a run next to its plan, each with a link to its own report.

    python -m tools.demo_page demo        reads demo/compare, demo/plan.json and demo/run; writes demo/report.html

Every number is read from these files. The page loads nothing from the network.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import tacit.report.page
from tacit import Run
from tacit.record.files import write_text
from tacit.report import Comparison, Entry, units, verdict
from tacit.report.figures import GREY, PALETTE
from tacit.report.planned import planned_run
from tacit.report.planned.page_parts import HEADINGS, lines, section
from tacit.report.plans.plan_rows import interval_text, recommendation, rows_of

HERE: Final = Path(__file__).parent
CSS: Final = Path(tacit.report.page.__file__).parent / "page.css"
WIDTH, HEIGHT = 640, 260
LEFT, BOTTOM = 52, 30
MOST_ROWS: Final = 6


def main(folder: Path) -> None:
    """Read the results in ``folder`` and write its page."""
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("demo_page.html").render(
        css=CSS.read_text(encoding="utf-8"),
        compared=compared(folder / "compare"),
        plan=planned(plan),
        run=measured(folder),
    )
    write_text(folder / "report.html", page)
    print(f"Wrote {folder / 'report.html'}. Open it in a browser.")


def compared(folder: Path) -> dict[str, Any]:
    """Return the verdict of the comparison, and a bar per strategy: its time to the common loss."""
    described = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    labels = [one["label"] for one in described["strategies"]]
    runs = [Run.load(path.parent) for path in sorted((folder / "runs").glob("*/run.json"))]
    entries = [Entry(label, [run for run in runs if run.strategy == label]) for label in labels]
    comparison = Comparison.of(entries, described["target_loss"])
    times_s = [row.time_to_target_s.mean for row in comparison.rows]
    longest_s = max((time_s for time_s in times_s if time_s is not None), default=1.0)
    bars = [
        {
            "name": row.label,
            "colour": GREY if row.label == comparison.baseline else PALETTE[2],
            "percent": 0.0 if time_s is None else 100 * time_s / longest_s,
            "time": "not reached" if time_s is None else units.seconds(time_s),
            "sent": "" if row.bytes_to_target.mean is None else f"{units.size(row.bytes_to_target.mean)} sent",
        }
        for row, time_s in zip(comparison.rows, times_s, strict=True)
    ]
    target = "" if comparison.target is None else units.target(comparison.target)
    run = runs[0]
    return {
        "verdict": verdict(comparison),
        "bars": bars,
        "target": target,
        "workload": run.workload,
        "workers": run.workers,
    }


def planned(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the recommendation and the first rows of the table of the plan."""
    rows = rows_of(plan)
    shown = [row for row in rows if row.number <= MOST_ROWS or row.is_best or row.is_baseline]
    return {
        "recommendation": recommendation(plan),
        "why": plan["why"],
        "warnings": plan["warnings"],
        "workload": plan["settings"]["workload"],
        "target": "" if plan["target_loss"] is None else units.target(plan["target_loss"]),
        "rows": [
            {
                "name": row.name,
                "is_best": row.is_best,
                "is_baseline": row.is_baseline,
                "step": units.seconds(row.table["pace"]["step_s"]),
                "communication": units.share(row.table["pace"]["communication"]),
                "time": _time_text(row.table["time_s"]) or row.table["remark"],
            }
            for row in shown
        ],
    }


def _time_text(interval: dict[str, Any] | None) -> str:
    median, span = interval_text(interval)
    return f"{median} ({span})" if span else median


def measured(folder: Path) -> dict[str, Any]:
    """Return the run next to its plan: the sentence, the table of causes and the two curves."""
    run = Run.load(folder / "run")
    found = planned_run(run)
    if found is None:
        return {"strategy": run.strategy, "sentence": "", "lines": [], "headings": (), "curves": [], "remarks": ""}
    curve = run.predicted.get("curve") or {"time_s": [], "loss": []}
    losses = [(row["time_s"], row["loss"]) for row in run.history if row["loss"] is not None]
    until_s = 1.3 * max(found.measured_s, found.planned_s)
    return {
        "strategy": run.strategy,
        "sentence": str(found),
        "lines": lines(found),
        "headings": HEADINGS,
        "remarks": section(found, "")["remarks"],
        "curves": drawn(
            [
                ("planned", GREY, "6 5", list(zip(curve["time_s"], curve["loss"], strict=True))),
                ("measured", PALETTE[0], "", losses),
            ],
            until_s,
        ),
    }


def drawn(curves: Sequence[tuple[str, str, str, list[tuple[float, float]]]], until_s: float) -> dict[str, Any]:
    """Return polylines and ticks of losses against time, the losses on a log axis."""
    shown = [
        (name, colour, dash, [p for p in points if p[0] <= until_s and p[1] > 0])
        for name, colour, dash, points in curves
    ]
    values = [math.log10(loss) for *_, points in shown for _, loss in points]
    if not values:
        return {}
    low, high = min(values) - 0.05, max(values) + 0.05

    def x(time_s: float) -> float:
        return LEFT + (WIDTH - LEFT - 8) * time_s / until_s

    def y(loss: float) -> float:
        return 8 + (HEIGHT - BOTTOM - 8) * (high - math.log10(loss)) / (high - low)

    step_s = next(n * 10.0**e for e in range(-4, 6) for n in (1, 2, 5) if n * 10.0**e >= until_s / 7)
    marks = [n * 10.0**e for e in range(-6, 4) for n in (1, 2, 5) if low <= math.log10(n * 10.0**e) <= high]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "lines": [
            {
                "name": name,
                "colour": colour,
                "dash": dash,
                "points": " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in points),
            }
            for name, colour, dash, points in shown
        ],
        "times": [(x(i * step_s), f"{i * step_s:.4g} s") for i in range(int(until_s / step_s) + 1)],
        "losses": [(y(mark), f"{mark:.4g}") for mark in marks],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
