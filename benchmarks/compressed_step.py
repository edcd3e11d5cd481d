"""What a compressed step costs on real processes: `make bench-compressed-step`, or

    python -m benchmarks.compressed_step [--quick] [--only '100 Mbit/s'] [--method 'tacit LocalSGD'] [--out FILE.json]

2 processes of one torch thread each, an MLP of 1M parameters, a network namespace per process with its interface shaped
to 100 Mbit/s, then to 1 Gbit/s. All methods stay open and take turns. The time of a step is the median over all steps,
or over whole periods of 8 steps for LocalSGD. The processor time is that of a process with all its threads, the median
over turns; what it costs over the loop without communication is the cost of a method. Models are compared across ranks
after every turn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import PERIOD, PLAIN, Crew, Method, Place
from tests.runtime import namespaces

POWERSGD: Final = "DDP, PowerSGD hook, rank 2"
LOCAL: Final = ("tacit LocalSGD", "tacit LocalSGD, Top 1 %")
COMPRESSED: Final = (
    "tacit CompressedGradient, EF21 Top 1 %",
    "DDP, tacit.hooks.ef21 Top 1 %",
    "tacit CompressedGradient, LowRank 2 + EF",
)
METHODS: Final = (PLAIN, "DDP", POWERSGD, *COMPRESSED, *LOCAL)
NETWORKS: Final = ("100 Mbit/s", "1 Gbit/s")
WARM_UP_STEPS: Final = 2 * PERIOD
"""PowerSGD compresses from its third step on, the hook of tacit from its second."""


class Contestant(Method):
    """One method in one place; a turn is one or several whole periods."""

    def open(self, place: Place, overlap_steps: int) -> None:
        self._try(90, do="open", method=self.name, model=place.model, period=self.period, overlap_steps=overlap_steps)
        self._try(120, do="run", method=self.name, steps=self.period if self.name == "DDP" else WARM_UP_STEPS)

    def turn(self) -> None:
        answers = self._try(180, do="run", method=self.name, steps=self.steps)
        if not answers:
            return
        sums = [answer["checksum"] for answer in answers]
        if self.name != PLAIN and max(sums) - min(sums) > 1e-3 * (1 + abs(sums[0])):
            self.failure = f"the ranks' models differ after a turn: checksums {sums}"
        self.cpu_s.append(statistics.fmean(answer["cpu_s"] for answer in answers) / self.steps)
        length = self.period if self.name in LOCAL else 1
        for start in range(0, self.steps, length):
            rows = [answer["times_s"][start : start + length] for answer in answers]
            self.times_s.append(statistics.fmean(map(statistics.fmean, rows)))


def measure(place: Place, methods: tuple[str, ...], turns: int, logs: Path) -> dict[str, Any]:
    """Return step and processor times of every method in milliseconds."""
    with place.hosts() as hosts, contextlib.ExitStack() as stack:
        crew = Crew("compressed_step", hosts, logs, 29500)
        stack.callback(crew.close)
        contestants = [Contestant(name, crew, PERIOD, _steps(name, place)) for name in methods]
        for one in contestants:
            one.open(place, 0)
        for _ in range(turns):
            for one in contestants:
                one.turn()
    rows = {one.name: _row(one) for one in contestants if one.times_s and one.is_open}
    failed = {one.name: one.failure for one in contestants if one.failure is not None}
    if PLAIN in rows:
        for row in rows.values():
            row["cpu_over_plain_ms"] = round(row["cpu_ms"] - rows[PLAIN]["cpu_ms"], 2)
    return {"methods": rows, "failed": failed, "turns": turns, "load": round(os.getloadavg()[0], 2)}


def _row(one: Contestant) -> dict[str, Any]:
    return {
        "step_ms": round(1e3 * statistics.median(one.times_s), 2),
        "step_range_ms": [round(1e3 * time_s, 2) for time_s in (min(one.times_s), max(one.times_s))],
        "cpu_ms": round(1e3 * statistics.median(one.cpu_s), 2),
        "cpu_range_ms": [round(1e3 * time_s, 2) for time_s in (min(one.cpu_s), max(one.cpu_s))],
    }


def _steps(method: str, place: Place) -> int:
    """Return the steps of one turn: fewer where each of them takes a third of a second on the wire."""
    if method == "DDP" and place.round_s > 0.2:
        return PERIOD // 2
    return 4 * PERIOD if method not in LOCAL else 2 * PERIOD


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    places = results["places"]
    lines = [
        "# Cost of a compressed step",
        "",
        f"`{results['command']}`, {results['date']}; torch {results['versions']['torch']}, {results['machine']}. "
        "2 processes, an MLP of 992k parameters. *Step*: milliseconds on the clock. *Processor*: milliseconds of one "
        "process, with all its threads. *Cost*: processor time over that without communication. *Of PowerSGD*: cost "
        "divided by PowerSGD's.",
        "",
    ]
    for name, place in places.items():
        rows = place["methods"]
        lines += [f"## {name}", "", "| method | step | processor | cost | of PowerSGD |", "|---|" + "---:|" * 4]
        base = rows.get(POWERSGD, {}).get("cpu_over_plain_ms")
        for method, row in rows.items():
            cost = row.get("cpu_over_plain_ms")
            share = f"{cost / base:.2f}" if base and cost is not None else ""
            lines.append(f"| {method} | {row['step_ms']:.1f} | {row['cpu_ms']:.1f} | {cost} | {share} |")
        lines += [f"| {method} | failed: {why} |" for method, why in place["failed"].items()]
        lines += ["", f"{place['turns']} turns; load at the end {place['load']}.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one turn: does everything run?")
    parser.add_argument("--only", choices=NETWORKS, help="the network to measure")
    parser.add_argument("--method", action="append", choices=METHODS, help="a method to measure; may be repeated")
    parser.add_argument("--turns", type=int, default=10, help="turns of each method")
    parser.add_argument("--out", type=Path, help="write the results here as JSON, and beside it as Markdown")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that hosts are taken down
    if (reason := namespaces.refused()) is not None:
        sys.exit(f"no shaped networks here: {reason}")
    results: dict[str, Any] = {
        "command": "make bench-compressed-step" + (" (quick)" if chosen.quick else ""),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {**{name: version(name) for name in ("tacit", "torch")}, "python": platform.python_version()},
        "machine": f"{os.cpu_count()} cores, one thread per process",
        "places": {},
    }
    methods = METHODS if chosen.method is None else tuple(name for name in METHODS if name in chosen.method)
    with tempfile.TemporaryDirectory() as logs:
        for network in NETWORKS if chosen.only is None else (chosen.only,):
            place = Place(network, "mlp", 2)
            results["places"][network] = measure(place, methods, 1 if chosen.quick else chosen.turns, Path(logs))
            print(table(results), flush=True)
            if chosen.out is not None:
                chosen.out.write_text(json.dumps(results, indent=1) + "\n")
                chosen.out.with_suffix(".md").write_text(table(results))


if __name__ == "__main__":
    main()
