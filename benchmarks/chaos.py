"""Every family under drawn faults: hangs, unequal models, recovery times, and the loss beside that of undisturbed runs.

    OMP_NUM_THREADS=1 python -m benchmarks.chaos [--only LocalSGD] [--seeds 0,1] [--workers 8] [--for 320]
    [--interval 4] [--folder build/chaos] [--out benchmarks/results/chaos.json]
    python -m benchmarks.chaos --cuts [--only LocalSGD]       one of four workers is cut off for 10 s and for 60 s; as root

Each run is ``tacit chaos``: kills of one worker and of two, stops up to 6 s, slow workers. With the default interval a
run has about 70 faults. torchft's LocalSGD runs under the plan of ours, if ``python -m benchmarks.peers --install`` has
made its environment. A run that takes no step for 45 s counts as hanging and is ended.

A run whose report is in FOLDER is not repeated, so a benchmark that was stopped continues. OUT is written after every
run, and a table beside it as Markdown; runs and cuts that are in OUT and not asked for stay. The times hold for the
machine and its load, which the result names.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import tacit
from benchmarks import chaos_cuts, chaos_torchft
from tacit.chaos import draw_plan, run_chaos
from tacit.core.strategy import shards_of
from tacit.errors import TacitError
from tacit.record.versions import versions

PERIOD = 8
STEP_S = 0.08  # eight workers of two busy cores have time left, also while others use the cores
FAMILIES: dict[str, tacit.Strategy[Any]] = {
    "AllReduce": tacit.AllReduce(),
    "LocalSGD": tacit.LocalSGD(period=tacit.Every(PERIOD)),
    "VariancePeriod": tacit.LocalSGD(period=tacit.VariancePeriod(initial=4)),
    "overlapped": tacit.LocalSGD(period=tacit.Every(8), overlap_steps=2),
    "outer": tacit.LocalSGD(period=tacit.Every(8), outer=tacit.OuterSGD(lr=0.7, momentum=0.9)),
    "compressed": tacit.LocalSGD(period=tacit.Every(8), compressor=tacit.QSGD(bits=8)),
    "EF21": tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.25), feedback=tacit.EF21()),
    "ErrorFeedback": tacit.CompressedGradient(compressor=tacit.Sign(), feedback=tacit.ErrorFeedback()),
    "DPSGD": tacit.DPSGD(),
    "SwarmSGD": tacit.SwarmSGD(local_steps=4),
    "KSync": tacit.KSync(k=2),
    "KAsync": tacit.KAsync(k=1),
    "shards": tacit.KAsync(k=1, shards=2),
}
TORCHFT = "torchft LocalSGD"


def measure(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the report of one run, which is made unless it is there."""
    out = folder_of(name, seed, options)
    report = out / "report.json"
    if not report.exists():
        shutil.rmtree(out, ignore_errors=True)
        say = partial(tell, f"{name}, seed {seed}")
        strategy = FAMILIES[name.removeprefix("torchft ")]
        plan = draw_plan(
            seed,
            workers=options.workers,
            for_s=options.for_s,
            interval_s=options.interval,
            spared=range(shards_of(strategy)),
        )
        try:
            if name == TORCHFT:
                python = chaos_torchft.python_of(options.environments)
                assert python is not None
                chaos_torchft.run_torchft(plan, out, python, period=PERIOD, seed=seed, step_s=STEP_S, say=say)
            else:
                run_chaos(plan, strategy, out, seed=seed, step_s=STEP_S, say=say)
        except TacitError as error:
            return {"did_not_start": str(error)}
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def folder_of(name: str, seed: int, options: argparse.Namespace) -> Path:
    folder: Path = options.folder
    return folder / f"{name.replace(' ', '-')}-{seed}"


def tell(what: str, text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}: {text}", flush=True)


def row_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return what the table shows of a report."""
    if "did_not_start" in found:
        return found
    return {
        "faults": len([fault for fault in found["faults"] if fault["seats"]]),
        "exit_code": found["exit_code"],
        "is_hanging": found["is_hanging"],
        "finished": len(found["finished_seats"]),
        "workers": found["workers"],
        "final_models": found["final_models"],
        "rounds_compared": found["rounds_compared"],
        "unequal_rounds": len(found["unequal_rounds"]),
        "restarts": found["restarts"],
        "repeated_steps": found["repeated_steps"],
        "loss": found["loss"],
        "undisturbed_loss": found["undisturbed_loss"],
        "recovery_s": found["recovery_s"],
        "wall_s": found["wall_s"],
        "left_processes": found["left_processes"],
        "errors": sorted({f"{one['kind']}: {one['text'][:160]}" for one in found["errors"]}),
    }


def table(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Return the rows as Markdown."""
    lines = [
        "Each run is a training with drawn faults, and the same one without. *Recovery*: seconds from a fault until the "
        "others step again, 0 where nobody paused. *Back*: seconds from a kill to the first step of the worker's next "
        "life. *Unequal*: compared steps after which two workers' models differ. *Repeated*: steps that a worker took "
        "twice, because it had lost them.",
        "",
        "| run | faults | end | finished | unequal | repeated | loss (undisturbed) | recovery, kill: median, worst | "
        "recovery, stop: median, worst | back: median, worst |",
        "|---|---:|---|---:|---:|---:|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "did_not_start" in row:
            lines.append(f"| {name} | | did not start | | | | | | | |")
            continue
        compared = row["rounds_compared"]
        unequal = "–" if compared is None else f"{row['unequal_rounds']} of {compared}"
        end = "**hangs**" if row["is_hanging"] else "" if row["exit_code"] == 0 else f"**exit code {row['exit_code']}**"
        models = "" if row["final_models"] == 1 else f"{row['final_models']} models"
        numbers = row["recovery_s"]
        cells = [
            name,
            f"{row['faults']}",
            ", ".join(filter(None, [end, models])) or "one model",
            f"{row['finished']} of {row['workers']}",
            unequal,
            f"{row['repeated_steps']}",
            f"{_number(row['loss'], 4)} ({_number(row['undisturbed_loss'], 4)})",
            _pair(numbers.get("kill", {}), "median", "worst"),
            _pair(numbers.get("stop", {}), "median", "worst"),
            _pair(numbers.get("kill", {}), "return_median", "return_worst"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    errors = [f"- {name}: {error}" for name, row in rows.items() for error in row.get("errors", ())]
    return [*lines, "", "Errors of workers:", "", *errors] if errors else lines


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _pair(numbers: dict[str, float], *names: str) -> str:
    return ", ".join(_number(numbers[name]) for name in names) if names[0] in numbers else "–"


def write(out: Path | None, part: str, command: str, rows: dict[str, Any]) -> None:
    """Add the rows of a part to the results, and write the page."""
    if out is None:
        return
    results = json.loads(out.read_text()) if out.exists() else {}
    kept = results.get(part, {}).get("rows", {})
    results[part] = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[1], 1),
        "versions": versions(),
        "rows": {**kept, **rows},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    out.with_suffix(".md").write_text(page(results))


def page(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = ["# Runs with faults", ""]
    for part, title, make in (("runs", "Drawn faults", table), ("cuts", "Cuts of the network", chaos_cuts.table)):
        if part in results:
            found = results[part]
            about = f"`{found['command']}`, {found['date']}; {found['cores']} cores, load {found['load']}, "
            about += f"torch {found['versions']['torch']}."
            lines += [f"## {title}", "", about, "", *make(found["rows"]), ""]
    return "\n".join(lines)


def go_through(
    cases: dict[str, Callable[[], dict[str, Any]]], minutes: float, write_rows: Callable[[dict[str, Any]], None]
) -> None:
    """Measure the cases one after the other, and write after each. minutes: that all of them take."""
    tell("begin", f"{len(cases)} runs, at most {minutes:.0f} minutes")
    rows: dict[str, Any] = {}
    for number, (name, measured) in enumerate(cases.items(), 1):
        try:
            rows[name] = measured()
        except Exception as error:  # noqa: BLE001 - the others are measured all the same
            traceback.print_exc()
            rows[name] = {"did_not_start": f"{type(error).__name__}: {error}"}
        tell(f"{number} of {len(cases)}, {name}", json.dumps(rows[name]))
        write_rows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*{**FAMILIES, TORCHFT: None, **chaos_cuts.FAMILIES}])
    parser.add_argument("--cuts", action="store_true", help="cut a worker off, instead of drawn faults")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--for", dest="for_s", type=float, default=320.0)
    parser.add_argument("--interval", type=float, default=4.0)
    parser.add_argument("--folder", type=Path, default=Path("build/chaos"))
    parser.add_argument("--environments", type=Path, default=Path("/tmp/peers"), help="where torchft's environment is")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the launcher, and with it the workers
    (cuts if options.cuts else drawn_faults)(options)


def drawn_faults(options: argparse.Namespace) -> None:
    names = options.only or [*FAMILIES, TORCHFT]
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if TORCHFT in names and chaos_torchft.python_of(options.environments) is None:
        tell(TORCHFT, "left out: python -m benchmarks.peers --install makes its environment")
        names = [name for name in names if name != TORCHFT]
    runs = [(name, seed) for seed in seeds for name in names]
    missing = [run for run in runs if not (folder_of(*run, options) / "report.json").exists()]
    command = f"python -m benchmarks.chaos --workers {options.workers} --for {options.for_s:g} "
    command += f"--interval {options.interval:g} --seeds {options.seeds}"
    cases = {f"{name}, seed {seed}": lambda n=name, s=seed: row_of(measure(n, s, options)) for name, seed in runs}
    go_through(cases, len(missing) * options.for_s * 2 / 60, lambda rows: write(options.out, "runs", command, rows))


def cuts(options: argparse.Namespace) -> None:
    cases = {
        f"{name}, {launcher}, {length_s:g}": lambda n=name, one=launcher, s=length_s: chaos_cuts.measure(
            n, one, s, options.folder, partial(tell, f"{n}, {one}, {s:g} s")
        )
        for name in options.only or chaos_cuts.FAMILIES
        for launcher, length_s in chaos_cuts.CASES
    }
    command = "python -m benchmarks.chaos --cuts"
    minutes = sum(length_s + 60 for _, length_s in chaos_cuts.CASES) * len(cases) / len(chaos_cuts.CASES) / 60
    go_through(cases, minutes, lambda rows: write(options.out, "cuts", command, rows))


if __name__ == "__main__":
    main()
