"""Table of pairwise exchanges: their number, their cost, and the age of the models that were read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.record.run import Run
from tacit.record.trace import NOTE, SEND
from tacit.report import units
from tacit.report.comparison import Comparison

HEADINGS = (
    "exchanges per node",
    "bytes per exchange",
    "age of the model read",
    "skipped",
    "overflows",
    "worst single node",
)


@dataclass(frozen=True)
class Exchanges:
    """The row of one strategy, as texts under ``HEADINGS``."""

    label: str
    cells: tuple[str, ...]


def exchanges_of(comparison: Comparison) -> list[Exchanges]:
    """Return a row for every strategy with pairwise exchanges, which both nodes note as "met" in the trace."""
    found = []
    for entry in comparison.entries:
        runs = [run for run in entry.runs if len(_noted(run, "met"))]
        if runs:
            found.append(Exchanges(entry.label, _cells(runs)))
    return found


def _cells(runs: Sequence[Run]) -> tuple[str, ...]:
    per_node = np.concatenate([_per_node(run) for run in runs])
    sent = sum(int(run.trace.unordered(("size_bytes",), SEND)[0].sum()) for run in runs)
    ages = np.concatenate([_noted(run, "staleness") for run in runs])
    skipped, overflows = (sum(len(_noted(run, name)) for run in runs) for name in ("skipped", "overflow"))
    exchanges = per_node.sum() / 2
    return (
        f"{per_node.mean():.1f} ({per_node.min()}–{per_node.max()})",
        units.size(sent / exchanges),
        f"{ages.mean():.1f} steps, at most {ages.max():.0f}" if len(ages) else "–",
        f"{units.count(skipped)} ({units.share(skipped / (skipped + exchanges))})" if skipped else "none",
        f"{units.count(overflows)} ({units.share(overflows / exchanges)})" if overflows else "none",
        _worst(runs),
    )


def _worst(runs: Sequence[Run]) -> str:
    """Return the loss and the metric of the worst node of any seed."""
    last = [run.history[-1] for run in runs if run.history and run.history[-1].get("worst_loss") is not None]
    if not last:
        return "–"
    worst = max(last, key=lambda row: row["worst_loss"])
    metric = worst.get("worst_metric")
    return f"loss {units.loss(worst['worst_loss'])}" + ("" if metric is None else f", metric {units.loss(metric)}")


def _noted(run: Run, name: str) -> np.ndarray:
    found: np.ndarray = run.trace.unordered(("value",), NOTE, name)[0]
    return found


def _per_node(run: Run) -> np.ndarray:
    ranks = run.trace.unordered(("rank",), NOTE, "met")[0]
    return np.bincount(ranks, minlength=run.workers)
