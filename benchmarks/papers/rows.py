"""Runs that a benchmark of hours keeps: one JSON line for each, so that it can be stopped and continued; and the search
of a learning rate that every method gets.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.papers.common import data_file, spread_of

TUNING_SEED: Final = 100
SEEDS: Final = (0, 1, 2)

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A method on a problem, without the learning rate and the seed that a search varies."""

    part: int
    problem: str
    method: str


class Rows:
    """The rows of a file, by their key; a last line that was cut is left out."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: dict[str, Row] = {}
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            self._rows[_key(row["key"])] = row

    def __len__(self) -> int:
        return len(self._rows)

    def has(self, key: Mapping[str, Any]) -> bool:
        return _key(key) in self._rows

    def cost(self, part: int) -> str:
        """Return what the runs of a part took, on whatever machine made them."""
        own = [row["processor_s"] for row in self._rows.values() if row["key"].get("part") == part]
        return f" Cost: {len(own)} runs, {sum(own) / 60:.0f} min of processor time."

    def get(self, key: Mapping[str, Any], make: Callable[[], Row]) -> Row:
        """Return the row of ``key``; make it and append it to the file if there is none."""
        found = self._rows.get(_key(key))
        if found is None:
            began_s = time.process_time()
            found = _rounded({"key": dict(key), **make(), "processor_s": time.process_time() - began_s})
            self._rows[_key(key)] = found
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a") as file:
                    file.write(json.dumps(found) + "\n")
            shown = ", ".join(f"{value}" for value in key.values())
            score = f": {score_of(found):.4g}" if "score" in found else ""
            print(f"    {shown}{score} ({found['processor_s']:.1f} s)", flush=True)
        return found


@dataclass(frozen=True)
class Search:
    """Learning rates on a seed of its own, in factors of ``factor``; one more beyond an edge while the best lies on it.

    most: largest number of rates. seeds: those that run at the best rate.
    """

    rates: tuple[float, ...]
    factor: float = 2.0
    most: int = 6
    seeds: tuple[int, ...] = SEEDS

    @property
    def least_runs(self) -> int:
        return len(self.rates) + len(self.seeds)

    def best_rate(self, rows: Rows, case: Case, train: Callable[[float, int], Row]) -> tuple[float, list[float]]:
        """Return the rate with the lowest score, and all that were tried."""
        scores: dict[float, float] = {}
        wanted = list(self.rates)
        while wanted:
            for rate in wanted:
                row = rows.get(key_of(case, rate, TUNING_SEED), partial(train, rate, TUNING_SEED))
                scores[rate] = score_of(row)
            best = min(scores, key=lambda rate: (scores[rate], rate))
            tried = sorted(scores)
            wanted = []
            if len(tried) < self.most and math.isfinite(scores[best]):
                if best == tried[0]:
                    wanted = [best / self.factor]
                elif best == tried[-1]:
                    wanted = [best * self.factor]
        return best, sorted(scores)

    def run(self, rows: Rows, case: Case, train: Callable[[float, int], Row]) -> Tuned:
        """Search the rate and run the seeds; ``train`` takes a rate and a seed."""
        rate, tried = self.best_rate(rows, case, train)
        found = [rows.get(key_of(case, rate, seed), partial(train, rate, seed)) for seed in self.seeds]
        return Tuned(rate, tuple(tried), tuple(found))


@dataclass(frozen=True)
class Tuned:
    """The runs of a method at its best rate, one for each seed."""

    rate: float
    tried: tuple[float, ...]
    rows: tuple[Row, ...]

    def of(self, name: str) -> dict[str, float]:
        """Return mean and spread of a number over the seeds."""
        return spread_of(row[name] if row[name] is not None else math.inf for row in self.rows)

    def numbers(self, *names: str) -> dict[str, Any]:
        return {
            "rate": self.rate,
            "rates": list(self.tried),
            **{name: [row[name] for row in self.rows] for name in names},
        }


def key_of(case: Case, rate: float, seed: int) -> dict[str, Any]:
    return {**asdict(case), "rate": float(f"{rate:.6g}"), "seed": seed}


def score_of(row: Row) -> float:
    """Return what a search minimises; infinity where the run did not end."""
    return math.inf if row["score"] is None else float(row["score"])


def shown(values: Mapping[str, float]) -> str:
    """Return mean ± standard error."""
    if not math.isfinite(values["mean"]):
        return "not on every seed"
    return f"{values['mean']:.4g} ± {values['standard_error']:.2g}"


def rows_of(chosen: argparse.Namespace) -> Rows:
    """Return the rows that earlier runs of the same kind left beside ``--out``."""
    stem = chosen.out.stem.removesuffix("_partial")
    return Rows(chosen.out.with_name(f"{stem}_rows.jsonl"))


def say_cost(what: str, cases: Iterable[tuple[str, int, float]]) -> None:
    """Print what a part costs before it starts: for each problem the least number of runs, and seconds of each."""
    listed = list(cases)
    total_s = sum(runs * seconds for _, runs, seconds in listed)
    each = ", ".join(f"{name} {runs} × {seconds:g} s" for name, runs, seconds in listed)
    print(f"  {what}: about {total_s / 60:.1f} min of one core ({each}), less what earlier runs left", flush=True)


def any_file(folder: Path | None, names: Sequence[str]) -> Path | None:
    """Return the first of these files of the data folder that is there."""
    found = (folder / name for name in names) if folder is not None else ()
    return next((path for path in found if path.is_file()), None)


def mnist_file(folder: Path | None) -> Path:
    """Return the file of MNIST's training pictures, or leave with its name."""
    known = any_file(folder, [f"mnist/train-images-idx3-ubyte{ending}" for ending in ("", ".gz", ".xz")])
    return known or data_file(folder, "mnist/train-images-idx3-ubyte.xz")


def _key(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def _rounded(value: Any) -> Any:
    """Return ``value`` with floats of seven digits, and None for what is not finite."""
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value
