"""The report of a run with faults: a page to read, the numbers as JSON, and the same faults for the simulator."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.record.files import toml_text, write_text
from tacit.record.versions import versions

if TYPE_CHECKING:
    from tacit.chaos.run import ChaosRun


def write_report(run: ChaosRun, out: Path) -> None:
    """Write ``report.md``, ``report.json`` and ``simulator.toml`` into ``out``."""
    write_text(out / "report.json", json.dumps(numbers(run), indent=1) + "\n")
    write_text(out / "report.md", page(run))
    simulated = {
        "strategy": run.strategy,
        "cluster": {"workers": run.plan.workers, "faults": [str(fault) for fault in run.plan.simulated()]},
    }
    comment = "The same faults in the simulator: tacit simulate --config simulator.toml"
    write_text(out / "simulator.toml", toml_text(simulated, comment=comment))


def numbers(run: ChaosRun) -> dict[str, Any]:
    """Return everything as plain values."""
    return {
        "strategy": run.strategy,
        "workers": run.plan.workers,
        "seed": run.plan.seed,
        "exit_code": run.exit_code,
        "is_hanging": run.is_hanging,
        "left_processes": run.left_processes,
        "undisturbed_loss": run.undisturbed_loss,
        "recovery_s": recovery(run.found["faults"]),
        "versions": versions(),
        **run.found,
    }


def recovery(faults: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return median and worst recovery by kind of fault."""
    kinds = sorted({fault["kind"] for fault in faults})
    found = {}
    for kind in kinds:
        times = [fault["recovery_s"] for fault in faults if fault["kind"] == kind and fault["seats"]]
        backs = [fault["return_s"] for fault in faults if fault["kind"] == kind and fault.get("return_s") is not None]
        if times:
            found[kind] = {"count": len(times), "median": statistics.median(times), "worst": max(times)}
        if backs:
            found[kind] |= {"return_median": statistics.median(backs), "return_worst": max(backs)}
    return found


def verdict(run: ChaosRun) -> str:
    """Return how the run ended, in one sentence."""
    found = run.found
    if run.is_hanging:
        return "The run hung, and was ended."
    if run.exit_code != 0:
        names = sorted({f"{error['kind']}: {error['text'][:120]}" for error in found["errors"]})
        return f"The run ended with exit code {run.exit_code}. {' | '.join(names[:4])}"
    compared = found["rounds_compared"]
    rounds = "" if compared is None else f" {len(found['unequal_rounds'])} of {compared} compared rounds were unequal."
    models = "one model" if found["final_models"] == 1 else f"{found['final_models']} different models"
    return f"{len(found['finished_seats'])} of {run.plan.workers} workers finished with {models}.{rounds}"


def page(run: ChaosRun) -> str:
    """Return the report as Markdown."""
    found, lines = run.found, [f"# {run.strategy}, {run.plan.workers} workers", "", verdict(run), ""]
    loss = found["loss"]
    calm = run.undisturbed_loss
    lines += [
        f"- loss {'–' if loss is None else f'{loss:.4f}'}, undisturbed {'–' if calm is None else f'{calm:.4f}'}",
        f"- {len(found['faults'])} faults, {found['restarts']} restarts, {found['wall_s']:.1f} s",
        f"- steps that a worker took twice: {found['repeated_steps']}",
        f"- processes left after ten seconds: {run.left_processes}",
        "",
        "| fault | at, s | hit | others stalled | recovery, s | back after, s | steps missed |",
        "|---|---|---|---|---|---|---|",
    ]
    first_s = found["faults"][0]["at_s"] if found["faults"] else 0.0
    for number, fault in enumerate(found["faults"], 1):
        hit = ", ".join(map(str, fault["seats"])) or ("all" if fault["kind"] == "fill" else "none there")
        back = "" if fault.get("return_s") is None else f"{fault['return_s']:.2f}"
        missed = "" if fault.get("missed_steps") is None else f"{fault['missed_steps']}"
        lines.append(
            f"| {number} {fault['fault']} | {fault['at_s'] - first_s:.1f} | {hit} | {fault['others_stalled']} | "
            f"{fault['recovery_s']:.2f} | {back} | {missed} |"
        )
    if found["errors"]:
        lines += ["", "Errors:", ""]
        lines += [
            f"- worker {one['seat']}, life {one['life']}: {one['kind']}: {one['text']}" for one in found["errors"]
        ]
    return "\n".join(lines) + "\n"
