"""Step time of tacit and of those who do the same, as ratios taken in one run: `make bench-peers`, or

    python -m benchmarks.peers --install                     environments of the peers, outside the repository
    python -m benchmarks.peers [--quick] [--out benchmarks/results/peers.json] [--only loopback,mlp,2]

2 and 4 processes of one torch thread each; loopback, and a network namespace per process with its interface shaped to 1
Gbit/s and to 100 Mbit/s; an MLP of 1M parameters and a CNN of 11M. In every such place all methods stay open beside
each other and take turns, so that a disturbance of the machine hits all alike. A method that speaks in every step is
given by the median of its steps; one that speaks every 8 steps, and the loop that never does, by the median over whole
periods of the mean step. Models are compared across ranks after every run, so that nobody wins by not averaging.

The last part, "overlap", takes a period into which the transfer at 100 Mbit/s fits, and compares with a loop that never
communicates.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.runtime import namespaces

ROOT = Path(__file__).resolve().parents[1]

PEERS = {"accelerate": "accelerate==1.15.0", "torchft": "torchft==0.2.0"}
TORCH = "torch==2.13.0"
PERIOD = 8
MARGINS = (1.2, 1.5)
"""How much longer than a round on the wire a period is into which the round is said to fit: barely, and with room for a
busy machine.
"""
RATES_BITS_PER_S = {"loopback": None, "1 Gbit/s": 1e9, "100 Mbit/s": 1e8}
SIZES = (2, 4)
BYTES = {"mlp": 4 * 991_818, "cnn": 4 * 11_172_170}
PLAIN, OVERLAPPED = "no communication", "tacit LocalSGD, overlapped"
CREWS = {
    "tacit": (
        PLAIN,
        "tacit AllReduce",
        "DDP",
        "DDP, bf16 hook",
        "DDP, PowerSGD hook",
        "tacit LocalSGD",
        OVERLAPPED,
        "torch PostLocalSGD",
        "torch PeriodicModelAverager",
    ),
    "accelerate": ("accelerate LocalSGD",),
    "torchft": ("torchft LocalSGD",),
}
EVERY_STEP = ("tacit AllReduce", "DDP", "DDP, bf16 hook", "DDP, PowerSGD hook")
PERIODIC_PEERS = ("torch PostLocalSGD", "torch PeriodicModelAverager", "accelerate LocalSGD", "torchft LocalSGD")


class Failed(Exception):
    """A method that does not run, and why."""


@dataclass(frozen=True)
class Place:
    """Where a measurement happens."""

    network: str
    model: str
    size: int

    def __str__(self) -> str:
        return f"{self.network}, {self.model}, {self.size} processes"

    @property
    def round_s(self) -> float:
        """The least time an all-reduce takes on the wire."""
        rate = RATES_BITS_PER_S[self.network]
        return 0.0 if rate is None else 2 * (self.size - 1) / self.size * BYTES[self.model] * 8 / rate

    @contextlib.contextmanager
    def hosts(self) -> Iterator[list[namespaces.Host]]:
        """Set up a host for each process; on loopback one for all, so that nobody else's ports are in the way."""
        rate = RATES_BITS_PER_S[self.network]
        with namespaces.hosts(1 if rate is None else self.size, rate_bits_per_s=rate) as hosts:
            yield [replace(hosts[0], address="127.0.0.1")] * self.size if rate is None else hosts


class Crew:
    """The processes of one environment in one place; all get the same command and all must answer.

    module: what the processes run; "": the loops of this environment in benchmarks.peer_loops.
    """

    def __init__(
        self, name: str, hosts: list[namespaces.Host], environments: Path, port: int, module: str = ""
    ) -> None:
        self.name = name
        is_foreign = (environments / name / "bin" / "python").exists() or name in PEERS
        python = str(environments / name / "bin" / "python") if is_foreign else sys.executable
        self._log = (environments / f"{name}.log").open("w")
        self._ranks = []
        for rank, host in enumerate(hosts):
            interface = "lo" if host.address == "127.0.0.1" else namespaces.INTERFACE
            environment = {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(len(hosts)),
                "LOCAL_WORLD_SIZE": str(len(hosts)),
                "MASTER_ADDR": hosts[0].address,
                "MASTER_PORT": str(port),
                "OWN_ADDRESS": host.address,
                "OMP_NUM_THREADS": "1",
                "ACCELERATE_USE_CPU": "true",
                "GLOO_SOCKET_IFNAME": interface,
            }
            words = host.command(python, "-m", module or f"benchmarks.peer_loops.{name}_loops")
            self._ranks.append(
                subprocess.Popen(
                    words,
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    text=True,
                )
            )

    def ask(self, timeout_s: float, **command: Any) -> list[dict[str, Any]]:
        """Return every rank's answer; a rank that fails or is silent ends the crew, whose other ranks may be waiting
        for it.
        """
        watchdog = threading.Timer(timeout_s, self.end)
        watchdog.start()
        try:
            for rank in self._ranks:
                assert rank.stdin is not None
                rank.stdin.write(json.dumps(command) + "\n")
                rank.stdin.flush()
            answers = []
            for rank in self._ranks:
                assert rank.stdout is not None
                line = rank.stdout.readline()
                answers.append(
                    json.loads(line)
                    if line
                    else {"error": f"no answer within {timeout_s:.0f} s, or died; see {self._log.name}"}
                )
                if "error" in answers[-1]:
                    self.end()
        except BrokenPipeError:
            raise Failed(f"ended early; see {self._log.name}") from None
        finally:
            watchdog.cancel()
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors:
            raise Failed(errors[0])
        return answers

    def end(self) -> None:
        for rank in self._ranks:
            rank.kill()

    def close(self) -> None:
        self.end()
        for rank in self._ranks:
            rank.communicate()
        self._log.close()


@dataclass
class Method:
    """One competitor in one place, and what was measured of it."""

    name: str
    crew: Crew
    period: int
    steps: int  # of one turn
    times_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)  # per step, of one process with all its threads
    failure: str | None = None

    @property
    def is_open(self) -> bool:
        return self.failure is None

    def open(self, place: Place, overlap_steps: int) -> None:
        """Warm up: PowerSGD compresses from its third step on; an overlapped round must have ended before others use
        the network.
        """
        warm_up = 3 if self.name in EVERY_STEP else self.period + (overlap_steps if self.name == OVERLAPPED else 0)
        self._try(90, do="open", method=self.name, model=place.model, period=self.period, overlap_steps=overlap_steps)
        self._try(120, do="run", method=self.name, steps=warm_up)

    def turn(self) -> None:
        """Take a turn: note the mean step of every whole period, over all ranks."""
        answers = self._try(180, do="run", method=self.name, steps=self.steps)
        if not answers:
            return
        sums = [answer["checksum"] for answer in answers]
        if self.name not in (PLAIN, OVERLAPPED) and max(sums) - min(sums) > 1e-3 * (1 + abs(sums[0])):
            self.failure = f"the ranks' models differ after a round: checksums {sums}"
        self.cpu_s.append(statistics.fmean(answer["cpu_s"] for answer in answers) / self.steps)
        length = 1 if self.name in EVERY_STEP else self.period
        rows = [answer["times_s"] for answer in answers]
        for start in range(0, self.steps, length):
            self.times_s.append(statistics.fmean(statistics.fmean(row[start : start + length]) for row in rows))

    def _try(self, timeout_s: float, **command: Any) -> list[dict[str, Any]]:
        if self.failure is None:
            try:
                return self.crew.ask(timeout_s, **command)
            except Failed as failed:
                self.failure = str(failed)
        return []


@dataclass(frozen=True)
class Plan:
    """How much is measured in one place."""

    methods: tuple[str, ...]
    repetitions: int
    period: int
    overlap_steps: int


def measure(place: Place, plan: Plan, environments: Path) -> dict[str, Any]:
    """Return the step time of every method of the plan, in milliseconds."""
    begun_s = time.perf_counter()
    with place.hosts() as hosts, contextlib.ExitStack() as stack:
        methods = []
        for number, (name, known) in enumerate(CREWS.items()):
            chosen = [method for method in known if method in plan.methods]
            if chosen:
                crew = Crew(name, hosts, environments, 29500 + 20 * number)
                stack.callback(crew.close)
                methods += [Method(m, crew, plan.period, _steps(m, place, plan.period)) for m in chosen]
        for method in methods:
            method.open(place, plan.overlap_steps)
        for _ in range(plan.repetitions):
            for method in methods:
                if method.is_open:
                    method.turn()
    times_s = {m.name: statistics.median(m.times_s) for m in methods if m.times_s and m.is_open}
    return {
        "step_ms": {name: round(1e3 * time_s, 2) for name, time_s in times_s.items()},
        "spread_ms": {
            m.name: [round(1e3 * t, 2) for t in (min(m.times_s), max(m.times_s))] for m in methods if m.name in times_s
        },
        "cpu_ms": {m.name: round(1e3 * statistics.median(m.cpu_s), 2) for m in methods if m.name in times_s},
        "failed": {m.name: m.failure for m in methods if m.failure is not None},
        "period": plan.period,
        "overlap_steps": plan.overlap_steps,
        "load": os.getloadavg()[0],
        "took_s": round(time.perf_counter() - begun_s),
    }


def _steps(method: str, place: Place, period: int) -> int:
    """Return the steps of one turn: fewer where each of them takes seconds on the wire."""
    if method not in EVERY_STEP:
        return period if place.round_s > 0.3 and method != PLAIN else 2 * period
    return 2 if place.round_s > 1 else 4 if place.round_s > 0.2 else 8


def verdicts(place: Place, result: dict[str, Any]) -> dict[str, float]:
    """Return the ratios the goals are about; a goal is met at or below its number."""
    step_ms = result["step_ms"]
    ratios = {}
    if {"tacit AllReduce", "DDP"} <= step_ms.keys():
        ratios["AllReduce over DDP (goal 1.15)"] = step_ms["tacit AllReduce"] / step_ms["DDP"]
    peers = [step_ms[name] for name in PERIODIC_PEERS if name in step_ms]
    if peers and "tacit LocalSGD" in step_ms:
        ratios["LocalSGD over best peer (goal 1)"] = step_ms["tacit LocalSGD"] / min(peers)
    if OVERLAPPED in step_ms and PLAIN in step_ms:
        fits = result["overlap_steps"] * step_ms[PLAIN] / 1e3 > 1.1 * place.round_s
        goal = "goal 1.15" if fits and place.network == "100 Mbit/s" and place.size == 2 else "no goal: see below"
        ratios[f"overlapped over no communication ({goal})"] = step_ms[OVERLAPPED] / step_ms[PLAIN]
    return {name: round(ratio, 3) for name, ratio in ratios.items()}


def fitting_period(place: Place, plain_ms: float, margin: float) -> int:
    """Return the least multiple of 8 steps that take ``margin`` times as long as a round on the wire."""
    steps = margin * place.round_s / (plain_ms / 1e3)
    return max(PERIOD, PERIOD * -(-int(steps + 1) // PERIOD))


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown, step times in milliseconds."""
    names = [name for known in CREWS.values() for name in known]
    lines = [
        "# Step time beside the peers",
        "",
        f"`{results['command']}`, {results['date']}; torch {results['versions']['torch']}, {results['machine']}. "
        "Milliseconds per step, smaller is better; "
        "read ratios along a line of one column. Machine load in the last row: the processes' own and whatever else ran.",
        "",
    ]
    for part in ("peers", "overlap"):
        places = results.get(part, {})
        if not places:
            continue
        title = "Period 8" if part == "peers" else "Overlap where the transfer fits into the period"
        lines += [f"## {title}", "", f"| method | {' | '.join(places)} |", "|---|" + "---:|" * len(places)]
        for name in names:
            cells = [_cell(place, name) for place in places.values()]
            if any(cells):
                lines.append(f"| {name} | {' | '.join(cells)} |")
        if part == "overlap":
            lines.append(f"| period | {' | '.join(str(place['period']) for place in places.values())} |")
        for name in dict.fromkeys(name for place in places.values() for name in place["ratios"]):
            cells = [str(place["ratios"].get(name, "")) for place in places.values()]
            lines.append(f"| *{name}* | {' | '.join(cells)} |")
        lines += [f"| *load* | {' | '.join(format(place['load'], '.1f') for place in places.values())} |", ""]
    return "\n".join(lines)


def _cell(place: dict[str, Any], name: str) -> str:
    return "failed" if name in place["failed"] else str(place["step_ms"].get(name, ""))


def install(environments: Path, peers: Mapping[str, str] = PEERS) -> None:
    """Make an environment for each peer, with the torch that tacit is measured with."""
    environments.mkdir(parents=True, exist_ok=True)
    constraint = environments / "constraints.txt"
    constraint.write_text(TORCH + "\n")
    for name, requirement in peers.items():
        python = environments / name / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(environments / name)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-c", constraint, TORCH, requirement], check=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--install", action="store_true", help="make the peers' environments and stop")
    arguments.add_argument("--environments", type=Path, default=Path("/tmp/peers"), help="where they are")
    arguments.add_argument("--quick", action="store_true", help="one repetition: does everything run?")
    arguments.add_argument("--only", default="", help="places to measure, by words of their names: 'loopback,mlp,2'")
    arguments.add_argument("--out", type=Path, help="write the results here as JSON, and beside it as Markdown")
    chosen = arguments.parse_args()
    if chosen.install:
        install(chosen.environments)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that hosts are taken down
    if (reason := namespaces.refused()) is not None:
        sys.exit(f"no shaped networks here: {reason}")
    results: dict[str, Any] = {
        "command": "make bench-peers" + (" (quick)" if chosen.quick else ""),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {
            **{name: version(name) for name in ("tacit", "torch")},
            "python": platform.python_version(),
            **dict(peer.split("==") for peer in PEERS.values()),
        },
        "machine": f"{os.cpu_count()} cores, one thread per process",
        "seed": 0,
        "load_at_start": os.getloadavg(),
        "peers": {},
        "overlap": {},
    }
    wanted = [word.strip() for word in chosen.only.split(",") if word.strip()]
    every = tuple(name for known in CREWS.values() for name in known)
    for place in (Place(n, m, s) for n in RATES_BITS_PER_S for m in BYTES for s in SIZES):
        if not all(word in str(place) for word in wanted):
            continue
        repetitions = 1 if chosen.quick else 2 if place.round_s > 1 else 4
        note(
            results,
            "peers",
            place,
            measure(place, Plan(every, repetitions, PERIOD, PERIOD - 1), chosen.environments),
            chosen.out,
        )
        if place.network == "100 Mbit/s" and place.size == 2:
            plain_ms = results["peers"][str(place)]["step_ms"].get(PLAIN, 100.0)
            for margin in MARGINS:
                period = fitting_period(place, plain_ms, margin)
                plan = Plan((PLAIN, "tacit LocalSGD", OVERLAPPED), 1 if chosen.quick else 3, period, period - 1)
                label = f"{place}, period {margin:g} x the round"
                note(results, "overlap", place, measure(place, plan, chosen.environments), chosen.out, label)


def note(
    results: dict[str, Any],
    part: str,
    place: Place,
    measured: dict[str, Any],
    out: Path | None,
    label: str | None = None,
) -> None:
    """Add what was measured to the results, and write them down."""
    name = label or str(place)
    results[part][name] = {**measured, "ratios": verdicts(place, measured)}
    print(f"{part}: {name}\n{json.dumps(results[part][name], indent=1)}", flush=True)
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n")
        out.with_suffix(".md").write_text(table(results))


if __name__ == "__main__":
    main()
