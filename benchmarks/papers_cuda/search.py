"""Which run of the benchmark comes next, given the rows of those that were made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.papers_cuda.parts import SEEDS, TUNING_SEED, Group
from benchmarks.papers_cuda.trainings import Training, best_of

Rows = dict[Training, dict[str, Any]]


@dataclass(frozen=True)
class Search:
    """For each group first the rates of all methods on the tuning seed, then the seeds at the best rates."""

    groups: Sequence[Group]
    seeds: tuple[int, ...] = SEEDS

    def next(self, rows: Rows) -> Training | None:
        """Return the next run; None at the end."""
        return next(iter(self.ready(rows)), None)

    def ready(self, rows: Rows) -> list[Training]:
        """Return all missing runs that can start now, in their order: none depends on another one of them."""
        found: list[Training] = []
        for group in self.groups:
            tuning = {method: self._tuning(group, method, rows) for method in group.methods}
            found += [run for runs in tuning.values() for run in runs]
            found += [
                run
                for method, runs in tuning.items()
                if not runs and self._is_based(group, method, rows)
                for run in self._repeats(group, method, rows)
            ]
        return found

    def best_rate(self, group: Group, method: str, rows: Rows) -> float | None:
        """Return the rate of highest accuracy on the tuning seed, or the only one that is planned."""
        planned = self._planned(group, method, rows)
        if group.like is not None and len(planned) == 1:
            return planned[0]
        best = best_of(rows[one] for one in rows if is_tuning(one, group, method))
        return None if best is None else float(best["lr"])

    def missing(self, rows: Rows) -> dict[str, int]:
        """Return the least number of runs that each group still needs."""
        found = {}
        for group in self.groups:
            made = sum(1 for one in rows if (one.part, one.group) == (group.part, group.name))
            found[f"part {group.part}, {group.name}"] = max(
                0, len(group.methods) * (group.tried + len(self.seeds)) - made
            )
        return found

    def _like(self, group: Group) -> Group:
        return next(one for one in self.groups if (one.part, one.name) == (group.part, group.like))

    def _planned(self, group: Group, method: str, rows: Rows) -> tuple[float, ...]:
        if group.like is None:
            return group.rates
        base = self.best_rate(self._like(group), method, rows)
        return () if base is None else tuple(_short(base * factor) for factor in group.factors)

    def _is_based(self, group: Group, method: str, rows: Rows) -> bool:
        """Return whether the search in the group that gives the rates is complete."""
        return group.like is None or not self._tuning(self._like(group), method, rows)

    def _tuning(self, group: Group, method: str, rows: Rows) -> list[Training]:
        planned = self._planned(group, method, rows) if self._is_based(group, method, rows) else ()
        if not planned or (group.like is not None and len(planned) == 1):
            return []
        one = _first(group, method)
        tried = sorted(row.lr for row in rows if is_tuning(row, group, method))
        missing = [rate for rate in planned if rate not in tried]
        if missing:
            return [replace(one, lr=rate) for rate in missing]
        best = self.best_rate(group, method, rows)
        if best is None or len(tried) >= group.most or tried[0] < best < tried[-1]:
            return []
        return [replace(one, lr=_short(best / 2 if best == tried[0] else best * 2))]

    def _repeats(self, group: Group, method: str, rows: Rows) -> list[Training]:
        rate = self.best_rate(group, method, rows)
        if rate is None:
            return []
        one = replace(_first(group, method), lr=rate, epochs=group.setting.epochs)
        return [run for seed in self.seeds if (run := replace(one, seed=seed)) not in rows]


def is_tuning(one: Training, group: Group, method: str) -> bool:
    key = (one.part, one.group, one.method, one.seed, one.epochs)
    return key == (group.part, group.name, method, TUNING_SEED, group.setting.tuning_epochs)


def final_rows(rows: Iterable[dict[str, Any]], group: Group, method: str, rate: float) -> list[dict[str, Any]]:
    """Return the finished runs of the seeds at ``rate``."""
    wanted = (group.part, group.name, method, rate, group.setting.epochs)
    return [
        row
        for row in rows
        if (row["part"], row["group"], row["method"], row["lr"], row["epochs"]) == wanted
        and row["seed"] != TUNING_SEED
        and row["accuracy"] is not None
    ]


def _first(group: Group, method: str) -> Training:
    return Training(group.part, group.name, method, 0.0, TUNING_SEED, group.setting.tuning_epochs)


def _short(rate: float) -> float:
    """Return ``rate`` with six digits, so that it equals the one in a file."""
    return float(f"{rate:.6g}")
