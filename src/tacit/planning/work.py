"""The simulations of a plan: one task per candidate, learning rate and seed, in any process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tacit.compare.curves import Curve, LossCurves
from tacit.compare.tasks import Task, Work
from tacit.planning.candidates import Candidate
from tacit.profiles.profile import Profile
from tacit.record.run import Run
from tacit.record.versions import versions
from tacit.simulation import simulate
from tacit.simulation.evaluation import Progress
from tacit.strategies import LocalSGD, Strategy
from tacit.workloads.workload import Workload


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanTask(Task):
    """One simulated training of a candidate, of at most ``steps`` steps.

    is_capped: whether these are fewer than the plan allows, because the best candidate so far takes no longer.
    """

    candidate: Candidate
    steps: int
    is_capped: bool = False


def is_timed_with_gradients(strategy: Strategy[Any]) -> bool:
    """Whether time and gradients must be simulated together.

    This is so if the model depends on time, and if the rounds depend on the model: periods that follow the loss or the
    variance.
    """
    follows_model = isinstance(strategy, LocalSGD) and (strategy.period.needs_variance or strategy.period.needs_loss)
    return strategy.depends_on_time or follows_model


@dataclass(frozen=True)
class PlanWork(Work):
    """What all simulations of a plan share. ``settings``: optimizer, schedule and engine; ``cache``: of loss curves."""

    workload: Workload
    profile: Profile
    settings: Mapping[str, Any]
    evaluate_every: int
    until_loss: float | None
    cache: str | None = None
    threads: int = 1

    @cached_property
    def _curves(self) -> LossCurves:
        return LossCurves(self.cache)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_curves"}

    def configuration(self, task: Task) -> dict[str, Any]:
        assert isinstance(task, PlanTask)
        return {"strategy": task.label, "ranks": list(task.candidate.ranks), "seed": task.seed, "lr": task.lr}

    def make(self, task: Task, progress: Progress | None) -> Run:
        assert isinstance(task, PlanTask) and task.strategy is not None and task.lr is not None
        shared = {**self.settings, "lr": task.lr, "seed": task.seed, "evaluate_every": self.evaluate_every}
        ranks = task.candidate.ranks
        if is_timed_with_gradients(task.strategy):
            cluster = self.profile.of_ranks(ranks).cluster()
            return simulate(
                self.workload,
                task.strategy,
                cluster=cluster,
                steps=task.steps,
                until_loss=self.until_loss,
                progress=progress,
                **shared,
            )
        curve = self._curves.curve(
            self.workload, task.strategy, workers=len(ranks), steps=task.steps, until_loss=self.until_loss, **shared
        )
        return self._run(task, curve)

    def failed(self, task: Task, status: str) -> Run:
        assert isinstance(task, PlanTask)
        return Run(
            workload=str(self.workload),
            strategy=task.label,
            workers=len(task.candidate.ranks),
            steps=task.steps,
            seed=task.seed,
            status=status,
            config=self.configuration(task),
            record={**versions(), "world": "simulated"},
        )

    def _run(self, task: PlanTask, curve: Curve) -> Run:
        """Return a run with the losses of ``curve`` and without times."""
        run = self.failed(task, curve.status)
        run.history = [
            {"time_s": math.nan, "step": step, "loss": loss, "metric": metric}
            for step, loss, metric in zip(curve.steps, curve.loss, curve.metric, strict=True)
        ]
        return run
