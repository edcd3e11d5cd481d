"""How fast timing-only runs of the server strategies are: `make bench-servers`, or

    python benchmarks/server_speed.py [--out benchmarks/results/server_speed.json] [--only updates,events] [--full]

updates: seconds for 1e5 updates of 40 learners, all four kinds, K = 1, 10 and 40: as a race and with fibers, on a
network that costs nothing (``simulation/servers/fast_servers.py``) and on the default network, 0.1 ms and 1 Gbit/s
(``network_race.py``). Goals: 30 s with K up to 10, 100 s with K = 40; on the default network at most twice the free
network's seconds (``over_free``), which are measured in turn with it.
events: microseconds per event of the trace as learners grow from 8 to 4,096, from the first quarter of a run to its
end, so that what is done once
  for each learner does not count.

Seconds are those of ``tacit.simulate`` and ``run.summary()``: as the processor gave them to this process (cpu), and as
they passed (wall), which is more on a shared machine. Without --full, runs are shorter (the file says how long) and
their seconds are multiplied up to 1e5 updates.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

import tacit
from tacit import workloads

UPDATES = 100_000
REPETITIONS = 5
GOALS_S = {1: 30.0, 10: 30.0, 40: 100.0}
KINDS = (tacit.KSync, tacit.KBatchSync, tacit.KAsync, tacit.KBatchAsync)
FREE = {"latency_s": 0.0, "bandwidth_bytes_per_s": math.inf}
WAYS = {  # name: network, host, updates of a short run
    "race": (FREE, None, 10_000),
    "fibers": (FREE, "greenlet", 500),
    "race, default network": ({}, None, 2000),
    "fibers, default network": ({}, "greenlet", 500),
}
WORKLOAD = workloads.quadratic(dimension=2, condition=1.0)


def measured(strategy: tacit.Strategy, workers: int, updates: int, way: str) -> tuple[float, float, int]:
    """Return seconds of the processor, seconds that passed, and events."""
    network, host, _ = WAYS[way]
    cluster = tacit.Cluster(workers=workers, compute=tacit.Exponential(mean_s=1.0), **network)
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    run = tacit.simulate(WORKLOAD, strategy, cluster=cluster, steps=updates, timing_only=True, host=host)
    events = run.summary()["events"]
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    if run.record["host"] != way.split(",")[0].replace("fibers", "greenlet"):
        raise SystemExit(f"{strategy} ran on {run.record['host']}, which is not what was to be measured.")
    return cpu_s, wall_s, events


def updates(is_full: bool) -> dict[str, object]:
    """1e5 updates of 40 learners."""
    table: dict[str, object] = {}
    for way, (_, _, short) in WAYS.items():
        rows: dict[str, object] = {}
        for k, goal_s in GOALS_S.items():
            for kind in KINDS:
                count = UPDATES if is_full and way == "race" else short
                if not kind.cancels and k == 1:  # a fortieth of the events
                    count = min(UPDATES, 10 * count)
                if is_full and way == "race":  # in a process of its own, for its peak of memory
                    row = in_child(kind, k)
                else:
                    cpu_s, wall_s, events = measured(kind(k=k), 40, count, way)
                    row = {"cpu_s": round(cpu_s * UPDATES / count, 1), "wall_s": round(wall_s * UPDATES / count, 1)}
                    row["events_per_update"] = round(events / count, 1)
                    row["us_per_event"] = round(1e6 * cpu_s / events, 2)
                if way == "race, default network":
                    row["over_free"] = over_free(kind(k=k), count)
                rows[str(kind(k=k))] = {**row, "updates": count, "goal_s": goal_s, "is_met": row["cpu_s"] <= goal_s}
                print(way, kind(k=k), rows[str(kind(k=k))], flush=True)
        table[way] = rows
    return {"seconds_per_100,000_updates, 40 learners": table}


def over_free(strategy: tacit.Strategy, count: int) -> float:
    """Return the seconds on the default network over those on a free one: the median of five pairs of runs."""
    pairs = [
        [measured(strategy, 40, count, way)[0] for way in ("race, default network", "race")] for _ in range(REPETITIONS)
    ]
    return round(statistics.median(default_s / free_s for default_s, free_s in pairs), 2)


def in_child(kind: type[tacit.KSync], k: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--one", f"{kind.__name__},{k}"], capture_output=True, text=True, check=True
    )
    row: dict[str, float] = json.loads(done.stdout)
    return row


def one(named: str) -> dict[str, float]:
    """Run inside a fresh process: one whole race."""
    name, k = named.split(",")
    kind = next(kind for kind in KINDS if kind.__name__ == name)
    measured(kind(k=1), 2, 2, "race")  # what is imported on first use
    cpu_s, wall_s, events = measured(kind(k=int(k)), 40, UPDATES, "race")
    peak_mib = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return {"cpu_s": round(cpu_s, 1), "wall_s": round(wall_s, 1), "events": events, "peak_memory_MiB": peak_mib}


def events(is_full: bool) -> dict[str, object]:
    """The cost of an event, K = 8."""
    table: dict[str, object] = {}
    wanted = {"race": 1_000_000 if is_full else 300_000, "fibers": 100_000 if is_full else 30_000}
    wanted["race, default network"] = wanted["race"]
    for way, count in wanted.items():
        for kind in KINDS:
            row = {}
            for workers in (8, 64, 512, 4096):
                each = 9 * 8 + (3 * workers if kind.cancels else 0)  # events an update, about
                row[f"{workers} learners"] = round(
                    min(cost_us(kind(k=8), workers, count // each, way) for _ in range(3)), 3
                )
            table[f"{kind(k=8)}, {way}"] = {**row, "4,096 over 8": round(row["4096 learners"] / row["8 learners"], 2)}
            print(f"{kind(k=8)}, {way}", row, flush=True)
    return {"cpu_microseconds_per_event (least of 3)": table}


def cost_us(strategy: tacit.Strategy, workers: int, updates: int, way: str) -> float:
    """Return microseconds of the processor per event from a quarter of the updates to the end, the summary included."""
    updates = max(8, updates // 4 * 4)
    begun_s: list[float] = []
    network, host, _ = WAYS[way]
    cluster = tacit.Cluster(workers=workers, compute=tacit.Exponential(mean_s=1.0), **network)
    run = tacit.simulate(
        WORKLOAD,
        strategy,
        cluster=cluster,
        steps=updates,
        timing_only=True,
        host=host,
        evaluate_every=updates // 4,
        progress=lambda step, *_: begun_s.append(time.process_time()) if step == updates // 4 else None,
    )
    return 1e6 * (time.process_time() - begun_s[0]) / (run.summary()["events"] * 3 / 4)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, help="write the results here as JSON")
    arguments.add_argument("--only", default="updates,events", help="which parts, by comma")
    arguments.add_argument("--full", action="store_true", help="let races make all 1e5 updates")
    arguments.add_argument("--one", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.one:
        print(json.dumps(one(chosen.one)))
        return
    parts = {"updates": updates, "events": events}
    results: dict[str, object] = {
        "command": "make bench-servers",
        "versions": {"tacit": tacit.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "seed": 0,
    }
    if chosen.out is not None and chosen.out.exists():
        results = json.loads(chosen.out.read_text()) | results
    measured(tacit.KSync(k=1), 2, 2, "fibers")  # what is imported on first use
    for name in chosen.only.split(","):
        print(f"{name}: {parts[name].__doc__}", flush=True)
        before = os.getloadavg()[0]
        results[name] = {
            "is_full": chosen.full,
            **parts[name](chosen.full),
            "load of the machine before and after": [round(before, 1), round(os.getloadavg()[0], 1)],
        }
        if chosen.out is not None:
            chosen.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
