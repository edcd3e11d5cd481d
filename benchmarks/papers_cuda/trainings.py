"""One training of a paper's method on CIFAR-10: what it needs, and the row of numbers that it leaves."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import tacit
from benchmarks.papers.common import realised_periods
from tacit import workloads
from tacit.workloads.data.image_files import read_cifar10

WORKERS: Final = 16
BATCH: Final = 32
MOMENTUM: Final = 0.9
WEIGHT_DECAY: Final = 5e-4
EVALUATIONS: Final = 10
SCHEDULE: Final = tacit.StepDecay(at=(0.5, 0.75), by=0.1)

METHODS: Final[dict[str, tacit.Strategy[Any]]] = {
    "full communication": tacit.AllReduce(),
    "CPSGD": tacit.LocalSGD(period=tacit.Every(8)),
    "ADPSGD": tacit.LocalSGD(period=tacit.VariancePeriod(initial=4)),
    "RatePeriod, power 1": tacit.LocalSGD(period=tacit.RatePeriod(initial=4, power=1)),
    "RatePeriod, power 2": tacit.LocalSGD(period=tacit.RatePeriod(initial=4, power=2)),
    "QSGD, 8 bit": tacit.CompressedGradient(compressor=tacit.QSGD(bits=8)),
    "QSGD, 4 bit": tacit.CompressedGradient(compressor=tacit.QSGD(bits=4)),
}


@dataclass(frozen=True)
class Training:
    """One run: a method, a learning rate and a seed. ``split``: "shuffled" or "dirichlet", with alpha 0.3."""

    split: str
    method: str
    lr: float
    seed: int
    epochs: int


@dataclass(frozen=True)
class Pictures:
    """Where the pictures come from. ``folder`` None: random ones of CIFAR-10's size, ``count`` of them."""

    folder: Path | None
    count: int = 20_000

    def workload(self, split: str) -> workloads.Workload:
        """Return ResNet-20 with GroupNorm on these pictures, with random crops and flips."""
        return _workload(self, split)


@cache
def _arrays(pictures: Pictures) -> tuple[np.ndarray, ...]:
    if pictures.folder is not None:
        return tuple(np.asarray(part) for part in read_cifar10(pictures.folder))
    random, tests = np.random.default_rng(0), pictures.count // 10
    x = random.integers(0, 256, (pictures.count + tests, 3, 32, 32), dtype=np.uint8)
    y = random.integers(0, 10, pictures.count + tests)
    return x[:-tests], y[:-tests], x[-tests:], y[-tests:]


@cache
def _workload(pictures: Pictures, split: str) -> workloads.Workload:
    x, y, x_test, y_test = _arrays(pictures)
    return workloads.images(
        x,
        y,
        test=(x_test, y_test),
        model="resnet",
        split=split,
        alpha=0.3,
        batch_size=BATCH,
        crop_padding=4,
        flip=True,
    )


def train(training: Training, pictures: Pictures, device: str) -> dict[str, Any]:
    """Make the run; return its row."""
    per_epoch = len(_arrays(pictures)[0]) // (WORKERS * BATCH)
    steps = max(1, training.epochs * per_epoch)
    begun_s = time.perf_counter()
    status = "finished"
    try:
        run = tacit.simulate(
            pictures.workload(training.split),
            METHODS[training.method],
            cluster=tacit.Cluster(workers=WORKERS, compute=tacit.Constant(mean_s=0.1)),
            steps=steps,
            seed=training.seed,
            lr=training.lr,
            momentum=MOMENTUM,
            weight_decay=WEIGHT_DECAY,
            schedule=SCHEDULE,
            evaluate_every=max(1, steps // EVALUATIONS),
            device=device,
        )
    except (tacit.TacitError, FloatingPointError, ValueError) as error:
        if getattr(error, "run", None) is None:
            raise
        run, status = error.run, f"{type(error).__name__}: {error}"  # type: ignore[attr-defined]
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    summary = run.summary()
    is_local = isinstance(METHODS[training.method], tacit.LocalSGD)
    return {
        **asdict(training),
        "status": status,
        "accuracy": summary["metric"] if status == "finished" else None,
        "accuracies": [row["metric"] for row in run.history],
        "loss": summary["loss"] if status == "finished" else None,
        "steps": steps,
        "rounds": summary["rounds"],
        "bytes_sent": summary["bytes_sent"],
        "periods": _thinned(realised_periods(run)) if is_local and status == "finished" else None,
        "engine": run.record.get("engine"),
        "wall_s": round(time.perf_counter() - begun_s, 2),
    }


def _thinned(periods: list[int]) -> list[list[int]]:
    """Return runs of equal periods as pairs of period and count."""
    pairs: list[list[int]] = []
    for period in periods:
        if pairs and pairs[-1][0] == period:
            pairs[-1][1] += 1
        else:
            pairs.append([period, 1])
    return pairs


def read_rows(path: Path) -> dict[Training, dict[str, Any]]:
    """Return the rows of earlier runs; a last line that was cut is left out."""
    rows: dict[Training, dict[str, Any]] = {}
    names = Training.__dataclass_fields__
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows[Training(**{name: row[name] for name in names})] = row
    return rows


def mean_period(row: dict[str, Any]) -> float:
    """Return the steps per round of a run."""
    return float(row["steps"]) / max(1, row["rounds"])


def best_of(rows: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row of highest accuracy; None if no run finished."""
    finished = [row for row in rows if row["accuracy"] is not None]
    return max(finished, key=lambda row: row["accuracy"], default=None)
