"""Progress of a comparison: in a terminal a row for each run in progress and one for all; in a log a line per run."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import TaskID

from tacit.cli.screens.terminal import ProgressScreen, print_line, result_text, state_text
from tacit.compare.tasks import Task
from tacit.compare.watcher import Watcher
from tacit.record.run import Run


class ComparisonScreen(ProgressScreen, Watcher):
    """Shows the runs in progress, how many of ``total`` are done, and the time left."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(console)
        self.console, self.total, self.done = console, total, 0
        self._reused = 0  # runs of an earlier comparison among those done
        self.overall = self.progress.add_task("all runs", total=total, state="", visible=total > 1)
        self._rows: dict[str, TaskID] = {}  # of the runs in progress, by title
        self._shares: dict[str, float] = {}  # how much of each is done
        self._begun_s: float | None = None

    def __enter__(self) -> Self:
        return self  # ``begin`` starts the display: before that, its thread would keep the process from being forked

    def begin(self, task: Task) -> None:
        if self._begun_s is None:
            self._begun_s = time.monotonic()
            self.progress.start()
        self._remove(task)
        self._rows[task.title] = self.progress.add_task(escape(task.title), total=None, state="starting")

    def step(self, task: Task, step: int, steps: int, time_s: float, loss: float | None) -> None:
        self.progress.update(self._rows[task.title], completed=step, total=steps, state=state_text(time_s, loss))
        self._shares[task.title] = step / max(1, steps)
        self.progress.update(self.overall, state=self.time_left())

    def end(self, task: Task, run: Run) -> None:
        self.done += 1
        self._reused += task.title not in self._rows
        self._remove(task)
        self.progress.update(self.overall, completed=self.done, state=self.time_left())
        print_line(self.console, f"{self.number()}  {task.title}: {self.result(task, run)}")

    def number(self) -> str:
        """Return the number of the run that ended, of how many."""
        return f"{self.done}/{self.total}"

    def result(self, task: Task, run: Run) -> str:
        """Return the result of a run in a few words."""
        has_failed_search = task.is_tuning and run.status.startswith("failed")
        return "failed" if has_failed_search else result_text(run)

    def time_left(self) -> str:
        """Return the time until all runs are done, from the pace so far; nothing at the start."""
        done = self.done - self._reused + sum(self._shares.values())
        if self._begun_s is None or done < 0.05:
            return ""
        left_s = (time.monotonic() - self._begun_s) * (self.total - self._reused - done) / done
        if left_s < 2 * 60:
            return f"about {left_s:.0f} s left"
        return f"about {left_s / 60:.0f} min left" if left_s < 2 * 3600 else f"about {left_s / 3600:.1f} h left"

    def _remove(self, task: Task) -> None:
        self._shares.pop(task.title, None)
        if (row := self._rows.pop(task.title, None)) is not None:
            self.progress.remove_task(row)
