"""Callbacks by which a caller follows a comparison."""

from __future__ import annotations

from tacit.compare.tasks import Task
from tacit.record.run import Run


class Watcher:
    """Callbacks of a comparison; each does nothing unless overridden. Several runs can be in progress at once."""

    def begin(self, task: Task) -> None:
        """Called when a run starts."""

    def step(self, task: Task, step: int, steps: int, time_s: float, loss: float | None) -> None:
        """Called when the run of ``task`` has reached ``step`` of ``steps``, at virtual ``time_s``."""

    def end(self, task: Task, run: Run) -> None:
        """Called when a run ends, with its ``run.status``; for an earlier run that is reused, without ``begin``."""
