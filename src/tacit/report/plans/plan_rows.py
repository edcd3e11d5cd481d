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
    def interval(self) -> Table | None:
        """The better of the two predicted times."""
        known = [one for one in (self.table["time_s"], self.table["best_time_s"]) if one is not None]
        return min(known, key=lambda one: float(one["median"]), default=None)

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
    """Return all rows of a plan, the best first."""
    workers = plan["profile"]["cluster"]["workers"]
    return [
        PlanRow(number, row, workers, number - 1 == plan["best"], number - 1 == plan["baseline"])
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


def interval_text(interval: Table | None) -> tuple[str, str]:
    """Return the median of an interval, and its range without the unit where both share one."""
    if interval is None:
        return "", ""
    return units.seconds(interval["median"]), units.between(interval["low"], interval["high"], units.seconds)


def recommendation(plan: Table) -> str:
    """Return what to run in a sentence, and by how much it is faster than DDP."""
    rows = rows_of(plan)
    best, baseline = rows[plan["best"]], rows[plan["baseline"]]
    if plan["stays_with_ddp"]:
        time_s = "" if best.interval is None else f": {units.seconds(best.interval['median'])} to the target"
        return f"Stay with DDP{time_s}"
    if best.interval is None or baseline.interval is None:
        return f"Run {best.name}"
    gain = units.ratio(baseline.interval["median"] / best.interval["median"]).removesuffix("×")
    return f"Run {best.name}: {gain} times as fast as DDP"
