"""Save and print one run, simulated or real: its folder, its page, its numbers and a summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from tacit.record.files import write_text
from tacit.record.run import Run, has_rounds
from tacit.report import Comparison, Entry, write_report
from tacit.report import units as spelled
from tacit.report.planned import planned_run
from tacit.report.prediction import is_real
from tacit.report.verdict import missing_numbers


def keep(run: Run, folder: Path, screen: Console, json_file: Path | None, way_back: str | None = None) -> None:
    """Save ``run`` and its page into ``folder`` and its numbers into ``json_file``; print its summary.

    way_back: the command that makes the run again; None: with run.toml.
    """
    run.save(folder, overwrite=True)
    comparison = Comparison([Entry(run.strategy, [run])], run.workload, run.cluster, reproduce=run.toml())
    write_report(comparison, folder / "report.html")
    screen.print(f"{run.strategy} on {run.workload}, seed {run.seed}", style="bold", highlight=False, markup=False)
    shown = _readable(run)
    width = max(12, *(len(name) + 2 for name in shown))
    for name, value in shown.items():
        screen.print(f"  {name:<{width}}{value}", highlight=False, markup=False, soft_wrap=True)
    if (planned := planned_run(run)) is not None:
        screen.print(f"  {'plan':<{width}}{planned}", highlight=False, markup=False, soft_wrap=True)
    command = way_back or f"tacit {'train' if is_real(run) else 'simulate'} --config {folder / 'run.toml'}"
    screen.print(f"Report: {folder / 'report.html'} · run again: {command}", highlight=False, soft_wrap=True)
    if json_file is not None:
        write_text(json_file, json.dumps({**_described(run), "summary": run.summary()}, indent=1) + "\n")


def _described(run: Run) -> dict[str, Any]:
    return {
        "workload": run.workload,
        "strategy": run.strategy,
        "workers": run.workers,
        "steps": run.steps,
        "seed": run.seed,
        "digest": run.digest,
        "config": dict(run.config),
        "record": dict(run.record),
    }


def _target(facts: dict[str, Any]) -> str:
    """Return how a run with --until-loss ended."""
    if facts["best_loss"] is None:
        return f"loss {facts['loss']:.6g} not reached"
    when = f"at step {facts['step']:,}, after {spelled.seconds(facts['time_s'])}"
    if facts["is_reached"]:
        return f"loss {facts['loss']:.6g} reached {when}"
    return f"loss {facts['loss']:.6g} not reached; best loss {facts['best_loss']:.6g} {when}"


def _readable(run: Run) -> dict[str, str]:
    """Return the summary as formatted texts."""
    summary = run.summary()
    shown = {
        "status": run.status,
        **({"missing": missing} if (missing := missing_numbers(run)) else {}),
        "time": spelled.seconds(summary["time_s"]) + ("" if is_real(run) else " (virtual)"),
        "steps": f"{summary['steps']:,}",
        "gradients": f"{summary['gradients']:,}",
        "rounds": f"{summary['rounds']:,}" if has_rounds(run.trace.columns()) else "–",
        "sent": spelled.size(summary["bytes_sent"])
        + (f" in {summary['messages']:,} messages" if summary["messages"] else ""),
        "loss": "not measured" if summary["loss"] is None else f"{summary['loss']:.6g}",
        **({"target": _target(summary["target"])} if "target" in summary else {}),
        "computing": f"{summary['computing']:.0%} of the workers' time",
        **({"hooks": f"{summary['hooks']:.0%}"} if summary["hooks"] >= 0.005 else {}),
        "idle": f"{summary['idle']:.0%}"
        + (f", {summary['finished']:.0%} after the last step" if summary["finished"] >= 0.005 else ""),
        "digest": run.digest[:16],
    }
    if summary["metric"] is not None:
        shown[run.metric_name or "metric"] = f"{summary['metric']:.4g}"
    return shown
