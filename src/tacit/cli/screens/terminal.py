"""Terminal output: progress bars in a terminal, plain lines in a log, nothing with ``--quiet``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tacit.record.run import Run
from tacit.session.plan_watch.progress import loss_text

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


class ProgressScreen:
    """Rows of progress in a terminal: description, bar, steps, state and time. A ``with`` block shows them."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
        )
        self.progress = Progress(*columns, console=console, transient=True, disable=not is_live(console))

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()


class Screen(ProgressScreen):
    """Shows the progress of one run as a bar in a terminal."""

    def __init__(self, console: Console, clock: str = "s virtual") -> None:
        super().__init__(console)
        self.clock = clock
        self.current = self.progress.add_task("", total=None, state="", visible=False)
        self._measured: tuple[float, int] | None = None  # the last loss, and its step

    def begin(self, title: str) -> None:
        """Show the progress of a run called ``title``."""
        self._measured = None
        self.progress.reset(self.current, description=escape(title), visible=True, total=None, state="starting")

    def step(self, step: int, steps: int, time_s: float, loss: float | None) -> None:
        """Show that the run has reached ``step`` of ``steps``. loss: if measured at this step."""
        if loss is not None:
            self._measured = loss, step
        state = state_text(time_s, None, self.clock)
        state += "" if self._measured is None else f" · {loss_text(*self._measured, step)}"
        self.progress.update(self.current, completed=step, total=steps, state=state)


def is_live(console: Console) -> bool:
    """Whether ``console`` can show bars that move."""
    return console.is_terminal and not console.quiet


def state_text(time_s: float, loss: float | None, clock: str = "s virtual") -> str:
    """Return the state of a run in progress."""
    return f"step · {time_s:.3g} {clock}" + ("" if loss is None else f" · loss {loss:.4g}")


def result_text(run: Run, clock: str = "s virtual") -> str:
    """Return the loss and time of a run, and its status unless it finished."""
    summary = run.summary()
    loss = "no loss" if summary["loss"] is None else f"loss {summary['loss']:.4g}"
    ended = "" if run.status == "finished" else f" · {run.status}"
    return f"{loss} after {summary['time_s']:.4g} {clock}{ended}"


def print_line(console: Console, text: str) -> None:
    """Print ``text`` as it is, without line breaks or colours."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
