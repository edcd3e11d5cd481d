"""Drift on real processes: probe, plan and train in two network namespaces, while the link becomes slower.

Three commands of tacit run on two hosts as on two machines: `tacit probe`, `tacit plan`, and `tacit train --plan` twice.
In the first run the link keeps its rate, and there should be no drift. In the second one the link falls from 100 to 30
Mbit/s after two seconds; the rounds are counted until the run tells.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
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
RATE_MBIT_PER_S, SLOW_MBIT_PER_S = 100, 30
STEPS = 300
TARGET = 0.1
BURST_KB = 32
TIMEOUT_S = 240.0
PORT = 29511


def on_hosts(
    hosts: list[namespaces.Host],
    words: list[str],
    folder: Path,
    program: tuple[str, ...] = (sys.executable, "-m", "tacit"),
    prefixes: Sequence[tuple[str, ...]] = (),
) -> subprocess.Popen[str]:
    """Start ``tacit …words``, or another program, on each host, as torchrun would; return the process of rank 0.

    prefixes: words before the command of each host, such as those that set its priority.
    """
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
        command = host.command(*(prefixes[rank] if prefixes else ()), *program, *words)
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


def train(hosts: list[namespaces.Host], scratch: Path, name: str, *, slows: bool) -> tacit.Run:
    """Train with the plan; after the first line of progress, make the link slower."""
    set_rate(hosts, RATE_MBIT_PER_S * 1e6)
    words = ["train", "--plan", "plan.toml", "--workload", WORKLOAD, "--steps", str(STEPS), "--progress"]
    process = on_hosts(hosts, [*words, "--evaluate-every", str(STEPS), "--out", name], scratch)
    finish(process, partial(set_rate, hosts, SLOW_MBIT_PER_S * 1e6) if slows else None)
    return tacit.Run.load(scratch / name)


def measured(strategy: str) -> dict[str, Any]:
    """Return the drifts of a steady run and of one whose link becomes slower."""
    with (
        tempfile.TemporaryDirectory() as folder,
        namespaces.hosts(2, rate_bits_per_s=RATE_MBIT_PER_S * 1e6, burst_kb=BURST_KB) as hosts,
    ):
        scratch = Path(folder)
        finish(on_hosts(hosts, ["probe", "--workload", WORKLOAD, "--out", "profile"], scratch))
        _plan(scratch, strategy)
        steady = train(hosts, scratch, "steady", slows=False)
        slower = train(hosts, scratch, "slower", slows=True)
        return {
            "rate_mbit_per_s": RATE_MBIT_PER_S,
            "slow_mbit_per_s": SLOW_MBIT_PER_S,
            "strategy": strategy,
            "planned_step_s": steady.predicted["step_s"],
            "steady": {**rounds_until_told(steady), "step_s": steady.summary()["time_s"] / STEPS},
            "slower": rounds_until_told(slower),
        }


def _plan(scratch: Path, strategy: str) -> None:
    """Write a plan.toml that follows ``strategy``, whatever the plan recommends."""
    profile, workload = tacit.Profile.load(scratch / "profile"), parsed("workload", WORKLOAD, "workloads")
    strategies = [tacit.strategy(one) for one in (*STRATEGIES, "LocalSGD(period=Every(16))")]
    made = tacit.plan(profile, workload, strategies=strategies, target_loss=TARGET, tune=False, seeds=(0,), steps=400)
    best = next(row for row in made.rows if str(row.strategy) == strategy)
    replace(made, best=best).save(scratch / "plan.toml")
