"""Every family under drawn faults: hangs, unequal models, recovery times, and the loss beside that of undisturbed runs.

    OMP_NUM_THREADS=1 python -m benchmarks.chaos [--only LocalSGD] [--seeds 0,1] [--workers 8] [--for 320]
    [--interval 4] [--folder build/chaos] [--out benchmarks/results/chaos.json]

Each run is ``tacit chaos``: kills of one worker and of two, stops up to 6 s, slow workers. With the default interval a
run has about 70 faults. A run whose report is in FOLDER is not repeated, so a benchmark that was stopped continues. The
times hold for the machine and its load, which the result names.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import tacit
from tacit.chaos import draw_plan, run_chaos
from tacit.core.strategy import shards_of
from tacit.errors import TacitError
from tacit.record.versions import versions

FAMILIES: dict[str, tacit.Strategy[Any]] = {
    "AllReduce": tacit.AllReduce(),
    "LocalSGD": tacit.LocalSGD(period=tacit.Every(8)),
    "VariancePeriod": tacit.LocalSGD(period=tacit.VariancePeriod(initial=4)),
    "overlapped": tacit.LocalSGD(period=tacit.Every(8), overlap_steps=2),
    "outer": tacit.LocalSGD(period=tacit.Every(8), outer=tacit.OuterSGD(lr=0.7, momentum=0.9)),
    "compressed": tacit.LocalSGD(period=tacit.Every(8), compressor=tacit.QSGD(bits=8)),
    "EF21": tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.05), feedback=tacit.EF21()),
    "ErrorFeedback": tacit.CompressedGradient(compressor=tacit.Sign(), feedback=tacit.ErrorFeedback()),
    "DPSGD": tacit.DPSGD(),
    "SwarmSGD": tacit.SwarmSGD(local_steps=4),
    "KSync": tacit.KSync(k=2),
    "KAsync": tacit.KAsync(k=1),
    "shards": tacit.KAsync(k=1, shards=2),
}


def measure(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the report of one run, which is made unless it is there."""
    out, strategy = options.folder / f"{name}-{seed}", FAMILIES[name]
    report = out / "report.json"
    if not report.exists():
        shutil.rmtree(out, ignore_errors=True)
        plan = draw_plan(
            seed,
            workers=options.workers,
            for_s=options.for_s,
            interval_s=options.interval,
            spared=range(shards_of(strategy)),
        )
        try:
            run_chaos(
                plan, strategy, out, seed=seed, say=lambda text: print(f"{name}, seed {seed}: {text}", flush=True)
            )
        except TacitError as error:
            return {"did_not_start": str(error)}
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def row_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return what the table shows of a report."""
    if "did_not_start" in found:
        return found
    return {
        "faults": len([fault for fault in found["faults"] if fault["seats"]]),
        "exit_code": found["exit_code"],
        "is_hanging": found["is_hanging"],
        "finished": len(found["finished_seats"]),
        "final_models": found["final_models"],
        "rounds_compared": found["rounds_compared"],
        "unequal_rounds": len(found["unequal_rounds"]),
        "restarts": found["restarts"],
        "loss": found["loss"],
        "undisturbed_loss": found["undisturbed_loss"],
        "recovery_s": found["recovery_s"],
        "wall_s": found["wall_s"],
        "left_processes": found["left_processes"],
        "errors": sorted({f"{one['kind']}: {one['text'][:160]}" for one in found["errors"]}),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", choices=FAMILIES)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--for", dest="for_s", type=float, default=320.0)
    parser.add_argument("--interval", type=float, default=4.0)
    parser.add_argument("--folder", type=Path, default=Path("build/chaos"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the launcher, and with it the workers
    names, seeds = options.only or [*FAMILIES], [int(seed) for seed in options.seeds.split(",")]
    runs = [(name, seed) for seed in seeds for name in names]
    missing = [run for run in runs if not (options.folder / f"{run[0]}-{run[1]}" / "report.json").exists()]
    print(f"{len(missing)} runs are left: about {len(missing) * options.for_s * 1.5 / 60:.0f} minutes.", flush=True)
    rows: dict[str, Any] = {}
    for name, seed in runs:
        rows[f"{name}, seed {seed}"] = row = row_of(measure(name, seed, options))
        print(name, seed, json.dumps(row), flush=True)
        if options.out is not None:
            result = {
                "command": f"python -m benchmarks.chaos --workers {options.workers} --for {options.for_s:g} "
                f"--interval {options.interval:g} --seeds {options.seeds}",
                "date": time.strftime("%Y-%m-%d"),
                "cores": os.cpu_count(),
                "load": os.getloadavg()[1],
                "versions": versions(),
                "runs": rows,
            }
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
