"""Updates per second of a server on real processes, beside what theory and the simulator predict from the measured step
times.

    OMP_NUM_THREADS=1 python benchmarks/server_pace.py [--out benchmarks/results/server_pace.json] [--updates 80]
    [--quick]

Four processes on loopback; a step is a sleep of 50 ms and the gradient of a tiny model, so that two cores can carry
them all; the last process sleeps five times as long. Measured: updates a second, from the first update after a tenth of
the run to the last, and how many steps each process completed in that time, as a share of what it could have completed
had it never waited. Predicted: ``theory.update_time`` from the mean step times, and a timing-only simulation with
cancel="step_end" (real processes finish a step before they drop it) that draws from the recorded steps.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import TCPStore

import tacit
from tacit import theory, workloads

SLOW = 3
STRATEGIES = {
    "k-sync": tacit.KSync(k=3),
    "sync": tacit.KSync(k=4),
    "k-batch-sync": tacit.KBatchSync(k=3),
    "async": tacit.KAsync(k=1),
    "k-async": tacit.KAsync(k=2),
    "k-batch-async": tacit.KBatchAsync(k=3),
}


def learn(strategy: tacit.Strategy, updates: int, sleep_s: float) -> tacit.Run:
    """An ordinary loop whose computing is a sleep."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = tacit.attach(model, optimizer, strategy, steps=updates)
    draw = torch.Generator().manual_seed(tacit.rank())
    nap_s = sleep_s * (5 if tacit.rank() == SLOW else 1)
    while not session.is_done:
        x = torch.randn(4, 8, generator=draw)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        time.sleep(nap_s)
        optimizer.step()
    return session.close()


def play(pipe: Connection, environment: dict[str, str], name: str, updates: int, sleep_s: float) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    run = learn(STRATEGIES[name], updates, sleep_s)
    if tacit.rank() == 0:
        columns = run.trace.columns()
        pipe.send({name: columns[name].tolist() for name in ("time_s", "rank", "kind", "start_s", "value", "label")})
    pipe.close()


def together(name: str, updates: int, sleep_s: float) -> dict[str, np.ndarray]:
    """Return the trace of one run on four processes."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    processes = []
    for rank in range(4):
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": "4",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        processes.append(context.Process(target=play, args=(theirs, environment, name, updates, sleep_s), daemon=True))
        processes[-1].start()
    theirs.close()
    if not mine.poll(600):
        raise SystemExit(f"{name} did not end within ten minutes.")
    trace = {key: np.array(values) for key, values in mine.recv().items()}
    for process in processes:
        process.join(30)
    return trace


def measured(trace: dict[str, np.ndarray], updates: int) -> dict[str, Any]:
    """Return pace and step times of a run, after its first tenth."""
    is_update = trace["label"] == "update"
    at_s = np.sort(trace["time_s"][is_update])
    first = updates // 10
    begun_s, ended_s = at_s[first], at_s[-1]
    lasted = trace["time_s"] - trace["start_s"]
    inside = (trace["start_s"] >= begun_s) & (trace["time_s"] <= ended_s)
    is_step = inside & ((trace["kind"] == "compute") | (trace["kind"] == "cancelled"))
    steps = [lasted[is_step & (trace["rank"] == rank)] for rank in range(4)]
    return {
        "updates per second": (len(at_s) - 1 - first) / (ended_s - begun_s),
        "mean step, s": [float(own.mean()) if len(own) else None for own in steps],
        "share of its own full speed": [float(own.sum() / (ended_s - begun_s)) for own in steps],
        "steps": [own.tolist() for own in steps],
    }


def predicted(name: str, steps: list[list[float]], updates: int) -> dict[str, float | list[float]]:
    """Return updates a second, by theory and by simulation, for workers with such steps."""
    strategy = STRATEGIES[name]
    fast = [s for rank, own in enumerate(steps) if rank != SLOW for s in own]
    slow = steps[SLOW] or [5 * s for s in fast]
    compute, speed = tacit.Recorded(times_s=fast), {SLOW: statistics.mean(fast) / statistics.mean(slow)}
    k = None if name in ("sync", "async") else strategy.k
    bounds = theory.update_time_bounds(name, workers=4, compute=compute, k=k, speed=speed)
    cluster = tacit.Cluster(
        workers=4,
        compute=compute,
        speed=speed,
        latency_s=2e-4,
        bandwidth_bytes_per_s=float("inf"),
        cancel="step_end",
        server="rank0",
    )
    run = tacit.simulate(
        workloads.quadratic(dimension=9), strategy, cluster=cluster, steps=20 * updates, timing_only=True
    )
    exact = bounds.lower_s == bounds.upper_s
    by_theory = 1 / bounds.lower_s if exact else [1 / bounds.upper_s, 1 / bounds.lower_s]
    return {"theory": by_theory, "simulator": run.steps / run.summary()["time_s"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--updates", type=int, default=80)
    parser.add_argument("--only", choices=STRATEGIES, nargs="*", default=list(STRATEGIES))
    parser.add_argument("--quick", action="store_true", help="a tenth of the sleep and of the updates")
    given = parser.parse_args()
    updates, sleep_s = (given.updates // 6, 0.005) if given.quick else (given.updates, 0.05)
    rows = {}
    print(
        f"{'kind':<14} {'measured':>9} {'theory':>15} {'simulator':>10}   updates/s; share of own full speed, by process"
    )
    for name in given.only:
        found = measured(together(name, updates, sleep_s), updates)
        foreseen = predicted(name, found.pop("steps"), updates)
        rows[name] = {"strategy": str(STRATEGIES[name]), **found, "predicted updates per second": foreseen}
        by_theory = foreseen["theory"]
        told = f"{by_theory:.2f}" if isinstance(by_theory, float) else "–".join(f"{bound:.2f}" for bound in by_theory)
        shares = " ".join(f"{share:.2f}" for share in found["share of its own full speed"])
        print(
            f"{name:<14} {found['updates per second']:>9.2f} {told:>15} {foreseen['simulator']:>10.2f}   {shares}",
            flush=True,
        )
    if given.out is not None:
        versions = {"tacit": tacit.__version__, "torch": torch.__version__, "python": platform.python_version()}
        about = {
            "command": "make bench-server-pace",
            "updates": updates,
            "sleep_s": sleep_s,
            "slowed": {str(SLOW): 5},
            **versions,
        }
        given.out.write_text(json.dumps({"about": about, "kinds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
