"""Carry out the tasks of a comparison, with any runner and in any order of completion."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tacit.compare.tasks import Outcome, Task, Work
from tacit.compare.watcher import Watcher
from tacit.errors import TacitError
from tacit.record.run import Run

Order = tuple[int, ...]
"""Position of a task: tasks start in this order."""


class NotSendable(TacitError):
    """The work of a comparison cannot be sent to another process. ``reason``: what cannot, and why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Runner(Protocol):
    """Makes runs: in this process, in worker processes, or on a cluster."""

    capacity: int | None
    """Number of runs that it accepts at once; None: any number."""

    def submit(self, task: Task) -> None:
        """Accept a task."""

    def next(self) -> tuple[Task, Outcome]:
        """Return the next task that ends."""

    def interrupt(self) -> list[tuple[Task, Outcome]]:
        """End the runs in progress and return what there is of them."""

    def close(self) -> None:
        """Release processes and connections."""


class Plan(Protocol):
    """The tasks of a comparison. Some follow from the results of others."""

    def first(self) -> Iterable[tuple[Order, Task]]:
        """Return the tasks that depend on no result."""

    def after(self, task: Task, run: Run) -> Iterable[tuple[Order, Task]]:
        """Return the tasks that follow from a run."""


@dataclass
class Execution:
    """Results of the tasks so far, by task."""

    work: Work
    watcher: Watcher
    earlier: Sequence[Run] = ()
    runs: dict[Task, Run] = field(default_factory=dict)
    is_interrupted: bool = False

    def __post_init__(self) -> None:
        self._orders: dict[Task, Order] = {}
        self._made: dict[Order, Run] = {}
        self._failures: dict[Task, Outcome] = {}  # errors of tasks that ended without a run
        self._finished: dict[int, list[Run]] = {}  # earlier runs by seed
        for run in self.earlier:
            if run.status == "finished":
                self._finished.setdefault(run.seed, []).append(run)

    def carry_out(self, plan: Plan, runner: Runner) -> None:
        """Carry out the tasks of ``plan``; Ctrl-C ends it with the runs that there are.

        A task without a run becomes a failed run. If no task has a run, the error of the first one is raised: then the
        settings are wrong, and not a single run.
        """
        waiting = [*plan.first()]
        heapq.heapify(waiting)
        running = 0
        try:
            while waiting or running:
                if waiting and (runner.capacity is None or running < runner.capacity):
                    order, task = heapq.heappop(waiting)
                    if order in self._made:  # by another runner before
                        _push(waiting, plan.after(task, self._made[order]))
                        continue
                    self._orders[task] = order
                    earlier = self._earlier_run(task)
                    if earlier is None:
                        runner.submit(task)
                        running += 1
                        continue
                    outcome = Outcome(earlier)
                else:
                    task, outcome = runner.next()
                    running -= 1
                run = self._keep(task, outcome)
                if run.status == "interrupted":
                    raise KeyboardInterrupt
                _push(waiting, plan.after(task, run))
        except KeyboardInterrupt:
            self.is_interrupted = True
            for task, outcome in runner.interrupt():
                self._keep(task, outcome)
        if self._failures and not self.runs and not self.is_interrupted:
            self._raise_the_first_error()
        self._keep_failures()

    def _earlier_run(self, task: Task) -> Run | None:
        candidates = self._finished.get(task.seed)
        if not candidates:
            return None
        wanted = self.work.configuration(task)
        return next((run for run in candidates if dict(run.config) == wanted), None)

    def _keep(self, task: Task, outcome: Outcome) -> Run:
        for text, category in outcome.caught:
            warnings.warn(text, category, stacklevel=4)
        if outcome.run is None:
            self._failures[task] = outcome
            run = self._failed(task, outcome)
        else:
            run = self.runs[task] = outcome.run
            self.watcher.end(task, run)
        self._made[self._orders[task]] = run
        if self.runs:
            self._keep_failures()
        return run

    def _keep_failures(self) -> None:
        """Report errors as failed runs; not before there is a run, as the error of all runs is raised instead."""
        for task, outcome in self._failures.items():
            self.runs[task] = self._failed(task, outcome)
            self.watcher.end(task, self.runs[task])
        self._failures.clear()

    def _failed(self, task: Task, outcome: Outcome) -> Run:
        error = outcome.error
        text = str(error) if isinstance(error, TacitError) else f"{type(error).__name__}: {error}"
        return self.work.failed(task, f"failed: {text}")

    def _raise_the_first_error(self) -> None:
        outcome = self._failures[min(self._failures, key=self._orders.__getitem__)]
        assert outcome.error is not None
        if outcome.error.__traceback__ is None:  # it comes from another process
            raise outcome.error from TacitError(f"in another process:\n{outcome.details}")
        raise outcome.error


def _push(waiting: list[tuple[Order, Task]], tasks: Iterable[tuple[Order, Task]]) -> None:
    for item in tasks:
        heapq.heappush(waiting, item)
