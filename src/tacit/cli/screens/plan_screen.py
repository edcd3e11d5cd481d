"""A plan in the terminal: the table of candidates, the recommendation, warnings, and what to type next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from tacit.cli.screens.comparison_screen import ComparisonScreen
from tacit.compare.tasks import Task
from tacit.planning.candidates import without
from tacit.planning.plan import Plan, Row
from tacit.planning.results import Interval, Trial
from tacit.planning.verdict import Objective
from tacit.planning.work import PlanTask
from tacit.record.run import Run

_MOST_ROWS: Final = 12
_UNITS: Final = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
_FEWEST: Final = {"h": 2.0, "min": 2.0, "s": 1.0, "ms": 0.0}
"""From how many on a unit is used."""


class PlanScreen(ComparisonScreen):
    """Shows the simulations of a plan. Each wave of the search decides on the next, so their number is not known."""

    def __init__(self, console: Console, target_loss: float | None) -> None:
        super().__init__(console, 0)
        self.progress.update(self.overall, visible=False)
        self._target_loss = target_loss

    def number(self) -> str:
        return f"{self.done}"

    def time_left(self) -> str:
        return ""

    def result(self, task: Task, run: Run) -> str:
        trial = Trial.of(run, task.lr, self._target_loss)
        if trial.steps is None and trial.status.startswith(("failed", "stopped")):
            return trial.status
        if trial.steps is None:
            if isinstance(task, PlanTask) and task.is_capped:
                return f"stopped at loss {trial.best_loss:.4g}, later than the best so far"
            steps = f" within its {trial.curve[-1][0]:,} steps" if trial.curve else ""
            return f"not reached{steps}, best loss {trial.best_loss:.4g}"
        what = f"loss {trial.best_loss:.4g}" if self._target_loss is None else f"loss {self._target_loss:g}"
        return f"{what} at step {trial.steps}"


def print_plan(plan: Plan, screen: Console, *, recommends: bool = True) -> None:
    """Print the table of a plan, the recommendation and its warnings.

    recommends: False if the plan found no row to recommend, which the command says as an error.
    """
    has_times = any(row.outcome is not None for row in plan.rows)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    table.add_column("strategy", overflow="fold")
    table.add_column("step", justify="right")
    table.add_column("comm.", justify="right")
    if has_times:
        what = "" if plan.within_s is None else "loss "
        table.add_column(what + ("with your settings" if plan.lr is None else f"at lr {plan.lr:g}"), justify="right")
        if plan.lr is not None:
            table.add_column(f"{what}at its best lr", justify="right")
    table.add_column("sent", justify="right")
    if plan.objective == "cost":
        table.add_column("cost", justify="right")
    table.add_column("memory", justify="right")
    table.add_column("fidelity")
    for number, row in shown_rows(plan):
        table.add_row(*_cells(plan, row, number, has_times), style="bold" if row is plan.best else None)
    screen.print(table)
    hidden = len(plan.rows) - sum(1 for _ in shown_rows(plan))
    if hidden:
        screen.print(f"{hidden} more candidates are in plan.json.", highlight=False)
    screen.print()
    if recommends:
        screen.print(_recommendation(plan), highlight=False, markup=False, soft_wrap=True)
    for note in plan.notes:
        screen.print(note, highlight=False, markup=False, soft_wrap=True)
    for warning in plan.warnings:
        screen.print(f"warning: {warning}", highlight=False, markup=False, soft_wrap=True)
    screen.print(
        "fidelity A: gradients were simulated. B: ratios of short real runs. C: only the pace is known. "
        "comm.: share of the time on the wire or waiting.",
        highlight=False,
        soft_wrap=True,
    )


def shown_rows(plan: Plan) -> Iterator[tuple[int, Row]]:
    """Yield the first rows and those that always stay, with their numbers."""
    for number, row in enumerate(plan.rows, 1):
        if number <= _MOST_ROWS or row.is_kept or row is plan.best:
            yield number, row


def print_next(plan: Plan, path: Path, screen: Console) -> None:
    """Print what was written, and the command that runs the plan."""
    screen.print(
        f"\nWrote {path}, {path.with_suffix('.json')} and {path.with_suffix('.html')}.", highlight=False, soft_wrap=True
    )
    attach = f'tacit.attach(model, optimizer, "{path}")'
    if "script" in plan.settings:
        script = shlex.join([plan.settings["script"], *plan.settings["arguments"]])
        count = len(plan.best.ranks)
        run = f"write {attach} in the script, and start {count} worker{'s' * (count > 1)} of it: torchrun … {script}"
    else:
        run = f"tacit train --plan {path} --workload '{plan.settings.get('workload')}', or {attach}"
    screen.print(
        f"Run it: {run}.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _cells(plan: Plan, row: Row, number: int, has_times: bool) -> list[str]:
    left_out = without(plan.profile, row.ranks)
    who = f" without {', '.join(f'worker {rank}' for rank in left_out)}" if 0 < len(left_out) <= 2 else ""
    if len(row.ranks) == 1 and plan.profile.workers > 1:
        name = f"worker {row.ranks[0]} alone"
    else:
        name = f"{row.strategy}{who or (f' on {len(row.ranks)} workers' if left_out else '')}"
    cells = [str(number), name, duration(row.pace.step_s), f"{100 * row.pace.communication:.0f} %"]
    if has_times:
        best = "" if row.best_lr is None else f" lr {row.best_lr:g}"
        is_loss = plan.within_s is not None
        own, tuned = (row.loss, row.best_loss) if is_loss else (row.time_s, row.best_time_s)
        cells.append(interval_text(own, is_loss=is_loss) or row.remark)
        if plan.lr is not None:
            cells.append("" if tuned is None else interval_text(tuned, is_loss=is_loss) + best)
    sent = row.bytes_to_target
    cells.append(f"{size_text(row.pace.bytes_per_step)}/step" if sent is None else size_text(sent))
    if plan.objective == "cost":
        cost = Objective(name=plan.objective, **plan.prices).value(row)
        cells.append(f"{cost:.3g}" if math.isfinite(cost) else "")
    return [*cells, "" if row.memory_bytes is None else size_text(row.memory_bytes), row.fidelity]


def _recommendation(plan: Plan) -> str:
    if plan.stays_with_ddp:
        return plan.why
    who = without(plan.profile, plan.best.ranks)
    name = f"{plan.best.strategy}"
    if who:
        name += f" without worker{'s' * (len(who) > 1)} {', '.join(map(str, who))}"
    if who and len(plan.best.ranks) == 1:
        name = f"on worker {plan.best.ranks[0]} alone"
    if plan.best.is_tuned and plan.best.best_lr != plan.lr:
        name += f" at lr {plan.best.best_lr:g} instead of {plan.lr:g}"
    return f"Run {name}{_gain(plan)}. {plan.why}"


def _gain(plan: Plan) -> str:
    """Return what the recommended row gains over DDP by the plan's objective; empty if it is not known."""
    ours, theirs = plan.best, plan.baseline
    if ours.outcome is None or theirs.outcome is None:
        return ""
    if plan.within_s is not None:
        after = duration(plan.within_s)
        return f": loss {ours.outcome.median:.3g} after {after}, DDP {theirs.outcome.median:.3g}"
    if plan.objective == "bytes" and ours.bytes_to_target is not None and theirs.bytes_to_target is not None:
        return f": sends {size_text(ours.bytes_to_target)}, DDP {size_text(theirs.bytes_to_target)}"
    if plan.objective == "cost":
        objective = Objective(name=plan.objective, **plan.prices)
        return f": costs {objective.value(ours):.3g}, DDP {objective.value(theirs):.3g}"
    return f": {theirs.outcome.median / ours.outcome.median:.1f} times as fast as DDP"


def interval_text(interval: Interval | None, *, is_loss: bool = False) -> str:
    """Return an interval as "41 min (38-46)", a loss without a unit; nothing for None."""
    if interval is None:
        return ""
    if is_loss:
        return f"{interval.median:.3g} ({interval.low:.3g}-{interval.high:.3g})"
    scale, unit = _unit(interval.median)
    median, low, high = (_digits(one / scale) for one in (interval.median, interval.low, interval.high))
    return f"{median} {unit} ({low}-{high})"


def _digits(number: float) -> str:
    """Return a number with three digits, or all before the point."""
    return f"{number:.0f}" if number >= 1000 else f"{number:.3g}"


def duration(seconds: float) -> str:
    """Return a time with three digits and its unit."""
    scale, unit = _unit(seconds)
    return f"{seconds / scale:.3g} {unit}"


def _unit(seconds: float) -> tuple[float, str]:
    return next(((scale, unit) for scale, unit in _UNITS if seconds >= _FEWEST[unit] * scale), _UNITS[-1])


def size_text(size_bytes: float) -> str:
    """Return bytes with three digits and their unit."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.3g} {unit}"
    return f"{size_bytes:.0f} B"
