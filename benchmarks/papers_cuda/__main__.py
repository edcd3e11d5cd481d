"""ADPSGD's table on CIFAR-10 (Jiang & Agrawal, arXiv 2007.06134): `make bench-papers-cuda`, or

    python -m benchmarks.papers_cuda --data FOLDER --rows rows.jsonl [--seconds 540] [--splits shuffled,dirichlet]
        [--quick] [--summary benchmarks/results/papers_cuda.json]

16 simulated workers train ResNet-20 with GroupNorm on 20,000 pictures, with crops and flips: batch 32, momentum 0.9,
weight decay 5e-4, the rate cut to a tenth at 50 and 75 % of 40 epochs. Every method gets the same search: four learning
rates on seed 100, and one more beyond an edge while the best rate lies on it. Then three other seeds run at that rate.

Each run appends a line to --rows. Runs in that file are not made again, so the benchmark can be stopped and continued:
after --seconds no further run starts. It needs torch, numpy, greenlet and tomli-w.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.papers_cuda.summary import write_summary
from benchmarks.papers_cuda.trainings import METHODS, Pictures, Training, best_of, read_rows, train

TUNING_SEED = 100
SEEDS = (0, 1, 2)
RATES = (0.05, 0.1, 0.2, 0.4)
MOST_RATES = 7
EPOCHS = 40


class Search:
    """Which run comes next, given the rows of those that were made."""

    def __init__(self, splits: list[str], epochs: int, rates: tuple[float, ...], seeds: tuple[int, ...]) -> None:
        self._splits, self._epochs, self._rates, self._seeds = splits, epochs, rates, seeds

    def next(self, rows: dict[Training, dict[str, Any]]) -> Training | None:
        """Return the next run: of each split first the search of all methods, then the seeds; None at the end."""
        for split in self._splits:
            tuning = [self._tuning(split, method, rows) for method in METHODS]
            seeds = [self._repeat(split, method, rows) for method in METHODS]
            wanted = next((one for one in [*tuning, *seeds] if one is not None), None)
            if wanted is not None:
                return wanted
        return None

    def best_rate(self, split: str, method: str, rows: dict[Training, dict[str, Any]]) -> float | None:
        """Return the rate of highest accuracy on the tuning seed."""
        best = best_of(rows[one] for one in rows if self._is_tuning(one, split, method))
        return None if best is None else float(best["lr"])

    def _is_tuning(self, one: Training, split: str, method: str) -> bool:
        return (one.split, one.method, one.seed, one.epochs) == (split, method, TUNING_SEED, self._epochs)

    def _tuning(self, split: str, method: str, rows: dict[Training, dict[str, Any]]) -> Training | None:
        tried = sorted(one.lr for one in rows if self._is_tuning(one, split, method))
        missing = [rate for rate in self._rates if rate not in tried]
        if missing:
            return Training(split, method, missing[0], TUNING_SEED, self._epochs)
        best = self.best_rate(split, method, rows)
        if best is None or len(tried) >= MOST_RATES or tried[0] < best < tried[-1]:
            return None
        return Training(split, method, best / 2 if best == tried[0] else best * 2, TUNING_SEED, self._epochs)

    def _repeat(self, split: str, method: str, rows: dict[Training, dict[str, Any]]) -> Training | None:
        rate = self.best_rate(split, method, rows)
        if rate is None:
            return None
        wanted = (Training(split, method, rate, seed, self._epochs) for seed in self._seeds)
        return next((one for one in wanted if one not in rows), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help="folder that holds cifar10-train20000.xz; without it: random pictures"
    )
    parser.add_argument("--rows", type=Path, required=True, help="file of one JSON line for each run")
    parser.add_argument("--seconds", type=float, default=7200.0, help="no further run starts after this time")
    parser.add_argument("--splits", default="shuffled,dirichlet", help="splits of the data, in this order")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="few random pictures and steps: shows that it works")
    parser.add_argument("--summary", type=Path, help="make no run; write this JSON and its Markdown from --rows")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.summary is not None:
        write_summary(list(read_rows(chosen.rows).values()), chosen.summary, TUNING_SEED)
        return
    pictures = Pictures(None, 1024) if chosen.quick else Pictures(chosen.data)
    search = Search(
        chosen.splits.split(","), 1 if chosen.quick else EPOCHS, RATES[:1] if chosen.quick else RATES, SEEDS
    )
    rows = read_rows(chosen.rows)
    begun_s = time.perf_counter()
    print(
        f"{len(rows)} runs are in {chosen.rows.name}; about {len(METHODS) * (len(RATES) + len(SEEDS))} for each split, "
        f"20 s each on an H200; no run starts after {chosen.seconds:.0f} s",
        flush=True,
    )
    while time.perf_counter() - begun_s < chosen.seconds:
        training = search.next(rows)
        if training is None:
            print("all runs are made", flush=True)
            break
        row = rows[training] = train(training, pictures, chosen.device)
        with chosen.rows.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{training.split}, {training.method}, lr {training.lr:g}, seed {training.seed}: accuracy {row['accuracy']}, "
            f"{row['rounds']} rounds, {row['bytes_sent'] / 1e9:.2f} GB, {row['wall_s']} s, {row['engine']}, {row['status'][:80]}",
            flush=True,
        )


if __name__ == "__main__":
    main()
