"""The search of a plan for a script: no other learning rates, and only as many runs as fit the budget.

Runs of a script simulate one worker after another, so a run costs about as much as training on one process with the
batches of all workers. The cost of a run is estimated from the runs before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tacit.compare.execution import Order
from tacit.compare.tasks import Task
from tacit.planning.candidates import Candidate
from tacit.planning.pace import Pace, period_of
from tacit.planning.plan import NO_TIME
from tacit.planning.results import Trial
from tacit.planning.search import Scope, Search
from tacit.planning.work import PlanTask
from tacit.record.run import Run

_PER_LOCAL_STEP: Final = 0.02
"""Guess by which share a local step between two rounds delays the target; it orders runs and estimates their cost."""
_MOST_DELAY: Final = 2.0


class ScriptSearch(Search):
    """The waves of ``Search`` without learning rates, cut to the budget.

    worker_step_s: real seconds to simulate a step of one worker, at first. jobs: runs at once. spent_s: of the budget,
    so far. twins: candidates with the losses of another one, which are not run.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        paces: Mapping[Candidate, Sequence[Pace]],
        scope: Scope,
        *,
        worker_step_s: float,
        jobs: int,
        now_s: Callable[[], float],
        spent_s: float = 0.0,
        twins: Mapping[Candidate, Candidate] | None = None,
    ) -> None:
        super().__init__(candidates, paces, scope, now_s)
        self._begun_s -= spent_s
        self._twins = twins or {}
        self._worker_step_s, self._jobs = worker_step_s, jobs
        self._spent_s = self._made = 0.0  # real seconds of runs, and steps of all their workers

    def after(self, task: Task, run: Run) -> Iterator[tuple[Order, Task]]:
        if run.record.get("wall_s", 0.0) > 0 and run.record["done"]:
            self._spent_s += run.record["wall_s"]
            self._made += run.record["done"] * run.workers
            self._worker_step_s = self._spent_s / self._made
        assert isinstance(task, PlanTask)
        trial = Trial.of(run, task.lr, self._scope.target_loss)
        for one, other in self._twins.items():
            if other is task.candidate:
                self.trials[one].append(trial)
        yield from super().after(task, run)

    def _start(
        self, wanted: Sequence[tuple[Candidate, float | None, int]], *, capped: bool = True
    ) -> Iterator[tuple[Order, Task]]:
        wanted = [one for one in wanted if one[0] not in self._twins]
        if self._wave == 0:
            yield from super()._start(wanted, capped=capped)
            return
        left_s = (self._scope.budget_s - (self._now_s() - self._begun_s)) * self._jobs
        chosen = []
        for one in sorted(wanted, key=lambda one: self._expected_s(one[0])) if self._wave == 1 else wanted:
            cost_s = self._cost_s(one[0])
            if cost_s > left_s:
                self.is_cut = True
                if not self.trials[one[0]]:
                    self.skipped[one[0]] = NO_TIME
                continue
            left_s -= cost_s
            chosen.append(one)
        yield from super()._start(chosen, capped=capped)

    def _cost_s(self, candidate: Candidate) -> float:
        """Return the real seconds that a run is expected to take."""
        steps = min(self._steps(candidate, capped=not candidate.is_kept), self._expected_steps(candidate))
        return steps * len(candidate.ranks) * self._worker_step_s

    def _expected_s(self, candidate: Candidate) -> float:
        return min(pace.seconds(math.ceil(self._expected_steps(candidate))) for pace in self._paces[candidate])

    def _expected_steps(self, candidate: Candidate) -> float:
        """Return a guess of the steps to the target, from those of the runs so far."""
        own = [trial.steps for trial in self.trials[candidate] if trial.steps is not None]
        if own:
            return float(own[0])
        kept = self._kept()[0]
        reached = [trial.steps for trial in self.trials[kept] if trial.steps is not None]
        steps = reached[0] if reached else self._longest
        delay = min(_MOST_DELAY, 1 + _PER_LOCAL_STEP * (period_of(candidate.strategy) - 1))
        return steps * delay * math.sqrt(len(kept.ranks) / len(candidate.ranks))

    @property
    def _longest(self) -> int:
        """The steps of the longest run so far."""
        done = [trial.curve[-1][0] for trials in self.trials.values() for trial in trials if trial.curve]
        return max(done, default=1)
