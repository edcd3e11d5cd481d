"""Time of ``tacit compare`` with 4 strategies × 3 seeds, one run at a time and two at once, and the digests of the runs.

    python benchmarks/compare_jobs.py [--out benchmarks/results/compare_jobs.json] [--steps 1200,6000] [--repeats 2]
                                      [--jobs 2] [--quick]

Every measurement is a whole command: start of Python, imports, runs, saving, report. Commands with 1 and N jobs
alternate, so that a busy machine slows both; the ratio is taken within a repetition. All digests must be equal. Every
process imports for 3 to 4 s of processor time before its first step, so short runs gain less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import tacit
from tacit.compare.runners import usable_cores

TARGET = 1.7
SEEDS = 3
SETTINGS = (
    "--workload",
    'digits(model="mlp")',
    "--workers",
    "16",
    "--speed",
    "3=0.33",
    "--latency",
    "1ms",
    "--lr",
    "0.2",
)


def timed(jobs: int, steps: int, folder: Path) -> tuple[float, dict[str, str]]:
    """Run the command with ``jobs``; return its seconds and the digests of its runs by folder."""
    options = (*SETTINGS, "--steps", str(steps), "--seeds", str(SEEDS), "--jobs", str(jobs), "--out", str(folder))
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "tacit.cli", "compare", "--quiet", *options], check=True)
    seconds = time.perf_counter() - begin
    runs = sorted((folder / "runs").glob("*/run.json"))
    return seconds, {path.parent.name: json.loads(path.read_text())["digest"] for path in runs}


def measured(jobs: int, steps: int, repeats: int) -> list[dict[str, Any]]:
    """Return the seconds of both commands, their ratio, and whether digests are equal, for each repetition."""
    rows = []
    for repeat in range(repeats):
        found = {}
        for number in (1, jobs) if repeat % 2 == 0 else (jobs, 1):
            with tempfile.TemporaryDirectory() as folder:
                found[number] = timed(number, steps, Path(folder) / "out")
        (one_s, one), (many_s, many) = found[1], found[jobs]
        row = {"one_s": one_s, "many_s": many_s, "ratio": one_s / many_s, "runs": len(one), "equal": one == many}
        print({name: round(value, 3) for name, value in row.items()}, flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--steps", default="1200,6000", help="of each run, one measurement for each number, by comma")
    parser.add_argument("--quick", action="store_true", help="few steps, once: to try that it works")
    given = parser.parse_args()
    steps, repeats = ("20", 1) if given.quick else (given.steps, given.repeats)
    found = {}
    for number in map(int, steps.split(",")):
        rows = measured(given.jobs, number, repeats)
        ratio, are_equal = statistics.median(row["ratio"] for row in rows), all(row["equal"] for row in rows)
        print(f"{number} steps: ratio {ratio:.2f} (goal {TARGET}), digests {'equal' if are_equal else 'DIFFER'}")
        found[f"{number} steps"] = {"ratio": ratio, "equal": are_equal, "repeats": rows}
    if given.out is None:
        return
    about = {
        "command": f"python {' '.join(sys.argv)}",
        "compared": f"tacit compare {' '.join(SETTINGS)} --steps {steps} --seeds {SEEDS}, jobs 1 and {given.jobs}",
        "seeds": list(range(SEEDS)),
        "cores": usable_cores(),
        "load_average": os.getloadavg()[0],
        "quick": given.quick,
        "machine": platform.machine(),
        "tacit": tacit.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    given.out.write_text(json.dumps({"about": about, "goal": TARGET, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
