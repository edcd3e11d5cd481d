"""Comparison of several strategies on one workload and cluster, paired by seed.

Equal seeds give equal batches, delays and faults, so two runs of a seed differ by their strategies only. With ``tune``
every strategy gets the same number of runs to find its learning rate, on a seed that is not reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tacit.cluster import Cluster
from tacit.cluster.joins import check_joins
from tacit.core.specs import with_python_numbers
from tacit.errors import Interrupted, RunError, require
from tacit.record.run import Run
from tacit.report import Comparison, Entry
from tacit.simulation import configuration, simulate
from tacit.strategies import AllReduce, Strategy
from tacit.training.schedules import Schedule
from tacit.workloads import Workload

FACTORS: Final = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
"""Learning rates that are tried first, as factors of the given one."""
FURTHER: Final = 2
"""Number of further rates: beyond the grid if its edge is best, else halfway to the better neighbour."""


@dataclass(frozen=True)
class Candidate:
    """A learning rate that was tried, and its final loss; None where the run diverged or failed."""

    lr: float
    loss: float | None


@dataclass(frozen=True)
class Tuning:
    """The search for one strategy's learning rate: all candidates on ``seed``, in order of the rate."""

    seed: int
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        """The candidate with the smallest final loss; None if no run finished."""
        ended = [c for c in self.candidates if c.loss is not None]
        return min(ended, key=lambda c: c.loss if c.loss is not None else math.inf, default=None)

    @property
    def is_at_edge(self) -> bool:
        """Whether the best rate is the smallest or largest candidate: a wider search might find a better one."""
        return self.best in (self.candidates[0], self.candidates[-1])

    def __str__(self) -> str:
        tried = ", ".join(f"{c.lr:.4g} → {'failed' if c.loss is None else f'{c.loss:.4g}'}" for c in self.candidates)
        return f"final loss by lr on seed {self.seed}: {tried}"

    @property
    def note(self) -> str:
        """The chosen rate as a short text."""
        if self.best is None:
            return f"lr not tuned: all {len(self.candidates)} runs on seed {self.seed} failed"
        edge = ", at the edge of the search" if self.is_at_edge else ""
        return f"lr={self.best.lr:.4g}, best of {len(self.candidates)} on seed {self.seed}{edge}"


class Watcher:
    """Callbacks of a comparison; each does nothing unless overridden."""

    def begin(self, strategy: str, seed: int, lr: float | None, tuning: bool) -> None:
        """Called when a run starts; ``lr`` is None where a script chooses it."""

    def step(self, step: int, steps: int, time_s: float, loss: float | None) -> None:
        """Called when the run has reached ``step`` of ``steps``, at virtual ``time_s``."""

    def end(self, run: Run, tuning: bool) -> None:
        """Called when a run ends, with its ``run.status``."""


@dataclass(frozen=True)
class Findings:
    """Results of a comparison. ``comparison`` is None if it was interrupted before its first reported run ended.

    ``notes`` are sentences about the runs that a user might not expect.
    """

    comparison: Comparison | None
    tunings: Mapping[str, Tuning] = field(default_factory=dict)
    interrupted: bool = False
    notes: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the results for JSON."""
        tunings = {
            label: {"seed": t.seed, "candidates": [{"lr": c.lr, "loss": c.loss} for c in t.candidates]}
            for label, t in self.tunings.items()
        }
        compared = self.comparison.as_json() if self.comparison is not None else {}
        return {**compared, "tuning": tunings, "interrupted": self.interrupted}


def tunings_from(described: Mapping[str, Any]) -> dict[str, Tuning]:
    """Return the searches that ``Findings.as_json`` wrote."""
    return {
        label: Tuning(search["seed"], tuple(Candidate(c["lr"], c["loss"]) for c in search["candidates"]))
        for label, search in described.get("tuning", {}).items()
    }


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
    lr: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: Schedule | Callable[[int], float] | None = None,
    evaluate_every: int | None = None,
    engine: str = "auto",
    device: str = "cpu",
    reproduce: str = "",
    watcher: Watcher | None = None,
    earlier: Sequence[Run] = (),
    earlier_tunings: Mapping[str, Tuning] | None = None,
) -> Findings:
    """Run every strategy with every seed and return the results.

    ``target``: the loss at which times are compared (None: one that all reach); ``reproduce``: the text that
    reproduces the comparison. A failed run keeps its history and its row. Ctrl-C ends the comparison with the runs made
    so far; seeds are the outer loop, so that these are paired. Finished runs among ``earlier`` with the same settings
    are reused, and so are ``earlier_tunings``.
    """
    check_pairs([str(strategy) for strategy in strategies], seeds)
    require(lr > 0, f"lr={lr} must be positive.")
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
        "engine": engine,
        "device": device,
    }
    made = _Runs(workload, settings, watcher or Watcher(), earlier)
    made.tunings.update(earlier_tunings or {})
    interrupted = False
    try:
        if tune:
            for strategy in strategies:
                if str(strategy) not in made.tunings:
                    made.tune(strategy, lr, seed=max(seeds) + 1)
        for seed in seeds:
            for strategy in strategies:
                made.report(strategy, lr, seed)
    except KeyboardInterrupt:
        interrupted = True
    if not made.runs:
        return Findings(None, made.tunings, interrupted)
    baseline = str(next((s for s in strategies if isinstance(s, AllReduce)), strategies[0]))
    comparison = Comparison(
        entries=made.entries(),
        workload=str(workload),
        cluster=str(cluster),
        target_loss=target,
        reproduce=reproduce,
        baseline=baseline if baseline in made.runs else None,
    )
    return Findings(comparison, made.tunings, interrupted)


def count_runs(strategies: int, seeds: int, tune: bool) -> int:
    """Return the number of runs of a comparison."""
    return strategies * (seeds + (len(FACTORS) + FURTHER if tune else 0))


def check_pairs(labels: Sequence[str], seeds: Sequence[int]) -> None:
    """Raise ``ValueError`` unless there are strategies, given by ``labels``, and seeds, each of them once."""
    require(len(labels) > 0, "strategies=[] is empty; name at least one strategy.")
    repeated = next((label for label in labels if labels.count(label) > 1), None)
    require(
        repeated is None,
        f"strategies contains {repeated} twice; give each strategy once, and several seeds to see its variation.",
    )
    require(len(seeds) > 0, "seeds=[] is empty; name at least one seed.")
    require(
        len(set(seeds)) == len(seeds), f"seeds={list(seeds)} repeat and would give equal runs; give each seed once."
    )


class _Runs:
    """The runs to report, by strategy, and the searches for learning rates."""

    def __init__(self, workload: Workload, settings: dict[str, Any], watcher: Watcher, earlier: Sequence[Run]) -> None:
        self.workload, self.settings, self.watcher = workload, settings, watcher
        self.earlier = [run for run in earlier if run.status == "finished"]
        self.runs: dict[str, list[Run]] = {}
        self.tunings: dict[str, Tuning] = {}

    def tune(self, strategy: Strategy[Any], lr: float, seed: int) -> None:
        candidates: list[Candidate] = []
        for rate in learning_rates(lr, candidates):
            run = self._attempt(strategy, rate, seed, tuning=True)
            loss = run.summary()["loss"] if run.status == "finished" else None
            candidates.append(Candidate(rate, loss))
        self.tunings[str(strategy)] = Tuning(seed, tuple(sorted(candidates, key=lambda c: c.lr)))

    def report(self, strategy: Strategy[Any], lr: float, seed: int) -> None:
        tuning = self.tunings.get(str(strategy))
        chosen = tuning.best.lr if tuning is not None and tuning.best is not None else lr
        self._attempt(strategy, chosen, seed, tuning=False)

    def entries(self) -> list[Entry]:
        notes = {label: tuning.note for label, tuning in self.tunings.items()}
        return [Entry(label, runs, notes.get(label, "")) for label, runs in self.runs.items()]

    def _attempt(self, strategy: Strategy[Any], lr: float, seed: int, *, tuning: bool) -> Run:
        """Run once. A failed run is a result; an interrupted one is kept before the interruption is raised again."""
        self.watcher.begin(str(strategy), seed, lr, tuning)
        wanted = configuration(self.workload, strategy, seed=seed, lr=lr, **self.settings)
        try:
            run = next((run for run in self.earlier if dict(run.config) == wanted), None) or simulate(
                self.workload, strategy, seed=seed, lr=lr, progress=self.watcher.step, **self.settings
            )
        except (RunError, Interrupted) as error:
            if error.run is None:
                raise
            run = error.run
            if isinstance(error, Interrupted):
                self._keep(strategy, run, tuning=tuning)
                raise
        self._keep(strategy, run, tuning=tuning)
        return run

    def _keep(self, strategy: Strategy[Any], run: Run, *, tuning: bool) -> None:
        if not tuning:
            self.runs.setdefault(str(strategy), []).append(run)
        self.watcher.end(run, tuning)


def learning_rates(lr: float, candidates: Sequence[Candidate]) -> Iterator[float]:
    """Yield the rates to try, always the same number, depending on the ``candidates`` so far."""
    yield from (lr * factor for factor in FACTORS)
    for _ in range(FURTHER):
        yield _next_rate(sorted(candidates, key=lambda c: c.lr))


def _next_rate(candidates: list[Candidate]) -> float:
    """Return the rate beyond the edge if that is best, else the geometric mean with the better neighbour."""
    losses = [math.inf if c.loss is None else c.loss for c in candidates]
    best = min(range(len(losses)), key=losses.__getitem__)
    if losses[best] == math.inf or best == 0:
        return candidates[0].lr / 2
    if best == len(candidates) - 1:
        return candidates[-1].lr * 2
    neighbour = best - 1 if losses[best - 1] <= losses[best + 1] else best + 1
    return math.sqrt(candidates[best].lr * candidates[neighbour].lr)
