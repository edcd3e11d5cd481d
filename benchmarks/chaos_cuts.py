"""Cuts of the network: one of four workers, each in a network namespace, is cut off for 10 s and for 60 s.

Either the others go on and the cut worker takes part again, or every worker is told; ``timeout_s`` of ``tacit.attach``
is 20 s. Both launchers: ``tacit launch``, which goes on without lost workers, and torchrun.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import tacit
from tacit.chaos import ChaosFault, ChaosPlan, run_chaos
from tacit.chaos.records import Life, read_lives
from tacit.chaos.run import LAUNCHERS
from tacit.errors import TacitError

WORKERS, SEAT, AT_S, TIMEOUT_S = 4, 2, 5.0, 20.0
AFTER_S = 15.0  # of the run after the cut
LENGTHS_S = (10.0, 60.0)
SLACK_S = 2.0
CASES = [(launcher, length_s) for launcher in LAUNCHERS for length_s in LENGTHS_S]
FAMILIES: dict[str, tacit.Strategy[Any]] = {
    "AllReduce": tacit.AllReduce(),
    "LocalSGD": tacit.LocalSGD(period=tacit.Every(8)),
    "EF21": tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.05), feedback=tacit.EF21()),
    "DPSGD": tacit.DPSGD(),
    "SwarmSGD": tacit.SwarmSGD(local_steps=4),
    "PullSwarm": tacit.PullSwarm(local_steps=4),
    "KSync": tacit.KSync(k=2),
    "KSync of all": tacit.KSync(k=WORKERS),
    "KAsync": tacit.KAsync(k=1),
    "shards": tacit.KAsync(k=1, shards=2),
}


def measure(name: str, launcher: str, length_s: float, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the row of one run, which is made unless it is in ``folder``."""
    out = folder / f"cut-{name.replace(' ', '-')}-{launcher.split()[0]}-{length_s:g}"
    if not (out / "report.json").exists():
        shutil.rmtree(out, ignore_errors=True)
        cut = ChaosFault(kind="cut", seats=(SEAT,), at_s=AT_S, for_s=length_s)
        plan = ChaosPlan(workers=WORKERS, for_s=AT_S + length_s + AFTER_S, faults=(cut,))
        try:
            run_chaos(plan, FAMILIES[name], out, timeout_s=TIMEOUT_S, launcher=launcher, undisturbed=False, say=say)
        except TacitError as error:
            return {"did_not_start": str(error)}
    report = json.loads((out / "report.json").read_text())
    row = row_of(read_lives(out / "records"), report["faults"], report["is_hanging"])
    return row | {"exit_code": report["exit_code"], "left_processes": report["left_processes"]}


def row_of(lives: list[Life], faults: list[dict[str, Any]], is_hanging: bool) -> dict[str, Any]:
    """Return what became of the run: how long the others paused, when the cut worker was back, who was told when."""
    if not faults:
        return {"outcome": "ended before the cut", "is_fine": False}
    cut_s, mended_s = faults[0]["at_s"], faults[0]["until_s"]
    told: dict[int, float] = {}
    for life in lives:
        if (error := life.event("error")) is not None:
            told.setdefault(life.seat, error["time_s"] - cut_s)
    finished = sorted({life.seat for life in lives if life.event("done") is not None})
    told_s = max((time_s for seat, time_s in told.items() if seat != SEAT), default=None)
    back = [row["time_s"] - mended_s for life in lives if life.seat == SEAT for row in life.steps]
    first = [life for life in lives if life.seat != SEAT and life.life == 1]
    outcome, is_fine = _outcome(finished, told_s, is_hanging)
    return {
        "outcome": outcome,
        "is_fine": is_fine,
        "longest_pause_of_others_s": max((pause_after(life, cut_s) for life in first), default=None),
        "back_after_s": min((time_s for time_s in back if time_s > 0), default=None),
        "others_told_after_s": told_s,
        "cut_worker_told_after_s": told.get(SEAT),
        "finished": finished,
        "errors": sorted(
            {f"{error['kind']}: {error['text'][:120]}" for life in lives if (error := life.event("error"))}
        ),
    }


def _outcome(finished: list[int], told_s: float | None, is_hanging: bool) -> tuple[str, bool]:
    """Return what became of the run in a few words, and whether it is what the goal asks for."""
    others = [seat for seat in range(WORKERS) if seat != SEAT]
    if is_hanging:
        return "hangs", False
    if told_s is not None:
        anew = ", begins anew" if {*others} <= {*finished} else ""
        return f"told{anew}", told_s <= TIMEOUT_S + SLACK_S
    if not {*others} <= {*finished}:
        return "ends without an error", False
    return ("goes on with all" if SEAT in finished else "goes on without it"), True


def pause_after(life: Life, at_s: float) -> float:
    """Return the longest time between two steps of which the second follows ``at_s``."""
    times_s = [row["time_s"] for row in life.steps]
    return max((b - a for a, b in pairwise(times_s) if b > at_s), default=0.0)


def table(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Return the rows as Markdown."""
    lines = [
        f"One of {WORKERS} workers, each in a network namespace, is cut off; `timeout_s={TIMEOUT_S:g}`. *Pause*: longest "
        "time between two steps of another worker. *Back*: from the end of the cut to the next step of the cut worker. "
        f"*Told*: from the cut to the last error of the others, at most {TIMEOUT_S + SLACK_S:g} s, and to that of the "
        "cut worker, which reaches no store meanwhile.",
        "",
        "| family | launcher | cut, s | outcome | pause, s | back, s | others told, s | cut worker told, s |",
        "|---|---|---:|---|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        cells = ["longest_pause_of_others_s", "back_after_s", "others_told_after_s", "cut_worker_told_after_s"]
        numbers = ["" if row.get(cell) is None else f"{row[cell]:.1f}" for cell in cells]
        outcome = row.get("outcome", "did not start") + ("" if row.get("is_fine") else " **(misses the goal)**")
        lines.append(f"| {' | '.join([*name.split(', '), outcome, *numbers])} |")
    return lines
