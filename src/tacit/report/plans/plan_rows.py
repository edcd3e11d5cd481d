"""Rows of plan.json as a page shows them: names, times with their ranges, shares of time, and what dominates what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tacit.report import units

Table = Mapping[str, Any]
FEW_LEFT_OUT: Final = 2
"""Up to this many workers that are left out are named."""
ACTIVITIES: Final = {"computing": "computing", "hooks": "hooks", "wire": "talking", "waiting": "waiting"}
"""Shares of a step's time, and the activity of the report whose colour each has."""


@dataclass(frozen=True)
class PlanRow:
    """One candidate of a plan, with its number in the plan, from 1."""

    number: int
    table: Table
    workers: int  # of the profile
    is_best: bool
    is_baseline: bool
    is_loss: bool = False  # whether losses are compared after a time, not times to a target

    @property
    def name(self) -> str:
        """The strategy, and who takes part if not all do."""
        ranks: Sequence[int] = self.table["ranks"]
        if len(ranks) == self.workers:
            return str(self.table["strategy"])
        if len(ranks) == 1:
            return f"worker {ranks[0]} alone"
        left_out = [rank for rank in range(self.workers) if rank not in ranks]
        if len(left_out) <= FEW_LEFT_OUT:
            return f"{self.table['strategy']} without {' and '.join(f'worker {rank}' for rank in left_out)}"
        return f"{self.table['strategy']} on {len(ranks)} of {self.workers} workers"

    @property
    def own(self) -> Table | None:
        """The predicted time to the target, or the loss, at the user's learning rate."""
        found: Table | None = self.table["loss" if self.is_loss else "time_s"]
        return found

    @property
    def tuned(self) -> Table | None:
        """The same at the best learning rate."""
        found: Table | None = self.table["best_loss" if self.is_loss else "best_time_s"]
        return found

    @property
    def interval(self) -> Table | None:
        """The better of the two; see ``Interval.rank``."""
        known = [one for one in (self.own, self.tuned) if one is not None]
        return min(
            known, key=lambda one: (-one["seeds"], one["median"] if one["mean"] is None else one["mean"]), default=None
        )

    def text(self, value: float) -> str:
        """Return a time with its unit, or a loss."""
        return f"{value:.3g}" if self.is_loss else units.seconds(value)

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the workers' time by what they do."""
        pace = self.table["pace"]
        communication = max(0.0, 1.0 - pace["computing"] - pace["hooks"])
        waiting = min(communication, pace["waiting"])
        return {
            "computing": pace["computing"],
            "hooks": pace["hooks"],
            "wire": communication - waiting,
            "waiting": waiting,
        }


def rows_of(plan: Table) -> list[PlanRow]:
    """Return all rows of a plan, in its order."""
    workers, is_loss = plan["profile"]["cluster"]["workers"], plan["within_s"] is not None
    return [
        PlanRow(number, row, workers, number - 1 == plan["best"], number - 1 == plan["baseline"], is_loss)
        for number, row in enumerate(plan["rows"], 1)
    ]


def pareto_front(rows: Sequence[PlanRow]) -> list[PlanRow]:
    """Return the rows for which no other is both faster and sends less, the fastest first."""
    known = [(row.interval["median"], row.table["bytes_to_target"], row) for row in timed(rows) if row.interval]
    front: list[PlanRow] = []
    least_bytes = float("inf")
    for _, sent, row in sorted(known, key=lambda one: (one[0], one[1])):
        if sent < least_bytes:
            front.append(row)
            least_bytes = sent
    return front


def timed(rows: Sequence[PlanRow]) -> list[PlanRow]:
    """Return the rows with a predicted time to the target and bytes."""
    return [row for row in rows if row.interval is not None and row.table["bytes_to_target"] is not None]


def interval_text(interval: Table | None, *, is_loss: bool = False) -> tuple[str, str]:
    """Return the median of an interval, and its range without the unit where both share one; a loss has none."""
    if interval is None:
        return "", ""
    if is_loss:
        return f"{interval['median']:.3g}", f"{interval['low']:.3g}–{interval['high']:.3g}"
    return units.seconds(interval["median"]), units.between(interval["low"], interval["high"], units.seconds)


def recommendation(plan: Table) -> str:
    """Return what to run in a sentence, and by how much it is faster than DDP."""
    rows = rows_of(plan)
    best, baseline = rows[plan["best"]], rows[plan["baseline"]]
    if plan["stays_with_ddp"]:
        if best.interval is None:
            return "Stay with DDP"
        found = best.text(best.interval["median"])
        return f"Stay with DDP: loss {found}" if best.is_loss else f"Stay with DDP: {found} to the target"
    if best.interval is None or baseline.interval is None:
        return f"Run {best.name}"
    if best.is_loss:
        ours, theirs = (row.text(row.interval["median"]) for row in (best, baseline) if row.interval is not None)
        return f"Run {best.name}: loss {ours}, DDP {theirs}"
    if plan["objective"] == "bytes":
        sent = [units.size(row.table["bytes_to_target"] or 0) for row in (best, baseline)]
        return f"Run {best.name}: sends {sent[0]}, DDP {sent[1]}"
    if plan["objective"] == "cost":
        return f"Run {best.name}: costs less than DDP"
    gain = units.ratio(baseline.interval["median"] / best.interval["median"]).removesuffix("×")
    return f"Run {best.name}: {gain} times as fast as DDP"
