"""Plans beside real runs. `make bench-plan`, or

    python -m benchmarks.plan [--quick] [--only 1,2,3] [--folder FOLDER] [--out benchmarks/results/plan.json]

Every rank is a process in a network namespace of its own, with real-time priority, as in the fidelity benchmark; needs
root and iproute2. Each place is probed by ``tacit probe`` with a script whose steps take 20 ms, most of them asleep,
and compute true gradients of an MLP with 153,610 parameters on digits. Plans are made from these probes.

1  time to a target with the seed of the plan
2  time to a target with three other seeds
3  the winner of the plan beside the strategies that follow it and DDP
4  durations of probe, plan and what-if map
5  drift: no alarm in steady runs, an alarm after a link has become slower
6  peak memory of the strategies; the cost of live numbers
7  a script as a user has it, char_gpt.py: probed, planned, run; DATA may hold tinyshakespeare.txt.gz

Real runs, probes and curves are kept in FOLDER and not made again. Real runs need the machine for themselves, plans and
verdicts do not. In turns on a shared machine:

    python -m benchmarks.plan --measure --minutes 8 --folder FOLDER     probes and measurements; missing runs
    python -m benchmarks.plan --no-runs --folder FOLDER                 plans and verdicts; notes the missing runs

Timed runs are never evaluated on the way: ranks
keep copies of their models, which are evaluated after the run.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.papers.common import Part, arguments, measure
from benchmarks.plan.costs import costs
from benchmarks.plan.drifting import drift
from benchmarks.plan.durations import durations
from benchmarks.plan.measuring import measure_missing
from benchmarks.plan.own_script import own_script
from benchmarks.plan.places import PROBED
from benchmarks.plan.probing import is_probed
from benchmarks.plan.target_times import equal_seeds, other_seeds
from benchmarks.plan.winners import winners
from tests.runtime import namespaces


def _described(part: Part) -> Part:
    """Return ``part`` with date and load added to its numbers."""

    def measured(chosen: argparse.Namespace) -> dict[str, Any]:
        load = os.getloadavg()[0]
        found = part(chosen)
        after = os.getloadavg()[0]
        setting = f"{found['setting']} {os.cpu_count()} cores, load {load:.1f} before and {after:.1f} after."
        return {"date": time.strftime("%Y-%m-%d"), **found, "setting": setting}

    measured.__doc__ = part.__doc__
    return measured


PARTS: dict[int, Part] = {
    number: _described(part)
    for number, part in {
        1: equal_seeds,
        2: other_seeds,
        3: winners,
        4: durations,
        5: drift,
        6: costs,
        7: own_script,
    }.items()
}


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, help="where real runs are kept; those that exist are not made again")
    parser.add_argument("--no-runs", action="store_true", help="measure nothing; note in FOLDER which runs are missing")
    parser.add_argument("--measure", action="store_true", help="only measure what FOLDER lacks, without verdicts")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no measurement begins later")


def main() -> None:
    chosen = arguments(__doc__ or "", "plan", PARTS, add=_add_options)
    if not chosen.quick and (reason := namespaces.refused()) is not None:
        print(f"no shaped links here: {reason}", file=sys.stderr)
        raise SystemExit(2)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that hosts are taken down
    with tempfile.TemporaryDirectory() as scratch:
        chosen.folder = chosen.folder or Path(scratch)
        chosen.ends_s = time.monotonic() + 60 * chosen.minutes
        if chosen.measure:
            measure_missing(chosen)
            return
        missing = [str(place) for place in PROBED if not is_probed(place, chosen.folder)]
        if chosen.no_runs and not chosen.quick and missing:
            sys.exit(f"FOLDER has no probe of {'; '.join(missing)}. First run --measure with the same --folder.")
        measure("Plans and real runs", "plan", PARTS, chosen, package="benchmarks")


if __name__ == "__main__":
    main()
