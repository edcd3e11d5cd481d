"""Runs of a comparison as values that are sent to other processes: a task for each, and the work that all share."""

from __future__ import annotations

import io
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch

from tacit.cluster import Cluster
from tacit.errors import Interrupted, RunError
from tacit.record.run import Run
from tacit.record.versions import versions
from tacit.simulation import configuration, simulate
from tacit.simulation.evaluation import Progress
from tacit.simulation.scripts.run import compiled, script_configuration, simulate_compiled
from tacit.simulation.scripts.world import Script
from tacit.strategies import Strategy
from tacit.workloads import Workload

OWN: Final = "script"
"""The name of the script's own strategy, on the command line and in compare.toml."""


@dataclass(frozen=True, eq=False)
class Task:
    """One run to make. ``strategy`` None: the script's own; ``lr`` None: the script chooses it."""

    strategy: Strategy[Any] | None
    seed: int
    lr: float | None = None
    title: str = ""  # text for the progress display and for messages
    is_tuning: bool = False  # the run serves the search for a learning rate and is not reported

    @property
    def label(self) -> str:
        """The text of the strategy."""
        return OWN if self.strategy is None else str(self.strategy)


@dataclass(frozen=True)
class Outcome:
    """How a task ended: with a run, whole, failed or interrupted, or with an error before there was a run.

    ``caught``: warnings of the run, which are issued where the comparison was called.
    """

    run: Run | None
    error: Exception | None = None
    details: str = ""  # the traceback of the error
    caught: tuple[tuple[str, type[Warning]], ...] = ()


class Work(ABC):
    """What all runs of a comparison share. Each process receives it once."""

    threads: int

    @abstractmethod
    def configuration(self, task: Task) -> dict[str, Any]:
        """Return the settings of the run, by which a finished run is found again."""

    @abstractmethod
    def make(self, task: Task, progress: Progress | None) -> Run:
        """Make the run."""

    @abstractmethod
    def failed(self, task: Task, status: str) -> Run:
        """Return a run without results, for a task that ended without a run."""


@dataclass(frozen=True)
class WorkloadWork(Work):
    """Runs on a workload. ``settings``: arguments of ``simulate`` that all runs share."""

    workload: Workload
    settings: Mapping[str, Any]
    threads: int = 1

    def configuration(self, task: Task) -> dict[str, Any]:
        assert task.strategy is not None and task.lr is not None
        return configuration(self.workload, task.strategy, seed=task.seed, lr=task.lr, **self.settings)

    def make(self, task: Task, progress: Progress | None) -> Run:
        assert task.strategy is not None and task.lr is not None
        return simulate(self.workload, task.strategy, seed=task.seed, lr=task.lr, progress=progress, **self.settings)

    def failed(self, task: Task, status: str) -> Run:
        cluster: Cluster = self.settings["cluster"]
        return Run(
            workload=str(self.workload),
            strategy=str(task.strategy),
            workers=cluster.workers,
            steps=self.settings["steps"],
            seed=task.seed,
            cluster=str(cluster),
            status=status,
            config=self.configuration(task),
            record={**versions(), "world": "simulated"},
        )


@dataclass(frozen=True)
class ScriptWork(Work):
    """Runs of a training script, whose output is not shown."""

    path: str
    arguments: tuple[str, ...]
    cluster: Cluster
    measured: bool
    threads: int = 1

    @cached_property
    def script(self) -> Script:
        """The script, read and compiled in this process."""
        return compiled(self.path, self.arguments)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "script"}  # code cannot be pickled

    def configuration(self, task: Task) -> dict[str, Any]:
        return script_configuration(self.script, **self._settings(task))

    def make(self, task: Task, progress: Progress | None) -> Run:
        with redirect_stdout(io.StringIO()):
            return simulate_compiled(self.script, progress=progress, **self._settings(task))

    def failed(self, task: Task, status: str) -> Run:
        return Run(
            workload=self.script.path.name,
            strategy="" if task.strategy is None else str(task.strategy),
            workers=self.cluster.workers,
            steps=0,
            seed=task.seed,
            cluster=str(self.cluster),
            status=status,
            config=self.configuration(task),
            record={**versions(), "world": "simulated", "engine": "script", "strategies": []},
        )

    def _settings(self, task: Task) -> dict[str, Any]:
        return {"strategy": task.strategy, "seed": task.seed, "cluster": self.cluster, "measured": self.measured}


def attempt(work: Work, task: Task, progress: Progress | None = None) -> Outcome:
    """Make the run of ``task`` with the number of threads of ``work``.

    A run that fails or is interrupted is a result. Another error is returned, because it must not end other runs.
    ``KeyboardInterrupt`` passes if there is no run yet.
    """
    with torch_threads(work.threads):
        try:
            return Outcome(work.make(task, progress))
        except Interrupted as error:
            if error.run is None:
                raise
            return Outcome(error.run)
        except Exception as error:  # noqa: BLE001 - of the user's model, strategy or script
            if isinstance(error, RunError) and error.run is not None:
                return Outcome(error.run)
            return Outcome(None, error, traceback.format_exc())


def attempt_remotely(work: Work, task: Task, progress: Progress | None = None) -> Outcome:
    """Make the run of ``task`` in a process that shows no warnings, and return them with the result."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        outcome = attempt(work, task, progress)
    unique = dict.fromkeys((str(one.message), one.category) for one in found)
    return Outcome(outcome.run, outcome.error, outcome.details, tuple(unique))


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Set the number of threads of torch for a block. It is part of what makes two runs equal."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
