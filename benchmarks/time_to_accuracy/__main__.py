"""Seconds to an accuracy on held-out pictures, on a real wire. `make bench-time-to-accuracy DATA=…`, or

    python -m benchmarks.time_to_accuracy --install
    python -m benchmarks.time_to_accuracy --data DATA [--folder FOLDER] [--task mnist] [--only 100mbit] [--minutes 8]

Four ranks, each in a network namespace of its own with real-time priority; needs root and iproute2. A step's forward
pass is stretched by a sleep to 20 ms, so that two cores carry four ranks. Peers are in environments of their own.

places    loopback, 1gbit, 100mbit, slow (100 Mbit/s, and one worker takes three times as long)
search    Every method, ours and theirs, gets six trials on seed 100: all learning rates with one value of its other
          parameter, then the other values at the best rate. Trials are simulated. A peer is tuned as the strategy of
          tacit that has the same models step by step (``methods.py``). For each place the trial with the shortest
          predicted time is chosen: steps to the target, times the pace that short real runs predict for the place.
runs      Seeds 0, 1, 2; one seed if more than 45 s are predicted. Ranks copy their models on the way; they are
          evaluated after the run. The target is reached at the first of two evaluations in a row at or above it.
          Methods with a period are evaluated where a period ends. A run lasts a seventh longer than predicted,
          is repeated once if that was too short, and lasts 180 s at most. A method that is predicted to need
          more runs for 45 s, and its accuracy by then is reported.

Everything is kept in FOLDER: calibration, trials.jsonl, plans.jsonl, rows.jsonl. No run is made twice. Parts can be
chosen with --do; only "calibrate" and "runs" need the machine for themselves:

    --do calibrate            about 10 s for each place
    --do search,plan          simulations, on all cores
    --do runs --minutes 8     real runs, until no further run fits into the time; prints the cost of all first
    --do results              tables, verdicts and figure
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.papers.common import RESULTS, Part, data_file, measure
from benchmarks.peers import install
from benchmarks.time_to_accuracy.crews import PEERS
from benchmarks.time_to_accuracy.figure import draw_curves
from benchmarks.time_to_accuracy.paces import calibrated
from benchmarks.time_to_accuracy.places import SPOTS
from benchmarks.time_to_accuracy.recommended import recommended
from benchmarks.time_to_accuracy.recording import cost_s, needed, record
from benchmarks.time_to_accuracy.results import claims_of, summary_of, table_of
from benchmarks.time_to_accuracy.search import choices, searched
from benchmarks.time_to_accuracy.setting import Setting
from benchmarks.time_to_accuracy.tasks import TASKS
from tests.runtime import namespaces

DOING: Final = ("calibrate", "search", "plan", "runs", "results")
NUMBERS: Final = {1: "mnist", 2: "cifar10", 3: "digits"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="make the peers' environments and stop")
    parser.add_argument("--environments", type=Path, default=Path("/tmp/peers"), help="where they are")
    parser.add_argument("--data", type=Path, help="folder that holds mnist/ and cifar10-train20000.xz")
    parser.add_argument("--folder", type=Path, help="where everything is kept; what exists is not made again")
    parser.add_argument("--task", choices=("mnist", "cifar10"), default="mnist")
    parser.add_argument("--only", default="", help=f"places, of {', '.join(SPOTS)}; separated by commas")
    parser.add_argument("--do", default=",".join(DOING), help=f"parts, of {', '.join(DOING)}; separated by commas")
    parser.add_argument("--minutes", type=float, default=1e6, help="nothing begins that would end later")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="simulations at a time")
    parser.add_argument(
        "--quick", action="store_true", help="digits on this machine: shows that it works, proves nothing"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "time_to_accuracy.json", help="JSON to write")
    chosen = parser.parse_args()
    for words, known in ((chosen.only, SPOTS), (chosen.do, DOING)):
        if unknown := [word for word in _words(words) if word not in known]:
            parser.error(f"there is no {unknown[0]}; there are {', '.join(known)}.")
    return chosen


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _measured(setting: Setting, chosen: argparse.Namespace) -> dict[str, Any]:
    doing = _words(chosen.do)
    if "calibrate" in doing:
        calibrated(setting)
    if "search" in doing:
        searched(setting)
    if "plan" in doing and not setting.is_quick:
        recommended(setting)
    chosen_trials = choices(setting)
    runs = needed(setting, chosen_trials)
    print(f"  {len(runs)} real runs are missing, about {cost_s(runs) / 60:.0f} minutes", flush=True)
    for spot in setting.spots:
        own = [run for run in runs if run.choice.spot.key == spot.key]
        print(f"    {spot.key}: {len(own)} runs, {cost_s(own) / 60:.1f} minutes", flush=True)
    if "runs" in doing:
        record(setting, runs)
    return _results(setting, chosen_trials, chosen.out)


def _results(setting: Setting, chosen_trials: list[Any], out: Path) -> dict[str, Any]:
    cells = summary_of(setting, chosen_trials)
    figure = out.with_name(f"{out.stem}{'' if setting.task.name == 'mnist' else '_' + setting.task.name}.svg")
    draw_curves(setting, chosen_trials, cells, figure)
    task = setting.task
    return {
        "cells": cells,
        "plans": list(setting.plans),
        "targets": claims_of(cells, setting.failures),
        "table": [*table_of(cells), "", f"![Held-out error against time]({figure.name})"],
        "setting": f"{task.name}, held-out accuracy {task.target:.0%}, batches of {task.batch} on each of 4 workers, steps of "
        f"at least {1e3 * task.sleep_s:.0f} ms, SGD with momentum 0.9; medians of three seeds, or one. Each method has "
        f"six trials on another seed, in the simulator.",
    }


def main() -> None:
    chosen = _arguments()
    if chosen.install:
        install(chosen.environments, PEERS)
        return
    task = TASKS["digits" if chosen.quick else chosen.task]
    if not chosen.quick:
        if (reason := namespaces.refused()) is not None:
            print(f"no shaped links here: {reason}", file=sys.stderr)
            raise SystemExit(2)
        data_file(chosen.data, task.file)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that hosts are taken down
    with tempfile.TemporaryDirectory() as scratch:
        setting = Setting(
            task=task,
            data=str(chosen.data),
            root=chosen.folder or Path(scratch),
            environments=Path(scratch) / "environments" if chosen.quick else chosen.environments,
            only=_words(chosen.only),
            jobs=1 if chosen.quick else chosen.jobs,
            ends_s=time.monotonic() + 60 * chosen.minutes,
            is_quick=chosen.quick,
        )
        if "results" not in _words(chosen.do):
            _measured(setting, chosen)
            return

        def part(_: argparse.Namespace) -> dict[str, Any]:
            """Time to an accuracy."""
            return _measured(setting, chosen)

        parts: dict[int, Part] = dict.fromkeys(NUMBERS, part)
        chosen.only = [next(number for number, name in NUMBERS.items() if name == task.name)]
        measure("Time to accuracy on a real wire", "time_to_accuracy", parts, chosen, package="benchmarks")


if __name__ == "__main__":
    main()
