"""Who has learned most after equal time on a slow network: `make bench-end-to-end`, or

    python -m benchmarks.end_to_end --data FOLDER [--seconds 75] [--only DDP] [--only 'tacit LocalSGD'] [--out benchmarks/results/end_to_end.json]
    python -m benchmarks.end_to_end --data FOLDER --loopback --steps 64 --rates 0.03,0.1        to look for a learning rate

4 processes of one torch thread each, a network namespace per process with its interface shaped to 100 Mbit/s, the CNN
of 11M parameters of `peers.py`. Every method gets fresh processes, the same start, learning rate, batches in the same
order, and seconds of training from its first step on: steps that a method must send in full before it compresses count.
The loss is that of 512 pictures nobody trains on, taken off the clock as soon as a quarter of the time is over and the
step (or the period) under way has ended: there all ranks hold the same model, which is checked. So a method with long
steps is measured a little late, in its favour; the JSON says when. Bytes are what left a process's interface, headers
and what TCP sent again included; on loopback, where all share one interface, what left all processes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import PERIOD, Crew, Failed, Place
from tacit.errors import BadData
from tacit.workloads.data.image_files import read_cifar10
from tests.runtime import namespaces

DDP = "DDP"
LOCAL = ("tacit LocalSGD", "tacit LocalSGD, Top 1 %", "tacit LocalSGD, QSGD 8 bit")
METHODS = (DDP, "DDP, PowerSGD hook", "DDP, tacit.hooks.ef21 Top 1 %", "tacit CompressedGradient, EF21 Top 1 %", *LOCAL)
RATE = 0.1
"""The learning rate of all methods."""
QUICK_RATE = 1e-4
"""Of the tiny model, which has no norms: on a fast machine it takes hundreds of steps and must not diverge."""
MARKS = (0.0, 0.25, 0.5, 0.75, 1.0)
SETTLED = 3
"""Steps that do not count as usual ones: DDP regroups its buckets after the first, PowerSGD and EF21's hook send the
first ones in full.
"""


@dataclass(frozen=True)
class Plan:
    """What is run."""

    model: str
    processes: int
    batch: int  # of each process
    pictures: int
    held_out: int
    seconds: float
    steps: int | None  # at most
    seed: int


FULL = Plan("cnn", 4, 4, 20_000, 512, 75.0, None, 0)
QUICK = Plan("tiny", 2, 4, 512, 64, 0.2, None, 0)


def write_pictures(source: str | None, plan: Plan, folder: Path) -> str:
    """Write the pictures where the ranks find them, and return their name."""
    count, held_out = plan.pictures, plan.held_out
    try:
        if source is None:
            raise BadData("no folder was given.")
        cifar = read_cifar10(source)
        name = f"CIFAR-10, {count} pictures, loss on {held_out} of the test pictures"
        parts = cifar.x[:count], cifar.y[:count], cifar.test_x[:held_out], cifar.test_y[:held_out]
    except BadData as missing:
        print(f"CIFAR-10 is not here, a synthetic task takes its place: {missing}", flush=True)
        name = f"SYNTHETIC, not real data: {count} random pictures labelled by a random linear teacher, loss on {held_out} others"
        random = np.random.default_rng(plan.seed)
        blocks = random.integers(0, 256, (count + held_out, 3, 4, 4), dtype=np.uint8)
        labels = ((blocks.reshape(len(blocks), -1) - 128.0) @ random.standard_normal((48, 10))).argmax(1)
        x = blocks.repeat(8, axis=2).repeat(8, axis=3)
        parts = x[:count], labels[:count], x[count:], labels[count:]
    for file, part in zip(("x", "y", "held_out_x", "held_out_y"), parts, strict=True):
        np.save(folder / f"{file}.npy", np.ascontiguousarray(part))
    return name


class Trial:
    """One method on its way."""

    def __init__(self, crew: Crew, method: str, rate: float, plan: Plan) -> None:
        self._crew, self._method, self._plan, self.rate = crew, method, plan, rate
        self.clock_s, self._sent, self._sent_again = 0.0, 0, 0
        self._times_s: list[float] = []
        self.marks: list[dict[str, float]] = []

    def run(self, folder: Path) -> None:
        """Train until time or steps are over."""
        plan, method = self._plan, self._method
        self._crew.ask(
            120,
            do="open",
            method=method,
            model=plan.model,
            period=PERIOD,
            overlap_steps=0,
            learning_rate=self.rate,
            folder=str(folder),
            batch=plan.batch,
            seed=plan.seed,
        )
        for mark in MARKS:
            while self.share < mark:
                self._turn()
            self._evaluate(mark)

    @property
    def share(self) -> float:
        """How much of what it may take is over."""
        of_steps = 0.0 if self._plan.steps is None else len(self._times_s) / self._plan.steps
        return max(self.clock_s / self._plan.seconds, of_steps)

    def _turn(self) -> None:
        """Take a few steps, at whose end all ranks hold the same model."""
        local = self._method in LOCAL
        steps = PERIOD if local or not self._times_s else max(1, min(PERIOD, int(1 / self._times_s[-1])))
        if not local and len(self._times_s) < SETTLED:
            steps = 1
        answers = self._crew.ask(300, do="run", method=self._method, steps=steps)
        sums = [answer["checksum"] for answer in answers]
        if not max(sums) - min(sums) <= 1e-3 * (1 + abs(sums[0])):
            raise Failed(f"the ranks' models differ after step {len(self._times_s) + steps}: checksums {sums}")
        self._times_s += [statistics.fmean(times) for times in zip(*(a["times_s"] for a in answers), strict=True)]
        self.clock_s += max(sum(answer["times_s"]) for answer in answers)
        self._sent += sum(answer["sent_bytes"] for answer in answers)
        self._sent_again += sum(answer["sent_again_bytes"] for answer in answers)

    def _evaluate(self, mark: float) -> None:
        answers = self._crew.ask(120, do="evaluate", method=self._method)
        pictures = sum(answer["pictures"] for answer in answers)
        loss, hits = (sum(answer[name] for answer in answers) for name in ("loss", "hits"))
        if not math.isfinite(loss):
            raise Failed(f"the loss is {loss} after step {len(self._times_s)} at learning rate {self.rate}")
        self.marks.append(
            {
                "mark": mark,
                "steps": len(self._times_s),
                "clock_s": round(self.clock_s, 2),
                "loss": round(loss / pictures, 4),
                "accuracy": round(hits / pictures, 4),
            }
        )
        print(f"  {self._method}, rate {self.rate:g}: {json.dumps(self.marks[-1])}", flush=True)

    def result(self) -> dict[str, Any]:
        """Return what was measured; the usual step is a median, of steps or of the mean step of whole periods."""
        times_s, counted = self._times_s, self._plan.processes * len(self._times_s)
        ends = [*range(0, len(times_s), PERIOD), len(times_s)] if self._method in LOCAL else None
        usual = times_s[SETTLED:] if ends is None else [statistics.fmean(times_s[a:b]) for a, b in pairwise(ends)]
        return {
            "learning_rate": self.rate,
            "steps": len(times_s),
            "clock_s": round(self.clock_s, 2),
            "step_s": round(statistics.median(usual or times_s), 4),
            "mean_step_s": round(self.clock_s / len(times_s), 4),
            "sent_bytes_per_step": round(self._sent / counted),
            "sent_again_bytes_per_step": round(self._sent_again / counted),
            "marks": self.marks,
        }


def measure(
    methods: Sequence[tuple[str, float]], plan: Plan, network: str, folder: Path
) -> dict[tuple[str, float], dict[str, Any]]:
    """Return the result of every method at its rate, one after the other in the same processes."""
    results: dict[tuple[str, float], dict[str, Any]] = {}
    with Place(network, plan.model, plan.processes).hosts() as hosts:
        crew = Crew("end_to_end", hosts, folder, 29500)
        try:
            for method, rate in methods:
                trial, load = Trial(crew, method, rate, plan), os.getloadavg()[0]
                try:
                    trial.run(folder)
                    results[method, rate] = {**trial.result(), "load_before": round(load, 1)}
                except Failed as failed:
                    results[method, rate] = {"learning_rate": rate, "failed": str(failed), "marks": trial.marks}
                    print(f"  {method}: {failed}", flush=True)
        finally:
            crew.close()
    return results


def ratios(methods: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return every method's step, bytes and last loss over DDP's."""
    whole = {name: result for name, result in methods.items() if "failed" not in result}
    if DDP not in whole:
        return {}
    base = whole[DDP]
    return {
        name: {
            "step": round(result["step_s"] / base["step_s"], 4),
            "bytes": round(result["sent_bytes_per_step"] / base["sent_bytes_per_step"], 5),
            "steps done": round(result["steps"] / base["steps"], 2),
            "loss": round(result["marks"][-1]["loss"] / base["marks"][-1]["loss"], 4),
        }
        for name, result in whole.items()
    }


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    plan, versions = results["plan"], results["versions"]
    wanted = [f"{mark:.0%}" for mark in MARKS]
    lines = [
        "# Loss after equal time on a slow network",
        "",
        f"`{results['command']}`, {results['date']}; seed {plan['seed']}; tacit {versions['tacit']}, torch {versions['torch']}, "
        f"Python {versions['python']}, {results['machine']}. {results['network']}, {plan['processes']} processes, model "
        f"{plan['model']}, batches of {plan['batch']} a process, SGD with momentum 0.9, period {PERIOD}. "
        f"Data: {results['data']}.",
        "",
        f"Every method trains for {plan['seconds']:g} s. *Step* is the usual one (median of steps, for LocalSGD of the mean step of whole periods); "
        "*steps* are those done, the first, uncompressed ones of the hooks among them. Bytes are a process's, at its interface. "
        "Losses are held-out, at shares of the time.",
        "",
        "| method | rate | step, ms | steps | KB a step | "
        + " | ".join(wanted)
        + " | accuracy | step : DDP | bytes : DDP | loss : DDP |",
        "|---|" + "---:|" * (len(wanted) + 8),
    ]
    for name, result in results["methods"].items():
        if "failed" in result:
            lines.append(f"| {name} | {result['learning_rate']:g} | failed: {result['failed']} |")
            continue
        ratio = results["ratios"].get(name, {})
        cells = [
            f"{result['learning_rate']:g}",
            f"{1e3 * result['step_s']:.0f}",
            str(result["steps"]),
            f"{result['sent_bytes_per_step'] / 1e3:,.0f}",
            *(f"{mark['loss']:.3f}" for mark in result["marks"]),
            f"{result['marks'][-1]['accuracy']:.3f}",
            *(f"{ratio[key]:.3g}" if ratio else "" for key in ("step", "bytes", "loss")),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with CIFAR-10's files; without them a synthetic task takes their place")
    parser.add_argument("--only", action="append", choices=METHODS, help="a method to run; may be repeated")
    parser.add_argument("--seconds", type=float, help=f"of training for each method; {FULL.seconds:g} unless told")
    parser.add_argument("--steps", type=int, help="end after so many steps, if that is sooner")
    parser.add_argument("--rates", help="learning rates to try with every method, as 0.03,0.1")
    parser.add_argument("--loopback", action="store_true", help="on an unshaped network: learning, not speed")
    parser.add_argument("--quick", action="store_true", help="a tiny model for a moment: does everything run?")
    parser.add_argument("--out", help="write the results here as JSON, and beside it as Markdown")
    return parser.parse_args()


def heading(chosen: argparse.Namespace, plan: Plan, network: str) -> dict[str, Any]:
    """Return what the results begin with: how they were made, without folders of this machine."""
    places = {chosen.data: "DATA", chosen.out: "FILE"}
    return {
        "command": " ".join(["python -m benchmarks.end_to_end", *(places.get(word, word) for word in sys.argv[1:])]),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {
            **{name: version(name) for name in ("tacit", "torch", "numpy")},
            "python": platform.python_version(),
        },
        "machine": f"{os.cpu_count()} cores, one thread per process",
        "network": network,
        "plan": asdict(plan),
    }


def main() -> None:
    chosen = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that hosts are taken down
    if (reason := namespaces.refused()) is not None:
        sys.exit(f"no shaped networks here: {reason}")
    plan = QUICK if chosen.quick else FULL
    plan = replace(plan, seconds=chosen.seconds or plan.seconds, steps=chosen.steps)
    network = "loopback" if chosen.loopback else "100 Mbit/s"
    rates = (
        [float(rate) for rate in chosen.rates.split(",")] if chosen.rates else [QUICK_RATE if chosen.quick else RATE]
    )
    trials = [(method, rate) for method in chosen.only or METHODS for rate in rates]
    with tempfile.TemporaryDirectory() as scratch:
        folder, results = Path(scratch), heading(chosen, plan, network)
        results.update(data=write_pictures(chosen.data, plan, folder), methods={}, ratios={})
        for group in [trials] if chosen.quick else [[trial] for trial in trials]:
            for (method, rate), result in measure(group, plan, network, folder).items():
                results["methods"][method if len(rates) == 1 else f"{method}, rate {rate:g}"] = result
            results["ratios"] = ratios(results["methods"])
            if chosen.out is not None:
                Path(chosen.out).write_text(json.dumps(results, indent=1) + "\n")
                Path(chosen.out).with_suffix(".md").write_text(table(results))
    print(table(results))
    if failed := [name for name, result in results["methods"].items() if "failed" in result]:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
