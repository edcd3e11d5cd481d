"""Comparison of several strategies on a training script and one cluster, paired by seed: ``tacit compare train.py``.

The script runs unmodified, once for each strategy and seed. ``attach`` puts the strategy under comparison in place of
the script's own; None among the strategies keeps the script's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final

import torch

from tacit.cluster import Cluster
from tacit.cluster.joins import check_script_joins
from tacit.compare.execution import Order
from tacit.compare.findings import Findings, check_pairs
from tacit.compare.runners import LOCAL, check_executor
from tacit.compare.start import executed
from tacit.compare.tasks import OWN, ScriptWork, Task
from tacit.compare.watcher import Watcher
from tacit.core.specs import with_python_numbers
from tacit.errors import require
from tacit.record.run import Run
from tacit.report import Comparison, Entry
from tacit.simulation.scripts.run import compiled
from tacit.strategies import AllReduce, Strategy

_OWN_NOTE: Final = "the script's own strategy"


@with_python_numbers
def compare_script(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    strategies: Sequence[Strategy[Any] | None] = (None, AllReduce()),
    *,
    cluster: Cluster | None = None,
    seeds: Sequence[int] = (0,),
    measured: bool = False,
    target: float | None = None,
    threads: int = 1,
    jobs: int | None = None,
    executor: str | Executor = LOCAL,
    reproduce: str = "",
    watcher: Watcher | None = None,
    earlier: Sequence[Run] = (),
) -> Findings:
    """Run the script ``path`` with every strategy and every seed and return the results.

    strategies: None stands for the script's own strategy. It runs first, so that its name is known; a strategy equal to
    it is not run again. earlier: finished runs; those that were made with the same settings are not made again.

    The other arguments are those of ``simulate_script`` and ``compare``. What the script prints is not shown. A run
    that fails keeps its history and its row. Ctrl-C ends the comparison with the runs that there are; runs start in the
    order of the seeds, so that these are paired. With ``measured`` only one run is made at a time, because others would
    lengthen its steps.
    """
    cluster = Cluster() if cluster is None else cluster
    check_pairs([_name(strategy) for strategy in strategies], seeds)
    check_executor(executor, jobs)
    check_script_joins(cluster)
    require(
        not measured or jobs in (None, 1),
        f"jobs={jobs}: runs with measured step times must be made one at a time; use jobs=1, or a distribution.",
    )
    script = compiled(path, arguments)
    work = ScriptWork(str(script.path), tuple(arguments), cluster, measured, threads)
    plan = _Grid(strategies, seeds)
    execution, notes = executed(
        work,
        plan,
        watcher or Watcher(),
        earlier,
        executor=executor,
        jobs=1 if measured else jobs,
        device="cpu",
        runs=len(strategies) * len(seeds),
    )
    entries = plan.entries(execution.runs)
    if not entries:
        return Findings(None, interrupted=execution.is_interrupted, notes=tuple(notes))
    baseline = next((entry.label for entry in entries if entry.label.startswith("AllReduce(")), entries[0].label)
    comparison = Comparison(
        entries=entries,
        workload=script.path.name,
        cluster=str(cluster),
        target_loss=target,
        reproduce=reproduce,
        baseline=baseline,
    )
    notes += _notes(comparison, plan.own_label, strategies)
    return Findings(comparison, interrupted=execution.is_interrupted, notes=tuple(notes))


def is_own(run: Run) -> bool:
    """Whether the script of ``run`` used its own strategy."""
    return "script" in run.config and "strategy" not in run.config


class _Grid:
    """Strategies × seeds. The script's own strategy runs first, because one equal to it is not run."""

    def __init__(self, strategies: Sequence[Strategy[Any] | None], seeds: Sequence[int]) -> None:
        self._strategies = sorted(strategies, key=lambda one: one is not None)
        self._seeds = seeds
        self.own_label: str | None = None
        """The script's own strategy, or strategies where its sessions differ; None before a session of it has begun."""

    def first(self) -> Iterator[tuple[Order, Task]]:
        if None in self._strategies:
            yield self._task(0, self._seeds[0])
        else:
            yield from self._others(0)

    def after(self, task: Task, run: Run) -> Iterator[tuple[Order, Task]]:
        if task.strategy is not None:
            return
        if run.strategy and self.own_label is None:
            self.own_label = " and ".join(dict.fromkeys(run.record["strategies"]))
        if task.seed == self._seeds[0]:
            yield from self._others(1)
            yield from (self._task(0, seed) for seed in self._seeds[1:])

    def entries(self, runs: Mapping[Task, Run]) -> list[Entry]:
        """Return the runs by strategy, seeds in the order given."""
        entries = []
        for strategy in self._strategies:
            mine = {task.seed: run for task, run in runs.items() if task.strategy is strategy}
            group = [mine[seed] for seed in self._seeds if seed in mine]
            if group and strategy is None:
                entries.append(Entry(self.own_label or OWN, group, _OWN_NOTE))
            elif group:
                entries.append(Entry(str(strategy), group))
        return entries

    def _others(self, begin: int) -> Iterator[tuple[Order, Task]]:
        for number, strategy in enumerate(self._strategies):
            if number >= begin and (strategy is None or str(strategy) != self.own_label):
                yield from (self._task(number, seed) for seed in self._seeds)

    def _task(self, number: int, seed: int) -> tuple[Order, Task]:
        strategy = self._strategies[number]
        title = f"{_OWN_NOTE if strategy is None else strategy} · seed {seed}"
        return (self._seeds.index(seed), number), Task(strategy, seed, title=title)


def _name(strategy: Strategy[Any] | None) -> str:
    return OWN if strategy is None else str(strategy)


def _notes(comparison: Comparison, own_label: str | None, strategies: Sequence[Strategy[Any] | None]) -> list[str]:
    """Return notes on the runs that a user might not expect."""
    notes = []
    if own_label in [str(strategy) for strategy in strategies]:
        alone = "; add other strategies with -s to compare them" if len(comparison.entries) == 1 else ""
        notes.append(f"{own_label} is the script's own strategy, so it ran once with each seed{alone}.")
    models = [[run.parameters for run in entry.runs if run.status == "finished"] for entry in comparison.entries]
    several = [found for found in models if len(found) > 1]
    if several and all(torch.equal(found[0], other) for found in several for other in found[1:]):
        notes.append(
            "every seed gave the same model: the script seeds its own generators, so the seeds change step times only. "
            "Generators that the script does not seed start from the run's seed."
        )
    return notes
