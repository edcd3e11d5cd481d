"""One training of a paper's method on CIFAR-10: what it needs, and the row of numbers that it leaves."""

from __future__ import annotations

import json
import math
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
from benchmarks.papers.horizon import simulate_until
from benchmarks.papers_cuda.parts import GROUPS, Group, Setting, quick_groups
from tacit import workloads
from tacit.workloads.data.image_files import read_cifar10

EVALUATIONS: Final = 20


@dataclass(frozen=True)
class Training:
    """One run: a method of a group, a learning rate, a seed and a length."""

    part: int
    group: str
    method: str
    lr: float
    seed: int
    epochs: int


@dataclass(frozen=True)
class Pictures:
    """Where the pictures come from. ``folder`` None: random ones, ``count`` of them, ``width`` pixels wide."""

    folder: Path | None
    count: int = 20_000
    width: int = 32
    model: str = "resnet"

    def workload(self, setting: Setting) -> workloads.Workload:
        """Return the model on these pictures, with random crops and flips."""
        return _workload(self, setting.split, setting.batch)

    def __len__(self) -> int:
        return len(_arrays(self)[0])


@cache
def _arrays(pictures: Pictures) -> tuple[np.ndarray, ...]:
    if pictures.folder is not None:
        return tuple(np.asarray(part) for part in read_cifar10(pictures.folder))
    random, tests = np.random.default_rng(0), pictures.count // 10
    shape = (pictures.count + tests, 3, pictures.width, pictures.width)
    x = random.integers(0, 256, shape, dtype=np.uint8)
    y = random.integers(0, 10, pictures.count + tests)
    return x[:-tests], y[:-tests], x[-tests:], y[-tests:]


@cache
def _workload(pictures: Pictures, split: str, batch: int) -> workloads.Workload:
    x, y, x_test, y_test = _arrays(pictures)
    return workloads.images(
        x,
        y,
        test=(x_test, y_test),
        model=pictures.model,
        split=split,
        alpha=0.3,
        batch_size=batch,
        crop_padding=pictures.width // 8,
        flip=True,
    )


def make_run(training: Training, pictures: Pictures, device: str, is_quick: bool) -> dict[str, Any]:
    """Make a run, in whichever process; return its row."""
    torch.set_num_threads(1)
    groups = quick_groups(GROUPS) if is_quick else GROUPS
    group = next(one for one in groups if (one.part, one.name) == (training.part, training.group))
    return train(training, group, pictures, device)


def train(training: Training, group: Group, pictures: Pictures, device: str) -> dict[str, Any]:
    """Make the run; return its row."""
    setting, strategy = group.setting, group.strategy(training.method, training.lr)
    per_epoch = max(1, len(pictures) // (setting.workers * setting.batch))
    steps = max(1, training.epochs * per_epoch)
    settings: dict[str, Any] = {
        "cluster": setting.cluster(),
        "seed": training.seed,
        "lr": training.lr,
        "momentum": setting.momentum,
        "weight_decay": setting.weight_decay,
        "schedule": setting.schedule,
        "device": device,
    }
    begun_s, status = time.perf_counter(), "finished"
    run: tacit.Run | None
    try:
        if setting.is_timed:
            horizon_s = steps * setting.compute.expected_s  # each of P learners takes a step a mean time
            run = simulate_until(horizon_s, EVALUATIONS, pictures.workload(setting), strategy, **settings)
        else:
            settings |= {"steps": steps, "evaluate_every": max(1, steps // EVALUATIONS)}
            run = tacit.simulate(pictures.workload(setting), strategy, **settings)
    except tacit.RunError as error:
        if error.run is None:
            raise
        run, status = error.run, f"{type(error).__name__}: {error}"
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return {**asdict(training), **_row_of(run, strategy, status), "wall_s": round(time.perf_counter() - begun_s, 2)}


def _row_of(run: tacit.Run, strategy: tacit.Strategy[Any], status: str) -> dict[str, Any]:
    summary, last = run.summary(), run.history[-1]
    is_done = status == "finished" and last["loss"] is not None and math.isfinite(last["loss"])
    return {
        "status": status if is_done or status != "finished" else "the loss is not finite",
        "accuracy": last["metric"] if is_done else None,
        "loss": last["loss"] if is_done else None,
        "steps": last["step"],
        "time_s": last["time_s"],
        "rounds": summary["rounds"],
        "bytes_sent": summary["bytes_sent"],
        "curve": [
            [row["step"], _short(row["time_s"]), row["bytes_sent"], _short(row["loss"]), _short(row["metric"])]
            for row in run.history
        ],
        "periods": _thinned(realised_periods(run)) if isinstance(strategy, tacit.LocalSGD) and is_done else None,
        "engine": run.record.get("engine"),
    }


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


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
    """Return the rows of earlier runs; a last line that was cut is left out.

    The first rows are of part 1 alone, and name a group by its split.
    """
    rows: dict[Training, dict[str, Any]] = {}
    names = Training.__dataclass_fields__
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        row = {"part": 1, "group": row.get("split"), **row}
        rows[Training(**{name: row[name] for name in names})] = row
    return rows


def mean_period(row: dict[str, Any]) -> float:
    """Return the steps per round of a run."""
    return float(row["steps"]) / max(1, int(row["rounds"]))


def best_of(rows: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row of highest accuracy; None if no run finished."""
    finished = [row for row in rows if row["accuracy"] is not None]
    return max(finished, key=lambda row: row["accuracy"], default=None)
