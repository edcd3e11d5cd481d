"""What compressed words cost in either form, and which feedback serves compressed rounds best, in the simulator:

    OMP_NUM_THREADS=1 python benchmarks/aggregation.py [--only bytes,rounds] [--out benchmarks/results/aggregation.json]

bytes: what each rank sends in a step of CompressedGradient, gathered and scattered, by number of workers: digits, batch
16, 100,234 parameters. rounds: the loss of LocalSGD with compressed rounds after 400 steps of 8 workers, digits' MLP
(4,810 parameters): classic error feedback against
  EF21 and EF21-SGDM, each at its best of four learning rates, mean over seeds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import tacit
from tacit import EF21, QSGD, EF21Bidirectional, EF21Momentum, ErrorFeedback, NoFeedback, Sign, TopK, workloads

WORKERS = (4, 16, 64)
STEPS = 5
WORDS = [
    (TopK(fraction=0.01), EF21()),
    (TopK(fraction=0.01), EF21Bidirectional(master=TopK(fraction=0.01))),
    (TopK(fraction=0.1), EF21()),
    (QSGD(bits=8), NoFeedback()),
    (QSGD(bits=4), NoFeedback()),
    (QSGD(bits=8), EF21()),
    (Sign(), ErrorFeedback()),
]
RATES = (0.4, 0.8, 1.6, 3.2)
FEEDBACKS = (ErrorFeedback(), EF21(), EF21Momentum(eta=0.1))
SETTINGS = [(0.01, period, split) for period in (4, 16) for split in ("shuffled", "sorted")]


def measure_bytes() -> list[dict[str, Any]]:
    features, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(features, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))
    workload = workloads.custom(
        model, nn.functional.cross_entropy, data=((x - x.mean(0)) / (x.std(0) + 1e-3), y), batch_size=16
    )
    rows = []
    for compressor, feedback in WORDS:
        row: dict[str, Any] = {"compressor": str(compressor), "feedback": str(feedback)}
        for workers in WORKERS:
            for form in ("gather", "scatter", "auto"):
                strategy = tacit.CompressedGradient(compressor=compressor, feedback=feedback, aggregate=form)
                run = tacit.simulate(workload, strategy, cluster=tacit.Cluster(workers=workers), steps=STEPS, lr=0.1)
                row[f"{form} {workers}"] = round(run.summary()["bytes_sent"] / STEPS / workers)
        shown = "  ".join(f"{key} {value / 1e3:,.0f}" for key, value in row.items() if not isinstance(value, str))
        print(f"{compressor} {feedback}: kB a rank and step: {shown}", flush=True)
        rows.append(row)
    return rows


def measure_rounds(seeds: int) -> list[dict[str, Any]]:
    rows = []
    for fraction, period, split in SETTINGS:
        row: dict[str, Any] = {"fraction": fraction, "period": period, "split": split}
        for feedback in (None, *FEEDBACKS):
            compressor = None if feedback is None else TopK(fraction=fraction)
            losses = {rate: _loss(compressor, feedback, period, split, rate, seeds) for rate in RATES}
            best = min(losses, key=losses.__getitem__)
            row[str(feedback)] = {"loss": losses[best], "lr": best}
        shown = "  ".join(
            f"{key} {value['loss']:.4f} at {value['lr']}" for key, value in row.items() if "loss" in str(value)
        )
        print(f"TopK(fraction={fraction}), Every({period}), {split}: {shown}", flush=True)
        rows.append(row)
    return rows


def _loss(compressor: Any, feedback: Any, period: int, split: str, rate: float, seeds: int) -> float:
    """The mean over seeds of the last loss; one that is not finite counts as infinite."""
    strategy = tacit.LocalSGD(period=tacit.Every(period), compressor=compressor, feedback=feedback)
    losses = []
    for seed in range(seeds):
        try:
            run = tacit.simulate(
                workloads.digits(split=split),
                strategy,
                cluster=tacit.Cluster(workers=8),
                steps=400,
                lr=rate,
                seed=seed,
                evaluate_every=400,
            )
        except (tacit.RunError, ValueError):
            return float("inf")
        losses.append(run.history[-1]["loss"])
    return statistics.mean(losses)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="bytes,rounds")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    results: dict[str, Any] = {
        "command": f"python benchmarks/aggregation.py --only {arguments.only} --seeds {arguments.seeds}",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
    }
    if "bytes" in arguments.only:
        results["bytes"] = measure_bytes()
    if "rounds" in arguments.only:
        results["rounds"] = measure_rounds(arguments.seeds)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
