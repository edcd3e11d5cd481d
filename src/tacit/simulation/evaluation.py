"""Evaluations along a simulated run: the reported model, measured on all data, at chosen steps, free of virtual time.

The model at step s is the mean over workers of what ``Strategy.reported`` returns after *their* step s, whatever moment
that was for each: no worker waits for an evaluation. Its row of the history carries the time at which the last worker
got there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tacit.record.run import Row, Tally, number
from tacit.record.trace import Trace
from tacit.workloads.workload import Evaluation, Problem

Progress = Callable[[int, int, float, float | None], None]
"""Gets step, steps, virtual time and loss, now and then."""


@dataclass
class _Look:
    """What has been gathered for one step so far: every worker's model before and after the step's round."""

    before: Tensor
    after: Tensor
    has_before: set[int]
    has_after: set[int]


class Evaluator:
    """Gathers rows until a step is complete, then measures it."""

    def __init__(
        self, problem: Problem | None, matrix: Tensor, steps: int, every: int, progress: Progress | None
    ) -> None:
        self._problem, self._matrix, self._steps, self._every, self._progress = problem, matrix, steps, every, progress
        self._looks: dict[int, _Look] = {}
        self._spare: list[_Look] = []
        self._alive = set(range(len(matrix)))
        self._times: dict[int, float] = {}
        self._arrived: dict[int, int] = {}  # how many workers got to a step
        self._measured: dict[int, tuple[Evaluation | None, float | None]] = {}
        self.buffers: Callable[[], dict[str, Tensor]] = dict
        self.looks_at_each = False  # worker, at the end
        self._worst: dict[str, float | None] = {}

    def is_due(self, step: int) -> bool:
        """Whether step ``step`` (counted from 1) is to be looked at."""
        return step % self._every == 0 or step == self._steps

    def due_between(self, first: int, last: int) -> Sequence[int]:
        """Return the steps from ``first`` to ``last`` that are to be looked at."""
        due = range(-(-first // self._every) * self._every, last + 1, self._every)
        return (*due, self._steps) if first <= self._steps <= last and self._steps % self._every else due

    def reached(self, step: int, time_s: float) -> None:
        """Some worker finished ``step`` at ``time_s``."""
        self._arrived[step] = self._arrived.get(step, 0) + 1
        if time_s > self._times.get(step, -1.0):
            self._times[step] = time_s

    def before(self, rank: int, step: int, row: Tensor) -> None:
        """Take a worker's model after its local update, before the round of that step."""
        if step in self._measured:  # without this one, which came back too late for it
            return
        look = self._look(step)
        look.before[rank] = row
        look.has_before.add(rank)
        self._measure_if_complete(step, look)

    def after(self, rank: int, step: int, row: Tensor) -> None:
        """Take a worker's share of the reported model after the step's hooks."""
        if step in self._measured:
            return
        look = self._look(step)
        look.after[rank] = row
        look.has_after.add(rank)
        self._measure_if_complete(step, look)

    def both(self, rank: int, step: int, row: Tensor) -> None:
        """Take a quiet step's model: nothing happens between before and after."""
        if step in self._measured:
            return
        look = self._look(step)
        look.before[rank] = row
        look.after[rank] = row
        look.has_before.add(rank)
        look.has_after.add(rank)
        self._measure_if_complete(step, look)

    def lost(self, rank: int) -> None:
        """Go on without a worker that crashed."""
        self._alive.discard(rank)
        for step, look in list(self._looks.items()):
            self._measure_if_complete(step, look)

    def returned(self, rank: int) -> None:
        """Count on a worker again from the step it begins at."""
        self._alive.add(rank)

    def measure(self, step: int, time_s: float, parameters: Tensor) -> None:
        """Measure the reported model as it is, for step 0, the end, and servers."""
        self.reached(step, time_s)
        spread = self._measured.get(step, (None, None))[1]
        self._measured[step] = (self._evaluate(parameters), spread)
        self._tell(step)

    def rows(self, trace: Trace, until_s: float) -> list[Row]:
        """Return the history up to ``until_s``: what was measured, beside bytes, rounds and notes from the trace."""
        tally = Tally(trace)
        rows: list[Row] = []
        complete = set(self._measured)
        if self._problem is None:  # nothing is measured in a timing-only run, but steps have their times
            complete |= {step for step, count in self._arrived.items() if count >= len(self._alive)}
        for step in sorted(complete):
            time_s = self._times.get(step, 0.0)
            if time_s > until_s:
                continue
            evaluation, spread = self._measured.get(step, (None, None))
            row = {"time_s": time_s, "step": step, **_numbers(evaluation), "spread": number(spread)}
            rows.append({**row, **tally.at(time_s), **(self._worst if step == self._steps else {})})
        return rows

    def _look(self, step: int) -> _Look:
        if step not in self._looks:
            fresh = self._spare.pop() if self._spare else None
            if fresh is None:
                fresh = _Look(torch.empty_like(self._matrix), torch.empty_like(self._matrix), set(), set())
            self._looks[step] = fresh
        return self._looks[step]

    def _measure_if_complete(self, step: int, look: _Look) -> None:
        if not (look.has_before >= self._alive and look.has_after >= self._alive) or not self._alive:
            return
        alive = sorted(self._alive)
        before = look.before if len(alive) == len(self._matrix) else look.before[alive]
        after = look.after if len(alive) == len(self._matrix) else look.after[alive]
        spread = float((before - before.mean(0)).square().sum(1).mean())
        del self._looks[step]
        look.has_before.clear()
        look.has_after.clear()
        self._spare.append(look)
        if step == self._steps:  # the model to report is measured after finish()
            self._measured[step] = (None, spread)
            self._look_at_each(after)
            return
        self._measured[step] = (self._evaluate(after.mean(0)), spread)
        self._tell(step)

    def _look_at_each(self, models: Tensor) -> None:
        """Measure the worst of the workers' own models, where they have their own."""
        if self.looks_at_each and self._problem is not None:
            found = [evaluation for evaluation in map(self._evaluate, models) if evaluation is not None]
            worst = max(found, key=lambda evaluation: evaluation.loss)
            self._worst = {"worst_loss": number(worst.loss), "worst_metric": number(worst.metric)}

    def _evaluate(self, parameters: Tensor) -> Evaluation | None:
        return None if self._problem is None else self._problem.evaluate(parameters, self.buffers() or None)

    def _tell(self, step: int) -> None:
        if self._progress is not None:
            evaluation = self._measured[step][0]
            self._progress(step, self._steps, self._times.get(step, 0.0), evaluation.loss if evaluation else None)


def _numbers(evaluation: Evaluation | None) -> dict[str, Any]:
    if evaluation is None:
        return dict.fromkeys(("loss", "gradient_norm_squared", "metric"))
    return {name: number(value) for name, value in evaluation._asdict().items()}
