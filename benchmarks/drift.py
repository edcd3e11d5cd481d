"""Drift on real processes: probe, plan and train in two network namespaces, while the link becomes slower.

    python -m benchmarks.drift [--rate 100] [--slow 30] [--steps 400] [--out drift.json]

Three commands of tacit run on two hosts as on two machines: `tacit probe`, `tacit plan`, and `tacit train --plan` twice.
In the first run the link keeps its rate, and there should be no drift. In the second one the link falls from --rate to
--slow Mbit/s after two seconds; the benchmark counts the rounds until the run tells. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tacit
from tacit.planning.prediction import round_times
from tacit.registry.tables import parsed
from tests.runtime import namespaces

WORKLOAD = 'digits(model="mlp", hidden=2048, batch_size=512)'
STRATEGIES = ("AllReduce()", "LocalSGD(period=Every(4))")
TARGET = 0.1
BURST_KB = 32
TIMEOUT_S = 240.0
PORT = 29511


def on_hosts(hosts: list[namespaces.Host], words: list[str], folder: Path, priority: bool) -> subprocess.Popen[str]:
    """Start ``tacit …words`` on each host, as torchrun would; return the process of rank 0."""
    processes = []
    for rank, host in enumerate(hosts):
        variables = {
            "RANK": rank,
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
            "WORLD_SIZE": len(hosts),
            "MASTER_ADDR": hosts[0].address,
            "MASTER_PORT": PORT,
            "OMP_NUM_THREADS": 1,
            "PYTHONUNBUFFERED": 1,
        }
        command = host.command(*(["chrt", "-r", "20"] * priority), sys.executable, "-m", "tacit", *words)
        processes.append(
            subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **{name: str(value) for name, value in variables.items()}},
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=subprocess.STDOUT if rank == 0 else subprocess.DEVNULL,
                text=True,
            )
        )
    return processes[0]


def finish(process: subprocess.Popen[str], on_progress: Callable[[], None] | None = None) -> None:
    """Wait for a command and print what it prints. on_progress: called at its first line of progress."""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if on_progress is not None and " a step (" in line:
            on_progress()
            on_progress = None
    if process.wait(TIMEOUT_S) not in (0, 3):
        raise SystemExit(f"the command failed with code {process.returncode}")


def set_rate(hosts: list[namespaces.Host], rate_bits_per_s: float) -> None:
    """Change the rate of what each host sends."""
    for host in hosts:
        words = f"tc -n {host.namespace} qdisc change dev {namespaces.INTERFACE} root tbf rate {rate_bits_per_s:.0f}bit"
        subprocess.run([*words.split(), "burst", f"{BURST_KB}kb", "latency", "50ms"], check=True)


def rounds_until_told(run: tacit.Run) -> dict[str, Any]:
    """Return how many rounds after the change the first drift was told, and what it said."""
    times = round_times(run)
    usual_s = statistics.median(one.wire_s for one in times[:20])
    slow = [one.wire_s > 2 * usual_s for one in times]
    changed = next((place for place in range(20, len(slow) - 5) if all(slow[place : place + 5])), None)
    drifts = run.record.get("drift", [])
    found: dict[str, Any] = {"rounds": len(times), "changed_after": changed, "drifts": drifts}
    told = next((one for one in drifts if one["cause"] == "network" and one["measured_s"] > one["planned_s"]), None)
    if changed is not None and told is not None:
        steps = 0
        ends = [steps := steps + one.steps for one in times]
        found["told_after"] = next(place for place, end in enumerate(ends, 1) if end >= told["step"])
        found["rounds_until_told"] = found["told_after"] - changed
    return found


def train(hosts: list[namespaces.Host], scratch: Path, name: str, given: Any, *, slows: bool) -> tacit.Run:
    """Train with the plan; after the first line of progress, make the link slower."""
    set_rate(hosts, given.rate * 1e6)
    words = ["train", "--plan", "plan.toml", "--workload", WORKLOAD, "--steps", str(given.steps), "--progress"]
    process = on_hosts(hosts, [*words, "--evaluate-every", str(given.steps), "--out", name], scratch, given.priority)
    finish(process, partial(set_rate, hosts, given.slow * 1e6) if slows else None)
    return tacit.Run.load(scratch / name)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rate", type=float, default=100.0, help="Mbit/s of the link")
    arguments.add_argument("--slow", type=float, default=30.0, help="Mbit/s after the change")
    arguments.add_argument("--steps", type=int, default=400)
    arguments.add_argument("--strategy", choices=STRATEGIES, default=STRATEGIES[1])
    arguments.add_argument("--priority", action="store_true", help="run ranks at real-time priority")
    arguments.add_argument("--out", type=Path, default=None)
    given = arguments.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        namespaces.hosts(2, rate_bits_per_s=given.rate * 1e6, burst_kb=BURST_KB) as hosts,
    ):
        scratch = Path(folder)
        finish(on_hosts(hosts, ["probe", "--workload", WORKLOAD, "--out", "profile"], scratch, given.priority))
        plan = [sys.executable, "-m", "tacit", "plan", "--profile", "profile", "--workload", WORKLOAD]
        words = [*plan, "-s", given.strategy, "-s", "LocalSGD(period=Every(16))", "--out", "plan.toml"]
        words += ["--target-loss", str(TARGET), "--no-tune", "--seeds", "1", "--steps", "400"]
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": scratch}
        finish(subprocess.Popen(words, **pipe))
        _choose(scratch, given.strategy)
        steady = train(hosts, scratch, "steady", given, slows=False)
        slower = train(hosts, scratch, "slower", given, slows=True)
        found = {
            "rate_mbit_per_s": given.rate,
            "slow_mbit_per_s": given.slow,
            "strategy": given.strategy,
            "planned_step_s": steady.predicted["step_s"],
            "steady": {**rounds_until_told(steady), "step_s": steady.summary()["time_s"] / given.steps},
            "slower": rounds_until_told(slower),
        }
        report = subprocess.run(
            [sys.executable, "-m", "tacit", "report", "slower"], cwd=scratch, capture_output=True, text=True, check=True
        )
        print(report.stdout)
    text = json.dumps(found, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


def _choose(scratch: Path, strategy: str) -> None:
    """Make plan.toml follow ``strategy``, whatever the plan has recommended."""
    profile, workload = tacit.Profile.load(scratch / "profile"), parsed("workload", WORKLOAD, "workloads")
    strategies = [tacit.strategy(one) for one in (*STRATEGIES, "LocalSGD(period=Every(16))")]
    made = tacit.plan(profile, workload, strategies=strategies, target_loss=TARGET, tune=False, seeds=(0,), steps=400)
    best = next(row for row in made.rows if str(row.strategy) == strategy)
    replace(made, best=best).save(scratch / "plan.toml")


if __name__ == "__main__":
    main()
