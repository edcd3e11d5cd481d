"""Terminal output: progress bars in a terminal, plain lines in a log, nothing with ``--quiet``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tacit.compare.workloads import Watcher
from tacit.record.run import Run

errors: Final = Console(stderr=True)
"""The console for error messages."""

_LOG_WIDTH: Final = 160
"""Width of tables in a file or a pipe."""


def console(quiet: bool) -> Console:
    """Return the console for results, with the terminal's width and colours, or plain in a log; honours NO_COLOR."""
    return Console(file=sys.stdout, quiet=quiet, width=None if sys.stdout.isatty() else _LOG_WIDTH)


def print_notes(notes: Iterable[str], screen: Console) -> None:
    """Print notes on what a user might not expect."""
    for note in notes:
        screen.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


class Screen(Watcher):
    """Shows progress: bars for the current run and for all runs in a terminal; otherwise a line after each run."""

    def __init__(self, console: Console, total: int, clock: str = "s virtual") -> None:
        self.console, self.total, self.done, self.clock = console, total, 0, clock
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
        )
        is_live = console.is_terminal and not console.quiet
        self.progress = Progress(*columns, console=console, transient=True, disable=not is_live)
        self.overall = self.progress.add_task("all runs", total=total, state="", visible=total > 1)
        self.current = self.progress.add_task("", total=None, state="", visible=False)
        self.title = ""

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def begin(self, strategy: str, seed: int, lr: float | None, tuning: bool) -> None:
        self.begin_run(f"{strategy} · seed {seed}" + (f" · trying lr={lr:.4g}" if tuning else ""))

    def begin_run(self, title: str) -> None:
        """Show the progress of a run called ``title``."""
        self.title = title
        self.progress.reset(self.current, description=escape(self.title), visible=True, total=None, state="starting")

    def step(self, step: int, steps: int, time_s: float, loss: float | None) -> None:
        state = f"step · {time_s:.3g} {self.clock}" + ("" if loss is None else f" · loss {loss:.4g}")
        self.progress.update(self.current, completed=step, total=steps, state=state)

    def end(self, run: Run, tuning: bool) -> None:
        self.done += 1
        self.progress.update(self.overall, completed=self.done)
        self.progress.update(self.current, visible=False)
        self.console.print(self._line(run, tuning), highlight=False, markup=False, soft_wrap=True)

    def _line(self, run: Run, tuning: bool) -> str:
        if tuning and run.status.startswith("failed"):
            return f"{self.done}/{self.total}  {self.title}: failed"
        summary = run.summary()
        loss = "no loss" if summary["loss"] is None else f"loss {summary['loss']:.4g}"
        ended = "" if run.status == "finished" else f" · {run.status}"
        return f"{self.done}/{self.total}  {self.title}: {loss} after {summary['time_s']:.4g} {self.clock}{ended}"
