"""plan.html: the recommendation, the table of candidates, figures, warnings, and how to run the plan."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tacit.report import units
from tacit.report.figures import ACTIVITY_COLOURS
from tacit.report.page import fill_in, write_page
from tacit.report.plans.plan_figures import front_figure, times_figure
from tacit.report.plans.plan_rows import (
    ACTIVITIES,
    PlanRow,
    Table,
    interval_text,
    pareto_front,
    recommendation,
    rows_of,
)

MOST_ROWS: Final = 20
_MOST_BARS: Final = 10
_WIDE: Final = 0.12
"""The least share of time whose number stands in its part of a bar."""
_VISIBLE: Final = 5e-4


def write_plan_page(plan: Table, path: str | os.PathLike[str]) -> Path:
    """Write the page about a plan, the table of plan.json, to ``path``; return the path."""
    return write_page(render_plan(plan, Path(path).with_suffix(".toml").name), path)


def render_plan(plan: Table, file: str = "plan.toml") -> str:
    """Return the page as text; ``file``: the name of the plan's TOML file, for the commands."""
    rows = rows_of(plan)
    shown = [row for row in rows if row.number <= MOST_ROWS or row.is_best or row.is_baseline or row.table["is_kept"]]
    drawn = {"times": times_figure(shown, plan["lr"]), "front": front_figure(shown)}
    return fill_in(
        "plans/plan.html",
        {name: figure for name, figure in drawn.items() if figure},
        heading=recommendation(plan),
        why=plan["why"],
        facts=_facts(plan),
        has_times=any(row.interval is not None for row in rows),
        is_loss=plan["within_s"] is not None,
        lr=None if plan["lr"] is None else f"{plan['lr']:g}",
        rows=[_line(row) for row in shown],
        hidden=len(rows) - len(shown),
        front=[row.number for row in pareto_front(shown)],
        drawn={name for name, figure in drawn.items() if figure},
        bars=[_bar(row) for row in shown if row.number <= _MOST_BARS or row.is_best or row.is_baseline],
        activities={name: ACTIVITY_COLOURS[activity] for name, activity in ACTIVITIES.items()},
        warnings=plan["warnings"],
        commands=_commands(plan, file),
        profile=_profile(plan),
        settings=[(name, value) for name, value in plan["settings"].items() if value is not None],
    )


def _facts(plan: Table) -> list[tuple[str, str]]:
    target, within_s = plan["target_loss"], plan["within_s"]
    facts = [
        ("script", _script(plan)),
        ("workload", plan["settings"].get("workload", "")),
        ("target loss", "" if target is None else units.target(target)),
        ("within", "" if within_s is None else units.seconds(within_s)),
        ("objective", plan["objective"]),
        ("workers", str(plan["profile"]["cluster"]["workers"])),
        ("learning rate", "" if plan["lr"] is None else f"{plan['lr']:g}"),
        ("candidates", str(len(plan["rows"]))),
    ]
    return [(name, value) for name, value in facts if value]


def _line(row: PlanRow) -> dict[str, Any]:
    """Return a row of the table: texts, and numbers to sort by."""
    table, pace = row.table, row.table["pace"]
    own, tuned = (interval_text(one, is_loss=row.is_loss) for one in (row.own, row.tuned))
    sent = table["bytes_to_target"]
    rate = "" if table["best_lr"] is None else f"lr {table['best_lr']:g}"
    return {
        "number": row.number,
        "name": row.name,
        "is_best": row.is_best,
        "is_baseline": row.is_baseline,
        "remark": table["remark"] if row.own is None else "",
        "step": {"text": units.seconds(pace["step_s"]), "value": pace["step_s"]},
        "communication": {"text": units.share(pace["communication"]), "value": pace["communication"]},
        "own": {"text": own[0], "detail": own[1], "value": _median(row.own)},
        "tuned": {
            "text": tuned[0],
            "detail": " · ".join(filter(None, (tuned[1], rate))),
            "value": _median(row.tuned),
        },
        "sent": {
            "text": f"{units.size(pace['bytes_per_step'])}/step" if sent is None else units.size(sent),
            "value": "" if sent is None else sent,
        },
        "memory": {
            "text": "" if table["memory_bytes"] is None else units.size(table["memory_bytes"]),
            "value": "" if table["memory_bytes"] is None else table["memory_bytes"],
        },
        "fidelity": table["fidelity"],
    }


def _median(interval: Table | None) -> float | str:
    return "" if interval is None else float(interval["median"])


def _bar(row: PlanRow) -> dict[str, Any]:
    """Return where the time of a step goes, as one stacked bar."""
    parts = [
        {"name": name, "percent": f"{100 * share:.4g}", "text": units.share(share), "is_wide": share >= _WIDE}
        for name, share in row.shares.items()
        if share >= _VISIBLE
    ]
    description = ", ".join(f"{part['name']} {part['text']}" for part in parts)
    return {
        "number": row.number,
        "name": row.name,
        "step": units.seconds(row.table["pace"]["step_s"]),
        "parts": parts,
        "description": description,
    }


def _commands(plan: Table, file: str) -> str:
    """Return how to run the plan, on a workload and in a script."""
    best = plan["rows"][plan["best"]]
    workload, script = plan["settings"].get("workload"), _script(plan)
    lines = [f"tacit train --plan {file}" + (f" --workload '{workload}'" if workload else "") + " --out runs/planned"]
    if script:
        lines = [f"torchrun --nproc-per-node {len(best['ranks'])} {script}  # on one machine"]
    everyone = plan["profile"]["cluster"]["workers"]
    if len(best["ranks"]) < everyone:
        lines.append(f"# start it on the machines of ranks {_ranks(best['ranks'])} only")
    where = "# in the script:" if script else "# in a script of your own:"
    lines += ["", where, f'session = tacit.attach(model, optimizer, "{file}")']
    return "\n".join(lines)


def _script(plan: Table) -> str:
    """Return the script of a plan with its arguments; empty for a workload."""
    settings = plan["settings"]
    return shlex.join([settings["script"], *settings["arguments"]]) if "script" in settings else ""


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _profile(plan: Table) -> list[tuple[str, str]]:
    """Return the profile as pairs of names and texts, long lists abbreviated."""
    profile = plan["profile"]
    pairs = [*profile.get("job", {}).items(), *profile["cluster"].items()]
    texts = [(name, units.abbreviated(str(value))) for name, value in pairs if value not in (None, {}, [])]
    return [(name.replace("_", " "), text if len(text) <= 300 else f"{text[:299]}…") for name, text in texts]
