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
        "cluster": {
            "workers": run.plan.workers,
            "min_workers": run.plan.min_workers,
            "faults": [str(fault) for fault in run.plan.simulated()],
        },
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
        "not_injected": not_injected(run.found["faults"]),
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


def not_injected(faults: Sequence[dict[str, Any]]) -> int:
    """Return how many faults of the plan did not happen: they waited until the end, or nearly."""
    return sum(not fault["seats"] and fault["kind"] != "fill" for fault in faults)


def counted(number: int, noun: str) -> str:
    """Return "1 fault" or "2 faults"."""
    return f"{number} {noun}{'s' * (number != 1)}"


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
    return f"{len(found['finished_seats'])} of {counted(run.plan.workers, 'worker')} finished with {models}.{rounds}"


def page(run: ChaosRun) -> str:
    """Return the report as Markdown."""
    found, lines = run.found, [f"# {run.strategy}, {counted(run.plan.workers, 'worker')}", "", verdict(run), ""]
    own = "–" if found["loss"] is None else f"{found['loss']:.4f}"
    calm = "not measured" if run.undisturbed_loss is None else f"{run.undisturbed_loss:.4f}"
    missing = not_injected(found["faults"])
    happened = f"{counted(len(found['faults']), 'fault')}{f', of which {missing} did not happen' if missing else ''}"
    lines += [
        f"- loss: {own}; of the same run without faults: {calm}",
        f"- {happened}, {counted(found['restarts'], 'restart')}, {found['wall_s']:.1f} s",
        *(_summary(kind, times) for kind, times in recovery(found["faults"]).items()),
        f"- steps that a worker took twice, because it had lost them: {found['repeated_steps']}",
        f"- processes left ten seconds after the end: {run.left_processes}",
        "",
    ]
    if found["faults"]:
        lines += [
            "| fault | workers hit | others that paused | recovery, s | back after, s | steps missed |",
            "|---|---|---:|---:|---:|---:|",
            *(_row(number, fault) for number, fault in enumerate(found["faults"], 1)),
            "",
            "*Recovery*: from the fault until the others step again; 0 where nobody paused. *Back after*: from the "
            "kill to the first step of the worker's next life. *Steps missed*: those of the others meanwhile.",
        ]
    if found["errors"]:
        lines += ["", "Errors:", ""]
        lines += [
            f"- worker {one['seat']}, life {one['life']}: {one['kind']}: {one['text']}" for one in found["errors"]
        ]
    return "\n".join(lines) + "\n"


def _summary(kind: str, times: dict[str, float]) -> str:
    count, returned = times["count"], ""
    if "return_median" in times:
        returned = f"; back after {times['return_median']:.2f} s, at most {times['return_worst']:.2f} s"
    recovered = f"median recovery {times['median']:.2f} s, at most {times['worst']:.2f} s"
    return f"- {kind}, {counted(int(count), 'time')}: {recovered}{returned}"


def _row(number: int, fault: dict[str, Any]) -> str:
    hit = ", ".join(map(str, fault["seats"])) or ("all" if fault["kind"] == "fill" else "none: it waited until the end")
    back = "" if fault.get("return_s") is None else f"{fault['return_s']:.2f}"
    missed = "" if fault.get("missed_steps") is None else f"{fault['missed_steps']}"
    cells = [
        f"{number} {fault['fault']}",
        hit,
        f"{fault['others_stalled']}",
        f"{fault['recovery_s']:.2f}",
        back,
        missed,
    ]
    return f"| {' | '.join(cells)} |"
