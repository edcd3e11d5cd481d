"""Predicted step times beside those of real runs. `make bench-fidelity`, or

    python -m benchmarks.fidelity [--quick] [--only 1,2,3] [--places "4 hosts, 20 Mbit/s"] [--turns 2]
        [--folder FOLDER] [--predict-only FOLDER] [--causes] [--out benchmarks/results/fidelity.json]

Every rank is a process in a network namespace of its own, whose interface is shaped in both directions; needs root and
iproute2. A step is the gradient of an MLP with 153,610 parameters on digits, stretched to 20 ms by a sleep.

1  nine places: 2 and 4 hosts, four networks, with and without a host that takes three times as long
2  four hosts whose sleep has a log-normal factor
3  two hosts that compute without sleep, each rank on a core of its own

In each place 12 steps of AllReduce, of EF21 and of QSGD calibrate (``tacit.Profile.of``), in part 2 48 steps. In part
3, the last step of AllReduce is followed by eight rounds beside a loop, as in ``tacit probe``: they show how much
processor time a round takes from computation on the same core. Then every method runs for some seconds, from its first
step on and without evaluations, and the simulator predicts it from the profile. Beside it stands the prediction from
nominal numbers: the sleep, the rate and 0.1 ms of latency.

Real runs are kept in FOLDER and not made again; ``--predict-only`` makes none. ``--causes`` adds a table that compares
the two traces of each cell by kind of event. Messages are not encrypted: two cores stand for four machines.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.fidelity.causes import causes_table
from benchmarks.fidelity.cells import COMPUTING, JITTER, METHODS, PLACES, QUICK, Place
from benchmarks.fidelity.predicting import SEEDS, nominal_cluster, profiled_cluster, result_of
from benchmarks.fidelity.recording import Recorder, cells_of
from benchmarks.fidelity.verdicts import computing_claims, jitter_claims, place_claims, results_table
from benchmarks.papers.common import Part, arguments, measure, target
from tests.runtime import namespaces

GROUPS = {1: PLACES, 2: JITTER, 3: COMPUTING}
CLAIMS = {1: place_claims, 2: jitter_claims, 3: computing_claims}


def places(chosen: argparse.Namespace) -> dict[str, Any]:
    """Step times at nine places are predicted from 12 steps of three strategies."""
    return _part(chosen, 1)


def jitter(chosen: argparse.Namespace) -> dict[str, Any]:
    """Step times are predicted where steps are random."""
    return _part(chosen, 2)


def computing(chosen: argparse.Namespace) -> dict[str, Any]:
    """Step times are predicted where workers compute instead of sleeping."""
    return _part(chosen, 3)


PARTS: dict[int, Part] = {1: places, 2: jitter, 3: computing}


def _places(chosen: argparse.Namespace, number: int) -> list[Place]:
    if chosen.quick:
        return {1: [QUICK]}.get(number, [])
    return [place for place in GROUPS[number] if all(word in str(place) for word in chosen.places)]


def _record(chosen: argparse.Namespace) -> dict[int, dict[str, str]]:
    """Make the real runs that are missing, and return by part the cells that failed, with the reasons."""
    failures: dict[int, dict[str, str]] = {}
    for number in chosen.only:
        for place in _places(chosen, number):
            with tempfile.TemporaryDirectory() as scratch:
                recorder = Recorder(Path(scratch))
                recorder.record(cells_of(place, chosen.folder, chosen.turns))
                failures.setdefault(number, {}).update(recorder.failures)
    return failures


def _part(chosen: argparse.Namespace, number: int) -> dict[str, Any]:
    root: Path = chosen.predict_only or chosen.folder
    results: dict[str, dict[str, Any]] = {}
    for place in _places(chosen, number):
        cells = cells_of(place, root, chosen.turns)
        clusters = {"predicted": profiled_cluster(place, cells), "nominal": nominal_cluster(place)}
        results[str(place)] = {
            name: result_of(place, name, cells, clusters, with_causes=chosen.causes) for name in METHODS
        }
        for name, found in results[str(place)].items():
            if "predicted_error" in found:
                said = f"{found['measured_ms']:.2f} ms, predicted {found['predicted_ms']:.2f}"
                print(f"    {place}: {name}: {said} ({found['predicted_error']:+.1%})", flush=True)
    claims, failed = CLAIMS[number](results), chosen.failures.get(number, {})
    claims += [target("runs", "everything runs to its end", f"{c}: {why}", False) for c, why in failed.items()]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "seeds": {"real": list(range(chosen.turns)), "simulated": list(SEEDS)},
        "load_after": [round(load, 1) for load in os.getloadavg()],
        "places": results,
        "targets": claims or [target("runs", "something was measured", "nothing", None)],
        "table": [*results_table(results), *(["", *causes_table(results)] if chosen.causes else [])],
        "setting": _setting(results),
    }


def _setting(results: dict[str, dict[str, Any]]) -> str:
    found = [cell for cells in results.values() for cell in cells.values() if cell]
    priorities = sorted({str(cell["priority"]) for cell in found})
    dates = sorted({str(cell["date"]) for cell in found})
    when = f"real runs of {dates[0]} to {dates[-1]}" if dates else "no real runs"
    return (
        f"{when}, priority {' and '.join(priorities) or 'none'}, {os.cpu_count()} cores, one thread per process, "
        f"messages not encrypted."
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, help="where real runs are kept; those that exist are not made again")
    parser.add_argument("--predict-only", type=Path, metavar="FOLDER", help="predict the real runs there, make none")
    parser.add_argument("--places", type=_words, default=[], help="only places whose names have these words, by commas")
    parser.add_argument("--turns", type=int, default=1, help="timed runs of each cell")
    parser.add_argument("--causes", action="store_true", help="compare the traces by kind of event")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def main() -> None:
    chosen = arguments(__doc__ or "", "fidelity", PARTS, add=_add_options)
    with tempfile.TemporaryDirectory() as scratch:
        chosen.folder, chosen.failures = chosen.folder or Path(scratch), {}
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that hosts are taken down
        if chosen.predict_only is None:
            if not chosen.quick and (reason := namespaces.refused()) is not None:
                print(f"no shaped links here: {reason}", file=sys.stderr)
                raise SystemExit(2)
            expected_s = sum(place.expected_s() * chosen.turns for n in chosen.only for place in _places(chosen, n))
            print(f"about {max(expected_s / 60, 1):.0f} minutes in all, less where real runs exist", flush=True)
            chosen.failures = _record(chosen)
        measure("Predicted and measured step times", "fidelity", PARTS, chosen, package="benchmarks")


if __name__ == "__main__":
    main()
