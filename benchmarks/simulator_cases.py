"""Rates of compressed, gossip and server strategies in the simulator, one process per call:

    python benchmarks/simulator_cases.py [CASE …]

The script uses only what the simulator had before its strategies were made faster, so that it also runs with the
sources of an older checkout: ``PYTHONPATH=OTHER/src``. `benchmarks/simulator.py --only strategies --source OTHER` runs
both in turns.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np
from sklearn.datasets import load_digits

import tacit
from tacit import workloads

RUNS = 3


def full_batches(workers: int, batch_size: int = 32) -> workloads.Workload:
    """Return the digits MLP with digits repeated until each worker has a full batch."""
    pictures, labels = load_digits(return_X_y=True)
    times = -(-batch_size * workers // len(pictures))
    x = np.tile(pictures.reshape(-1, 8, 8).astype(np.float32), (times, 1, 1))
    return workloads.images(x, np.tile(labels, times), model="mlp", batch_size=batch_size)


def compressed(steps: int) -> int:
    """EF21 with Top 1 % on 64 workers, digits as they are; return worker-steps."""
    strategy = tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.01), feedback=tacit.EF21())
    simulate(workloads.digits(model="mlp"), strategy, 64, steps, tacit.Constant(mean_s=0.02))
    return 64 * steps


def swarm(steps: int, compressor: tacit.Lattice | None = None) -> int:
    """SwarmSGD with 256 nodes and 4 local steps, digits as they are; return worker-steps."""
    strategy = tacit.SwarmSGD(local_steps=4, compressor=compressor)
    simulate(workloads.digits(model="mlp"), strategy, 256, steps, tacit.Exponential(mean_s=0.02))
    return 256 * steps


def served(updates: int) -> int:
    """KSync(k=32) with 64 learners and batches of 32; return the gradients that updates use."""
    simulate(full_batches(64), tacit.KSync(k=32), 64, updates, tacit.Exponential(mean_s=0.02))
    return 32 * updates


def simulate(
    workload: workloads.Workload,
    strategy: tacit.Strategy,
    workers: int,
    steps: int,
    compute: tacit.cluster.delays.Delay,
) -> None:
    """Run a simulation that is evaluated at start and end only."""
    cluster = tacit.Cluster(workers=workers, compute=compute)
    tacit.simulate(workload, strategy, cluster=cluster, steps=steps, evaluate_every=steps, lr=0.1)


CASES: dict[str, tuple[Callable[[int], int], int]] = {  # how to run it, and steps or updates
    "EF21, Top 1 %, 64 workers": (compressed, 96),
    "SwarmSGD(4), 256 nodes": (swarm, 80),
    "SwarmSGD(4), 8-bit lattice, 256 nodes": (lambda steps: swarm(steps, tacit.Lattice(bits=8)), 40),
    "KSync(32), 64 learners": (served, 60),
}


def rates(name: str) -> dict[str, float]:
    """Return the best rates of several runs after a short first one, by wall time and by processor time."""
    run, steps = CASES[name]
    run(max(4, steps // 12))
    found = {"worker_steps_per_s": 0.0, "worker_steps_per_processor_s": 0.0}
    for _ in range(RUNS):
        wall_s, processor_s = time.perf_counter(), time.process_time()
        count = run(steps)
        own = (count / (time.perf_counter() - wall_s), count / (time.process_time() - processor_s))
        found = {key: max(before, rate) for (key, before), rate in zip(found.items(), own, strict=True)}
    return found


if __name__ == "__main__":
    print(json.dumps({name: rates(name) for name in sys.argv[1:] or CASES}))
