"""Part 7: a script as a user has it is probed, planned and run; predicted next to measured.

The script is ``char_gpt.py``: a GPT over characters with AdamW, warm-up and cosine schedule, and clipped gradients. Its
steps compute, without pauses, on two hosts of one core each, at real-time priority. Two runs follow: that which the plan
recommends, and DDP.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import tacit
from benchmarks.fidelity.recording import hosts_of
from benchmarks.papers.common import table, target
from benchmarks.peer_loops.priority import PRIORITY
from benchmarks.plan.falling_link import finish, on_hosts
from benchmarks.plan.kept import kept
from benchmarks.plan.places import QUICK, TWO_100, Place
from benchmarks.plan.recording import not_run
from tacit.planning.plan import Plan
from tacit.record.reaching import row_reaching
from tests.runtime import namespaces

SCRIPT: Final = Path(__file__).with_name("char_gpt.py").resolve()
TEXT: Final = "tinyshakespeare.txt.gz"
ITERATIONS, LOSS, LOSS_OF_GENERATED, BUDGET_S = 400, 2.4, 1.9, 240.0
QUICK_ITERATIONS, QUICK_LOSS, QUICK_BUDGET_S = 40, 3.5, 10.0
PROBE_LIMIT_S, PLAN_LIMIT_S = 60.0, 300.0
Found = dict[str, Any]


def own_script(chosen: argparse.Namespace) -> Found:
    """A user's own script is probed, planned and run."""
    found = kept("own_script", chosen, lambda: _measured(chosen.data, is_quick=chosen.quick))
    if found is None:
        return {"targets": not_run({}, ["the user's script"]), "table": [], "setting": "not measured."}
    rows = [
        (
            f"{one['strategy']} on {one['workers']}",
            f"{one['planned_step_ms']:.1f}",
            f"{one['step_ms']:.1f}",
            _planned(one),
            "not reached" if one["reached_s"] is None else f"{one['reached_s']:.2f}",
            "" if one["reached_step"] is None else one["reached_step"],
        )
        for one in found["runs"]
    ]
    titles = ("run", "planned step (ms)", "step (ms)", "planned (s)", "measured (s)", "steps")
    return {
        "measured": found,
        "targets": _claims(found),
        "table": table(titles, rows),
        "setting": f"{SCRIPT.name}, {found['parameters']:,} parameters, {found['text']}, on {found['place']}; the loss is "
        f"the running mean of the losses that the script observes, at most {found['loss']:g}. It computes without "
        f"pauses; probe and runs have the priority {found['priority']}, each host on a core of its own. `tacit probe`, a "
        f"plan with the usual candidates ({found['simulated']} simulated), and the runs, each as a user starts it.",
    }


def _planned(one: Found) -> str:
    if one["planned_s"] is None:
        return "only the pace"
    return f"{one['planned_s']:.2f} ({one['low_s']:.2f} to {one['high_s']:.2f})"


def _claims(found: Found) -> list[Found]:
    probe_s, plan_s, runs = found["probe_s"], found["plan_s"], found["runs"]
    is_reached = all(one["reached_s"] is not None for one in runs)
    compared = [one for one in runs if one["reached_s"] is not None and one["planned_s"] is not None]
    inside = sum(one["low_s"] <= one["reached_s"] <= one["high_s"] for one in compared)
    shown = f"{runs[0]['strategy']} on {runs[0]['workers']}"
    return [
        target(
            "own script",
            f"a user's script is probed in {PROBE_LIMIT_S:.0f} s, planned in {PLAN_LIMIT_S / 60:.0f} minutes, and its "
            f"runs reach the loss",
            f"probed in {probe_s:.0f} s, planned in {plan_s:.0f} s: {shown}",
            probe_s <= PROBE_LIMIT_S and plan_s <= PLAN_LIMIT_S and is_reached,
        ),
        target(
            "own script, time",
            "the measured times to the loss are inside the planned ranges",
            f"{inside} of {len(runs)}",
            inside == len(runs),
        ),
    ]


def _measured(data: Path | None, *, is_quick: bool) -> Found:
    place = QUICK if is_quick else TWO_100
    text = None if data is None or is_quick or not (data / TEXT).is_file() else (data / TEXT).resolve()
    wanted = LOSS_OF_GENERATED if text is None else LOSS
    steps, loss, budget_s = (
        (QUICK_ITERATIONS, QUICK_LOSS, QUICK_BUDGET_S) if is_quick else (ITERATIONS, wanted, BUDGET_S)
    )
    arguments = ["--max-iters", str(steps), *([] if text is None else ["--text", str(text)])]
    with tempfile.TemporaryDirectory() as scratch, hosts_of(place) as hosts:
        folder = Path(scratch)
        shutil.copy(SCRIPT, folder)
        begun_s = time.perf_counter()
        words = ["probe", SCRIPT.name, "--out", "profile", *(["--budget", "20s"] if is_quick else []), "--"]
        finish(on_hosts(hosts, [*words, *arguments], folder, prefixes=_prefixes(place)))
        probe_s, begun_s = time.perf_counter() - begun_s, time.perf_counter()
        profile = tacit.Profile.load(folder / "profile")
        plan = tacit.plan(
            profile, folder / SCRIPT.name, arguments, target_loss=loss, budget_s=budget_s, jobs=1 if is_quick else 2
        )
        plan_s = time.perf_counter() - begun_s
        print(f"    planned the script in {plan_s:.0f} s: {plan.why}", flush=True)
        rows = [plan.best] if plan.best is plan.baseline else [plan.best, plan.baseline]
        runs = [_run(replace(plan, best=row), hosts, folder, arguments, _prefixes(place)) for row in rows]
        return {
            "place": str(place),
            "priority": "usual" if place.is_quick else f"SCHED_RR {PRIORITY}",
            "text": "generated text" if text is None else text.name,
            "loss": loss,
            "parameters": profile.parameters,
            "probe_s": probe_s,
            "plan_s": plan_s,
            "why": plan.why,
            "warnings": list(plan.warnings),
            "simulated": sum(bool(row.trials) for row in plan.rows),
            "runs": runs,
        }


def _prefixes(place: Place) -> list[tuple[str, ...]]:
    """Return the words before the command of each host: a core of its own, and real-time priority."""
    if place.is_quick:
        return [()] * place.hosts
    cores = sorted(os.sched_getaffinity(0))
    return [
        ("taskset", "-c", str(cores[rank % len(cores)]), "chrt", "-r", str(PRIORITY)) for rank in range(place.hosts)
    ]


def _run(
    plan: Plan,
    hosts: list[namespaces.Host],
    folder: Path,
    arguments: list[str],
    prefixes: list[tuple[str, ...]],
) -> Found:
    """Run the script with the plan's best row on the hosts that take part, as a user starts it."""
    plan.save(folder / "plan.toml")
    chosen = [hosts[rank] for rank in plan.best.ranks]
    words, program = [SCRIPT.name, *arguments, "--out", "run"], (sys.executable,)
    finish(on_hosts(chosen, words, folder, program, [prefixes[rank] for rank in plan.best.ranks]))
    run, predicted = tacit.Run.load(folder / "run"), plan.prediction
    reached, summary = row_reaching(run, plan.target_loss), run.summary()
    return {
        "strategy": run.strategy,
        "workers": run.workers,
        "planned_step_ms": 1e3 * predicted["step_s"],
        "step_ms": 1e3 * summary["time_s"] / summary["steps"],
        "planned_s": predicted.get("time_median_s"),
        "low_s": predicted.get("time_low_s"),
        "high_s": predicted.get("time_high_s"),
        "planned_steps": predicted.get("steps"),
        "reached_s": None if reached is None else reached["time_s"],
        "reached_step": None if reached is None else reached["step"],
        "drifts": [one["text"] for one in run.record.get("drift", [])],
    }
