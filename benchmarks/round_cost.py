"""The simulator's own cost of a round of LocalSGD(Every(8)), as JSON: processor time per worker and round.

    PYTHONPATH=TREE/src python benchmarks/round_cost.py [--quick]

The workload is a quadratic of dimension 10. The time of a run with few rounds is subtracted, and that of the vmap calls
alone, with as many replicas per call as the simulator has. `benchmarks/simulator.py --only rounds` measures an earlier
commit as well, so the script uses names that both have.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

import tacit
from tacit import workloads
from tacit.core.randomness import Streams

try:
    from tacit.simulation.engine.calls.batched_calls import replicas_per_call
except ImportError:  # an earlier commit

    def replicas_per_call(dimension: int, batch_size: int, device: torch.device) -> int:
        return 256


PERIOD, FEW, MANY, DIMENSION = 8, 2, 18, 10
TIMES = {"constant": tacit.Constant(mean_s=0.02), "exponential": tacit.Exponential(mean_s=0.02)}
WORKLOAD = workloads.quadratic(dimension=DIMENSION, noise=0.0)


def run_s(workers: int, rounds: int, compute: object, timing_only: bool) -> float:
    """Return the processor time of a run."""
    cluster, steps = tacit.Cluster(workers=workers, compute=compute), rounds * PERIOD
    begun = time.process_time()
    tacit.simulate(
        WORKLOAD,
        tacit.LocalSGD(period=tacit.Every(PERIOD)),
        cluster=cluster,
        steps=steps,
        evaluate_every=steps,
        timing_only=timing_only,
    )
    return time.process_time() - begun


def round_us(workers: int, compute: object, timing_only: bool, repetitions: int) -> float:
    """Return microseconds per worker and round, the vmap calls included; each time is the least of several."""
    pairs = [[run_s(workers, rounds, compute, timing_only) for rounds in (FEW, MANY)] for _ in range(repetitions)]
    few_s, many_s = (min(column) for column in zip(*pairs, strict=True))
    return 1e6 * (many_s - few_s) / (MANY - FEW) / workers


def calls_us(workers: int, calls: int) -> float:
    """Return microseconds per worker and round of the vmap calls alone."""
    replicas = min(workers, replicas_per_call(DIMENSION, 1, torch.device("cpu")))
    problem = WORKLOAD.open(replicas, Streams(0))
    module, layout = problem.module, problem.layout
    rows = nn.utils.parameters_to_vector(module.parameters()).detach().repeat(replicas, 1)
    batch = problem.collate(range(replicas), [sampler.take(1)[0] for sampler in problem.samplers])
    call = vmap(grad_and_value(lambda parameters, *given: functional_call(module, parameters, given)))
    call(layout.split(rows), *batch)
    begun = time.process_time()
    for _ in range(calls):
        call(layout.split(rows), *batch)
    return PERIOD * 1e6 * (time.process_time() - begun) / calls / replicas


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="one repetition with 64 workers, to see that it runs")
    is_quick = arguments.parse_args().quick
    torch.set_num_threads(1)  # processor time of idle threads is no cost of the simulator
    sizes, repetitions = ((64,), 1) if is_quick else ((256, 1000), 3)
    found: dict[str, dict[str, float]] = {}
    for workers in sizes:
        call = min(calls_us(workers, 20) for _ in range(repetitions))
        for name, compute in TIMES.items():
            found[f"{workers} workers, {name} times"] = {
                "without the vmap calls": round_us(workers, compute, False, repetitions) - call,
                "timing-only run": round_us(workers, compute, True, repetitions),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
