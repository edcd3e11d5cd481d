"""The search of a plan: which simulations to make, in waves.

1. The candidates that stay to the end, DDP and the user's own strategy, at the user's learning rate.
2. All others whose best possible time is shorter: the steps of synchronous SGD at their own pace. None of them is
   simulated for longer than the best one that stays would take.
3. The fastest candidates and those that stay, at other learning rates. Those that stay are never cut short, so that
   the best rates of both are compared.
4. The fastest six and those that stay, with further seeds. Times of two seeds differ by several percent, so that the
   fastest three of one seed often lack the fastest one, and only candidates with all seeds are compared.
5. The fastest four of these with six more seeds, if they are close; then those that still are, twice more.

A wave starts when the one before has ended, so results do not depend on the number of processes. Once the budget is
spent, no further wave starts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tacit.compare.execution import Order
from tacit.compare.tasks import Task
from tacit.planning.candidates import Candidate
from tacit.planning.pace import Pace
from tacit.planning.results import Trial
from tacit.planning.work import PlanTask
from tacit.record.run import Run

_OPTIMISM: Final = 0.8
"""A candidate may need fewer steps than synchronous SGD by this factor; below that it is not considered."""
_MARGIN: Final = 1.1
"""Candidates are simulated for longer than the best time by this factor, as paces are uncertain."""
_MOST_CANDIDATES: Final = 24
_TUNED, _REPEATED, _DECIDED = 6, 6, 4
_DECIDING_WAVES, _DECIDING_SEEDS = 3, 6
FIRST_DECIDING_SEED: Final = 1000
"""Seeds of the last waves begin here: none that a user would give, or would judge a plan by."""
_CLOSE: Final = 0.26
"""Two means over n seeds are close if they differ by less than this share over √n: one and a half standard errors of
their difference, where times of single seeds have a deviation of 12 %."""
RATES: Final = (0.5, 2.0, 4.0)
"""Other learning rates that are tried, as factors of the user's."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What is searched: the user's learning rate, seeds, the largest number of steps, and the target.

    lr: None for a script, which chooses its own. within_s: instead of a target loss, the time after which losses are
    compared.
    """

    lr: float | None
    seeds: Sequence[int]
    steps: int
    target_loss: float | None
    within_s: float | None
    budget_s: float
    tunes: bool = True


class Search:
    """The waves of simulations, as the tasks of ``tacit.compare.execution``."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        paces: Mapping[Candidate, Sequence[Pace]],
        scope: Scope,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._candidates, self._paces, self._scope = candidates, paces, scope
        self._now_s, self._begun_s = now_s, now_s()
        self._wave, self._left = 0, 0
        self._finalists: list[Candidate] = []
        self.trials: dict[Candidate, list[Trial]] = {one: [] for one in candidates}
        self.skipped: dict[Candidate, str] = {}  # with the reason
        self.is_cut = False  # whether the budget ended the search

    @property
    def within_s(self) -> float | None:
        """The time after which losses are compared; None: times to a target are."""
        return self._scope.within_s

    def first(self) -> Iterator[tuple[Order, Task]]:
        yield from self._start([(one, self._scope.lr, self._scope.seeds[0]) for one in self._kept()], capped=False)

    def after(self, task: Task, run: Run) -> Iterator[tuple[Order, Task]]:
        assert isinstance(task, PlanTask)
        self.trials[task.candidate].append(Trial.of(run, task.lr, self._scope.target_loss))
        self._left -= 1
        waves = (self._second, self._third, self._fourth, *[self._decide] * _DECIDING_WAVES)
        while self._left == 0 and self._wave <= len(waves):
            is_spent = self._wave > 1 and self._now_s() - self._begun_s > self._scope.budget_s
            tasks = list(waves[self._wave - 1]())
            if tasks and is_spent:
                self.is_cut = True
                return
            yield from tasks

    def score(self, candidate: Candidate, lr: float | None = None) -> float:
        """Return the median time to the target, or the loss after the given time; infinite if it was not reached.

        lr: at this learning rate; None: at the best one.
        """
        by_rate: dict[float | None, list[float]] = {}
        for trial in self.trials[candidate]:
            value = trial.best_loss if self._scope.target_loss is None else _median_s(trial, self._paces[candidate])
            by_rate.setdefault(trial.lr, []).append(value)
        means = {rate: sum(values) / len(values) for rate, values in by_rate.items()}
        return min(means.values(), default=math.inf) if lr is None else means.get(lr, math.inf)

    # The waves.

    def _kept(self) -> list[Candidate]:
        return [one for one in self._candidates if one.is_kept]

    def _others(self) -> list[Candidate]:
        return [one for one in self._candidates if not one.is_kept and one not in self.skipped]

    def _second(self) -> Iterator[tuple[Order, Task]]:
        baseline = self.trials[self._kept()[0]][0]
        if baseline.steps is not None and self._scope.target_loss is not None:
            best_s = min(self.score(one) for one in self._kept())
            for one in self._others():
                least_s = min(pace.seconds(round(_OPTIMISM * baseline.steps)) for pace in self._paces[one])
                if least_s > best_s:
                    self.skipped[one] = f"takes at least {least_s:.3g} s"
        by_pace = sorted(self._others(), key=lambda one: min(pace.step_s for pace in self._paces[one]))
        for one in by_pace[_MOST_CANDIDATES:]:
            self.skipped[one] = f"not among the {_MOST_CANDIDATES} shortest steps"
        yield from self._start([(one, self._scope.lr, self._scope.seeds[0]) for one in self._others()])

    def _third(self) -> Iterator[tuple[Order, Task]]:
        own = self._scope.lr
        rates = [own * factor for factor in RATES] if self._scope.tunes and own is not None else []
        chosen = [*self._kept(), *self._best(_TUNED)]
        yield from self._start([(one, rate, self._scope.seeds[0]) for one in chosen for rate in rates])

    def _fourth(self) -> Iterator[tuple[Order, Task]]:
        self._finalists = [*self._kept(), *self._best(_REPEATED)]
        yield from self._repeated(self._finalists, self._scope.seeds[1:])

    def _decide(self) -> Iterator[tuple[Order, Task]]:
        number = self._wave - 4
        seeds = len(self._scope.seeds) + number * _DECIDING_SEEDS
        best = min(map(self.score, self._finalists), default=math.inf)
        close = [one for one in self._finalists if self.score(one) <= (1 + _CLOSE / math.sqrt(seeds)) * best < math.inf]
        is_needed = len(close) > 1 and len(self._scope.seeds) > 1
        self._finalists = sorted(close, key=self.score)[:_DECIDED]
        first = FIRST_DECIDING_SEED + number * _DECIDING_SEEDS
        yield from self._repeated(self._finalists, range(first, first + _DECIDING_SEEDS) if is_needed else ())

    def _repeated(self, candidates: Sequence[Candidate], seeds: Sequence[int]) -> Iterator[tuple[Order, Task]]:
        """Start candidates with further seeds, at the user's learning rate and at the best one."""
        wanted = []
        for one in candidates:
            rates: set[float | None] = {self._scope.lr}
            if tried := self._rates(one):
                rates.add(min(tried, key=lambda rate: (self.score(one, rate), rate)))
            wanted += [(one, rate, seed) for rate in sorted(rates, key=_rank) for seed in seeds]
        yield from self._start(wanted, capped=False)

    def _best(self, count: int) -> list[Candidate]:
        """Return the best candidates that reached the target, besides those that stay."""
        reached = [one for one in self._others() if self.score(one) < math.inf]
        return sorted(reached, key=lambda one: (self.score(one), one.label))[:count]

    def _rates(self, candidate: Candidate) -> list[float]:
        return sorted({trial.lr for trial in self.trials[candidate] if trial.lr is not None})

    def _start(
        self, wanted: Sequence[tuple[Candidate, float | None, int]], *, capped: bool = True
    ) -> Iterator[tuple[Order, Task]]:
        self._wave += 1
        self._left = len(wanted)
        for number, (candidate, rate, seed) in enumerate(wanted):
            workers = f"{len(candidate.ranks)} worker{'s' * (len(candidate.ranks) > 1)}"
            at_rate = "" if rate is None else f" · lr={rate:.4g}"
            title = f"{candidate.strategy} · {workers}{at_rate} · seed {seed}"
            steps = self._steps(candidate, capped=capped and not candidate.is_kept)
            yield (
                (self._wave, number),
                PlanTask(candidate.strategy, seed, rate, title, candidate=candidate, steps=steps),
            )

    def _steps(self, candidate: Candidate, *, capped: bool) -> int:
        """Return for how many steps to simulate a candidate: no longer than the best time so far."""
        if self._scope.within_s is not None:
            return max(1, min(self._scope.steps, self._steps_within(candidate, self._scope.within_s)))
        best_s = min((self.score(one) for one in self._candidates), default=math.inf)
        if not capped or best_s == math.inf:
            return self._scope.steps
        return max(1, min(self._scope.steps, self._steps_within(candidate, _MARGIN * best_s) + 1))

    def _steps_within(self, candidate: Candidate, seconds: float) -> int:
        return max(pace.steps_within(seconds) for pace in self._paces[candidate])


def _rank(rate: float | None) -> float:
    return 0.0 if rate is None else rate


def _median_s(trial: Trial, paces: Sequence[Pace]) -> float:
    times_s = sorted(trial.times_s(paces))
    return times_s[len(times_s) // 2] if times_s else math.inf
