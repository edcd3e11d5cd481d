"""Results of a comparison, and the checks of its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.compare.rates import RateResults
from tacit.compare.tuning import FACTORS, FURTHER, Tuning
from tacit.errors import require
from tacit.report import Comparison


@dataclass(frozen=True)
class Findings:
    """Results of a comparison. ``comparison`` is None if it was interrupted before its first reported run ended.

    ``rates``: by strategy, the results of each learning rate where several were given; ``comparison`` then has the best
    of each, and ``all_rates`` all of them. ``notes`` are sentences about the runs that a user might not expect.
    """

    comparison: Comparison | None
    tunings: Mapping[str, Tuning] = field(default_factory=dict)
    interrupted: bool = False
    notes: Sequence[str] = ()
    rates: Mapping[str, RateResults] = field(default_factory=dict)
    all_rates: Comparison | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the results for JSON."""
        tunings = {
            label: {"seed": t.seed, "candidates": [{"lr": c.lr, "loss": c.loss} for c in t.candidates]}
            for label, t in self.tunings.items()
        }
        compared = self.comparison.as_json() if self.comparison is not None else {}
        rates = {"rates": {label: results.as_json() for label, results in self.rates.items()}} if self.rates else {}
        return {**compared, "tuning": tunings, **rates, "interrupted": self.interrupted}


def count_runs(strategies: int, seeds: int, tune: bool, rates: int = 1) -> int:
    """Return the number of runs of a comparison."""
    return strategies * (seeds * rates + (len(FACTORS) + FURTHER if tune else 0))


def check_pairs(labels: Sequence[str], seeds: Sequence[int]) -> None:
    """Raise ``ValueError`` unless there are strategies, given by ``labels``, and seeds, each of them once."""
    require(len(labels) > 0, "strategies=[] is empty; name at least one strategy.")
    repeated = next((label for label in labels if labels.count(label) > 1), None)
    require(
        repeated is None,
        f"strategies contains {repeated} twice; give each strategy once, and several seeds to see its variation.",
    )
    require(len(seeds) > 0, "seeds=[] is empty; name at least one seed.")
    require(
        len(set(seeds)) == len(seeds), f"seeds={list(seeds)} repeat and would give equal runs; give each seed once."
    )


def check_rates(rates: Sequence[float], tune: bool) -> None:
    """Raise ``ValueError`` unless there are learning rates, each of them positive and once; one if ``tune``."""
    require(len(rates) > 0, "lr=[] is empty; name at least one learning rate.")
    for lr in rates:
        require(lr > 0, f"lr={lr} must be positive.")
    shown = list(rates)
    require(len(set(rates)) == len(rates), f"lr={shown} repeat and would give equal runs; give each rate once.")
    require(not tune or len(rates) == 1, f"lr={shown}: tune=True searches around one rate; give one rate, or no tune.")
