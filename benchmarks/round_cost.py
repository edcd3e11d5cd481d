"""The simulator's own cost of a round of LocalSGD(Every(8)), as JSON: processor time per worker and round.

    PYTHONPATH=TREE/src python benchmarks/round_cost.py [--quick]

The workload is a quadratic of dimension 10. The time of a run with few rounds is subtracted, so that what is done once
does not count, and so is the time inside the calls that evaluate gradients, which is measured in the same run.
`benchmarks/simulator.py --only rounds` measures an earlier commit as well, so the script uses names that both have, or
asks for them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch

import tacit
from tacit import workloads

PERIOD, FEW, MANY, DIMENSION = 8, 4, 36, 10
calls_s = [0.0]  # of the current run
TIMES = {"constant": tacit.Constant(mean_s=0.02), "exponential": tacit.Exponential(mean_s=0.02)}
WORKLOAD = workloads.quadratic(dimension=DIMENSION, noise=0.0)


def run_s(workers: int, rounds: int, compute: object, timing_only: bool) -> float:
    """Return the processor time of a run, without that inside the calls that evaluate gradients."""
    cluster, steps = tacit.Cluster(workers=workers, compute=compute), rounds * PERIOD
    calls_s[0] = 0.0
    begun = time.process_time()
    tacit.simulate(
        WORKLOAD,
        tacit.LocalSGD(period=tacit.Every(PERIOD)),
        cluster=cluster,
        steps=steps,
        evaluate_every=steps,
        timing_only=timing_only,
    )
    return time.process_time() - begun - calls_s[0]


def measure_calls() -> None:
    """Add the processor time of each call that evaluates gradients to ``calls_s``."""
    try:
        from tacit.simulation.engine.calls.plain_gradients import PlainGradients

        owner, name = PlainGradients, "evaluate"
    except ImportError:  # an earlier commit
        from tacit.simulation.engine.engine import Engine

        owner, name = Engine, "_evaluate"
    evaluate: Callable[..., Any] = getattr(owner, name)

    def measured(*arguments: Any) -> Any:
        begun = time.process_time()
        try:
            return evaluate(*arguments)
        finally:
            calls_s[0] += time.process_time() - begun

    setattr(owner, name, measured)


def round_us(workers: int, compute: object, timing_only: bool, repetitions: int) -> float:
    """Return microseconds per worker and round; each time is the least of several."""
    pairs = [[run_s(workers, rounds, compute, timing_only) for rounds in (FEW, MANY)] for _ in range(repetitions)]
    few_s, many_s = (min(column) for column in zip(*pairs, strict=True))
    return 1e6 * (many_s - few_s) / (MANY - FEW) / workers


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="one repetition with 64 workers, to see that it runs")
    is_quick = arguments.parse_args().quick
    measure_calls()
    torch.set_num_threads(1)  # processor time of idle threads is no cost of the simulator
    sizes, repetitions = ((64,), 1) if is_quick else ((256, 1000), 2)
    run_s(4, 2, TIMES["constant"], False)  # what is imported on first use
    found: dict[str, dict[str, float]] = {}
    for workers in sizes:
        for name, compute in TIMES.items():
            found[f"{workers} workers, {name} times"] = {
                "without the calls that evaluate gradients": round_us(workers, compute, False, repetitions),
                "timing-only run": round_us(workers, compute, True, repetitions),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
