"""Several learning rates for each strategy: the best one for the table, and all of them on request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.record.run import Run
from tacit.report import Entry


@dataclass(frozen=True)
class RateResult:
    """Final losses of one learning rate, one per seed; None where the run failed or is missing."""

    lr: float
    losses: tuple[float | None, ...]

    @property
    def mean(self) -> float | None:
        """The mean over all seeds; None unless every seed has a loss."""
        known = [loss for loss in self.losses if loss is not None]
        return sum(known) / len(known) if known and len(known) == len(self.losses) else None

    @property
    def rank(self) -> tuple[int, float]:
        """The key that orders rates: seeds without a loss, then the mean over the others."""
        known = [loss for loss in self.losses if loss is not None]
        return len(self.losses) - len(known), sum(known) / len(known) if known else math.inf

    def __str__(self) -> str:
        known = sum(loss is not None for loss in self.losses)
        shown = f"{self.mean:.4g}" if self.mean is not None else f"{known} of {len(self.losses)} finished"
        return f"{self.lr:.4g} → {shown}"


@dataclass(frozen=True)
class RateResults:
    """Results of all learning rates of one strategy, in the order given."""

    results: tuple[RateResult, ...]

    @classmethod
    def of(cls, runs: Mapping[float, Sequence[Run]], seeds: Sequence[int]) -> RateResults:
        """Return the results of ``runs`` by learning rate; each has one run per seed at most."""
        found = []
        for lr, group in runs.items():
            losses = {run.seed: run.summary()["loss"] for run in group if run.status == "finished"}
            found.append(RateResult(lr, tuple(losses.get(seed) for seed in seeds)))
        return cls(tuple(found))

    @property
    def best(self) -> RateResult:
        """The rate with the smallest mean final loss; rates with failed runs come after all others."""
        return min(self.results, key=lambda result: result.rank)

    @property
    def note(self) -> str:
        """The chosen rate as a short text."""
        return f"lr={self.best.lr:.4g}, best of {len(self.results)} by final loss"

    def __str__(self) -> str:
        return f"mean final loss by lr: {', '.join(map(str, self.results))}"

    def as_json(self) -> dict[str, Any]:
        """Return the results for JSON."""
        rows = [{"lr": one.lr, "mean": one.mean, "per_seed": list(one.losses)} for one in self.results]
        return {"best": self.best.lr, "rates": rows}


def best_entry(label: str, runs: Mapping[float, Sequence[Run]], results: RateResults) -> Entry:
    """Return the entry of a strategy with its best rate."""
    return Entry(label, runs[results.best.lr], results.note)


def all_entries(label: str, runs: Mapping[float, Sequence[Run]]) -> list[Entry]:
    """Return one entry for each rate of a strategy."""
    return [Entry(rate_label(label, lr), group) for lr, group in runs.items()]


def rate_label(label: str, lr: float) -> str:
    """Return the label of a strategy with one of its rates."""
    return f"{label}, lr={lr!r}"


def by_rate(runs: Sequence[Run], rates: Sequence[float]) -> dict[float, list[Run]]:
    """Return the runs of one strategy by learning rate, in the order of ``rates``."""
    groups = {lr: [run for run in runs if run.config.get("lr") == lr] for lr in rates}
    return {lr: group for lr, group in groups.items() if group}
