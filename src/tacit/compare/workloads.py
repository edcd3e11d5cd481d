"""Comparison of several strategies on one workload and cluster, paired by seed.

Equal seeds give equal batches, delays and faults, so two runs of a seed differ by their strategies only. With ``tune``
every strategy gets the same number of runs to find its learning rate, on a seed that is not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

from tacit.cluster import Cluster
from tacit.cluster.joins import check_joins
from tacit.compare.execution import Execution, Order
from tacit.compare.findings import Findings, check_pairs, check_rates
from tacit.compare.rates import RateResults, all_entries, best_entry, by_rate, rate_label
from tacit.compare.runners import LOCAL, check_executor
from tacit.compare.start import executed
from tacit.compare.tasks import Task, WorkloadWork
from tacit.compare.tuning import Candidate, Tuning, next_rates
from tacit.compare.watcher import Watcher
from tacit.core.specs import with_python_numbers
from tacit.errors import require
from tacit.record.run import Run
from tacit.report import Comparison, Entry
from tacit.strategies import AllReduce, Strategy
from tacit.training.schedules import Schedule
from tacit.workloads import Workload

_TUNING, _REPORTED = 0, 1


@with_python_numbers
def compare(
    workload: Workload,
    strategies: Sequence[Strategy[Any]],
    *,
    cluster: Cluster = Cluster(),  # noqa: B008 - frozen
    steps: int = 500,
    seeds: Sequence[int] = (0,),
    tune: bool = False,
    target: float | None = None,
    optimizer: str = "sgd",
    lr: float | Sequence[float] = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: Schedule | Callable[[int], float] | None = None,
    evaluate_every: int | None = None,
    evaluate_every_s: float | None = None,
    engine: str = "auto",
    device: str = "cpu",
    threads: int = 1,
    jobs: int | None = None,
    executor: str | Executor = LOCAL,
    reproduce: str = "",
    watcher: Watcher | None = None,
    earlier: Sequence[Run] = (),
    earlier_tunings: Mapping[str, Tuning] | None = None,
) -> Findings:
    """Run every strategy with every seed and learning rate and return the results.

    target: the loss at which times are compared; None: one that all reach.
    lr: the learning rate, or several; then the table has the best one of each strategy, by the mean final loss.
    threads: CPU threads of torch for each run; part of what makes two runs equal.
    jobs: runs at once, each in a process of its own; None: one, or any number with another executor. Results do not
        depend on it. A script that uses several calls ``compare`` under ``if __name__ == "__main__"``.
    executor: "local"; "ray" or "ray://HOST:PORT" for a Ray cluster; or a ``concurrent.futures.Executor`` of processes.
    reproduce: the text that reproduces the comparison.
    earlier, earlier_tunings: results of an earlier comparison. Finished runs with the same settings are reused.

    A failed run keeps its history and its row. Ctrl-C ends the comparison with the runs made so far; runs start in the
    order of the seeds, so that these are paired.
    """
    rates = tuple(lr) if isinstance(lr, Sequence) else (lr,)
    check_pairs([str(strategy) for strategy in strategies], seeds)
    check_rates(rates, tune)
    check_executor(executor, jobs)
    require(threads >= 1, f"threads={threads} must be at least 1.")
    for strategy in strategies:
        check_joins(strategy, cluster)
    settings = {
        "cluster": cluster,
        "steps": steps,
        "optimizer": optimizer,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "evaluate_every": evaluate_every,
        "evaluate_every_s": evaluate_every_s,
        "engine": engine,
        "device": device,
    }
    plan = _Grid(strategies, seeds, rates, tune, dict(earlier_tunings or {}))
    execution, notes = executed(
        WorkloadWork(workload, settings, threads),
        plan,
        watcher or Watcher(),
        earlier,
        executor=executor,
        jobs=jobs,
        device=device,
        runs=None if tune else len(strategies) * len(seeds) * len(rates),
    )
    described = partial(
        Comparison, workload=str(workload), cluster=str(cluster), target_loss=target, reproduce=reproduce
    )
    return _findings(plan, execution, described, notes)


def _findings(plan: _Grid, execution: Execution, described: Callable[..., Comparison], notes: list[str]) -> Findings:
    """Return the results by strategy, in an order that does not depend on when runs ended."""
    runs: dict[str, list[Run]] = {}
    for label in map(str, plan.strategies):
        mine = [run for task, run in execution.runs.items() if task.label == label and not task.is_tuning]
        if mine:
            runs[label] = sorted(mine, key=lambda run: plan.seeds.index(run.seed))
    if not runs:
        return Findings(None, plan.tunings, execution.is_interrupted, tuple(notes))
    preferred = str(next((s for s in plan.strategies if isinstance(s, AllReduce)), plan.strategies[0]))
    baseline = preferred if preferred in runs else None
    if len(plan.rates) == 1:
        entries = [Entry(label, group, plan.note(label)) for label, group in runs.items()]
        comparison = described(entries=entries, baseline=baseline)
        return Findings(comparison, plan.tunings, execution.is_interrupted, tuple(notes))
    grouped = {label: by_rate(group, plan.rates) for label, group in runs.items()}
    results = {label: RateResults.of(groups, plan.seeds) for label, groups in grouped.items()}
    best = [best_entry(label, groups, results[label]) for label, groups in grouped.items()]
    every = [entry for label, groups in grouped.items() for entry in all_entries(label, groups)]
    baseline_rate = None if baseline is None else rate_label(baseline, results[baseline].best.lr)
    return Findings(
        described(entries=best, baseline=baseline),
        interrupted=execution.is_interrupted,
        notes=tuple(notes),
        rates=results,
        all_rates=described(entries=every, baseline=baseline_rate),
    )


class _Grid:
    """Strategies × seeds × learning rates, after the searches for learning rates."""

    def __init__(
        self,
        strategies: Sequence[Strategy[Any]],
        seeds: Sequence[int],
        rates: Sequence[float],
        tune: bool,
        tunings: dict[str, Tuning],
    ) -> None:
        self.strategies, self.seeds, self.rates = strategies, seeds, rates
        self.tunings = tunings
        self._searches: dict[str, list[Candidate]] = {}
        self._wanted: dict[str, int] = {}  # candidates of each search that have been asked for
        self._is_tuned = tune

    def note(self, label: str) -> str:
        """Return the note on the learning rate of a strategy."""
        return self.tunings[label].note if label in self.tunings else ""

    def first(self) -> Iterator[tuple[Order, Task]]:
        for strategy in self.strategies:
            if self._is_tuned and str(strategy) not in self.tunings:
                self._searches[str(strategy)] = []
                self._wanted[str(strategy)] = 0
                yield from self._candidates(strategy)
            else:
                yield from self._reported(strategy)

    def after(self, task: Task, run: Run) -> Iterator[tuple[Order, Task]]:
        if not task.is_tuning:
            return
        strategy, candidates = task.strategy, self._searches[task.label]
        assert strategy is not None and task.lr is not None
        candidates.append(Candidate(task.lr, run.summary()["loss"] if run.status == "finished" else None))
        if len(candidates) < self._wanted[task.label]:
            return
        further = list(self._candidates(strategy))
        yield from further
        if not further:
            in_order = tuple(sorted(candidates, key=lambda c: c.lr))
            self.tunings[task.label] = Tuning(task.seed, in_order)
            yield from self._reported(strategy)

    def _candidates(self, strategy: Strategy[Any]) -> Iterator[tuple[Order, Task]]:
        label, seed = str(strategy), max(self.seeds) + 1
        for rate in next_rates(self.rates[0], self._searches[label]):
            number = self._wanted[label]
            self._wanted[label] += 1
            title = f"{label} · seed {seed} · trying lr={rate:.4g}"
            order = (_TUNING, self.strategies.index(strategy), number)
            yield order, Task(strategy, seed, rate, title, is_tuning=True)

    def _reported(self, strategy: Strategy[Any]) -> Iterator[tuple[Order, Task]]:
        best = self.tunings[str(strategy)].best if str(strategy) in self.tunings else None
        for number, rate in enumerate(self.rates if best is None else [best.lr]):
            shown = f" · lr={rate:.4g}" if len(self.rates) > 1 else ""
            for place, seed in enumerate(self.seeds):
                order = (_REPORTED, place, self.strategies.index(strategy), number)
                yield order, Task(strategy, seed, rate, f"{strategy} · seed {seed}{shown}")
