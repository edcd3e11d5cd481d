"""Evaluations of a simulated run: the reported model on all data, at chosen steps, without virtual time.

The model at step s is the mean over workers of the result of ``Strategy.reported`` after *their* step s. Workers reach
this step at different times, and none waits for an evaluation. The row of the history has the time of the last worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.record.run import Row, Tally, number
from tacit.record.trace import Trace
from tacit.workloads.workload import Evaluation, Problem

Progress = Callable[[int, int, float, float | None], None]
"""Called regularly with step, steps, virtual time and loss."""


class Target(NamedTuple):
    """The first evaluation whose loss is at most ``until_loss``; the run ends with its model, at its time."""

    step: int
    time_s: float
    model: Tensor


@dataclass
class _Models:
    """The models of one step that have been collected so far: each worker's model before and after the round."""

    before: Tensor
    after: Tensor
    has_before: set[int]
    has_after: set[int]


class Evaluator:
    """Collects the workers' models of a step and evaluates them when they are complete.

    until_loss: the loss at which ``target`` is set. ``on_arrival`` is then called with the time of a step that all
    workers have completed, whose models the engine may not have computed yet.
    """

    def __init__(
        self,
        problem: Problem | None,
        matrix: Tensor,
        steps: int,
        every: int,
        progress: Progress | None,
        until_loss: float | None = None,
    ) -> None:
        self._problem, self._matrix, self._steps, self._every, self._progress = problem, matrix, steps, every, progress
        self.until_loss = until_loss
        self.target: Target | None = None
        self.on_arrival: Callable[[float], None] = lambda time_s: None
        self._models: dict[int, _Models] = {}  # by step
        self._spare: list[_Models] = []
        self._alive = set(range(len(matrix)))
        self._joined_at: dict[int, int] = {}  # by rank: the step after which a worker joined
        self._times: dict[int, float] = {}
        self._arrived: dict[int, int] = {}  # number of workers that have reached a step
        self._measured: dict[int, tuple[Evaluation | None, float | None]] = {}
        self.buffers: Callable[[], dict[str, Tensor]] = dict
        self.uses_vmap: Callable[[], bool] = lambda: False
        self.evaluates_each_worker = False  # at the end of the run
        self._worst: dict[str, float | None] = {}

    def is_due(self, step: int) -> bool:
        """Whether step ``step`` (counted from 1) is to be evaluated."""
        return step % self._every == 0 or step == self._steps

    def next_due(self, step: int) -> int:
        """Return the first step after ``step``, which is not the last, that is to be evaluated."""
        due = step - step % self._every + self._every
        return due if due < self._steps else self._steps

    def due_between(self, first: int, last: int) -> Sequence[int]:
        """Return the steps from ``first`` to ``last`` that are to be evaluated."""
        due = range(-(-first // self._every) * self._every, last + 1, self._every)
        return (*due, self._steps) if first <= self._steps <= last and self._steps % self._every else due

    def reached(self, step: int, time_s: float) -> None:
        """Note that a worker finished ``step`` at ``time_s``."""
        self._arrived[step] = self._arrived.get(step, 0) + 1
        if time_s > self._times.get(step, -1.0):
            self._times[step] = time_s
        if self.until_loss is not None and self._arrived[step] >= len(self._expected(step)):
            self.on_arrival(self._times[step])

    def reached_by_all(self, step: int, times_s: NDArray[np.float64]) -> None:
        """Note when each worker finished ``step``."""
        self._arrived[step], self._times[step] = len(times_s), float(times_s.max())

    def take_all(self, step: int, matrix: Tensor, *, before: bool, after: bool) -> None:
        """Take the models of all workers before the round of ``step``, or after its hooks, or as both."""
        models = self._models_of(step)
        for is_wanted, rows, present in (
            (before, models.before, models.has_before),
            (after, models.after, models.has_after),
        ):
            if is_wanted:
                rows.copy_(matrix)
                present.update(self._alive)
        self._measure_if_complete(step, models)

    def before(self, rank: int, step: int, row: Tensor) -> None:
        """Take a worker's model after its local update, before the round of that step."""
        if step in self._measured:  # evaluated without this worker, which returned too late
            return
        models = self._models_of(step)
        models.before[rank] = row
        models.has_before.add(rank)
        self._measure_if_complete(step, models)

    def after(self, rank: int, step: int, row: Tensor) -> None:
        """Take a worker's share of the reported model after the step's hooks."""
        if step in self._measured:
            return
        models = self._models_of(step)
        models.after[rank] = row
        models.has_after.add(rank)
        self._measure_if_complete(step, models)

    def both(self, rank: int, step: int, row: Tensor) -> None:
        """Take the model of a hook-free step, which has no round."""
        if step in self._measured:
            return
        models = self._models_of(step)
        models.before[rank] = row
        models.after[rank] = row
        models.has_before.add(rank)
        models.has_after.add(rank)
        self._measure_if_complete(step, models)

    def lost(self, rank: int) -> None:
        """Continue without a worker that crashed."""
        self._alive.discard(rank)
        for step, models in list(self._models.items()):
            self._measure_if_complete(step, models)
        if self.until_loss is not None:
            self.on_arrival(0.0)  # others may have waited for this worker alone

    def returned(self, rank: int, step: int) -> None:
        """Include a worker that has returned or joined after ``step``, from the next step on."""
        self._alive.add(rank)
        self._joined_at[rank] = step

    def _expected(self, step: int) -> set[int]:
        """Return the workers whose models of ``step`` are evaluated."""
        if not self._joined_at:
            return self._alive
        return {rank for rank in self._alive if self._joined_at.get(rank, 0) < step}

    def measure(self, step: int, time_s: float, parameters: Tensor) -> None:
        """Evaluate ``parameters`` for step 0, the end of the run, and updates of servers."""
        self.reached(step, time_s)
        spread = self._measured.get(step, (None, None))[1]
        self._measured[step] = (self._evaluate(parameters), spread)
        self._find_target(step, self._times[step], self._measured[step][0], parameters)
        self._report(step)

    def rows(self, trace: Trace, until_s: float) -> list[Row]:
        """Return the history up to ``until_s``: evaluations, and bytes, rounds and periods from the trace."""
        tally = Tally(trace)
        rows: list[Row] = []
        complete = set(self._measured)
        if self._problem is None:  # a timing-only run has no evaluations, but its steps have times
            complete |= {step for step, count in self._arrived.items() if count >= len(self._expected(step))}
        last = self._steps if self.target is None else self.target.step
        for step in sorted(complete):
            time_s = self._times.get(step, 0.0)
            if time_s > until_s or step > last:
                continue
            evaluation, spread = self._measured.get(step, (None, None))
            row = row_of(time_s, step, evaluation, spread)
            rows.append({**row, **tally.at(time_s), **(self._worst if step == last else {})})
        return rows

    def _models_of(self, step: int) -> _Models:
        if step not in self._models:
            unused = self._spare.pop() if self._spare else None
            if unused is None:
                unused = _Models(torch.empty_like(self._matrix), torch.empty_like(self._matrix), set(), set())
            self._models[step] = unused
        return self._models[step]

    def _measure_if_complete(self, step: int, models: _Models) -> None:
        expected = self._expected(step)
        if not (models.has_before >= expected and models.has_after >= expected) or not expected:
            return
        alive = sorted(expected)
        before = models.before if len(alive) == len(self._matrix) else models.before[alive]
        after = models.after if len(alive) == len(self._matrix) else models.after[alive]
        spread = float((before - before.mean(0)).square().sum(1).mean())
        del self._models[step]
        models.has_before.clear()
        models.has_after.clear()
        self._spare.append(models)
        if step == self._steps:  # the final model is evaluated after ``finish``
            self._measured[step] = (None, spread)
            self._evaluate_each(after)
            return
        model = after.mean(0)
        self._measured[step] = (self._evaluate(model), spread)
        if self._find_target(step, self._times.get(step, 0.0), self._measured[step][0], model):
            self._evaluate_each(after)
        self._report(step)

    def _find_target(self, step: int, time_s: float, evaluation: Evaluation | None, model: Tensor) -> bool:
        """Set ``target`` if this evaluation is the first whose loss is small enough; return whether it is."""
        if self.until_loss is None or self.target is not None or evaluation is None:
            return False
        if evaluation.loss <= self.until_loss:
            self.target = Target(step, time_s, model.detach().clone())
        return self.target is not None

    def _evaluate_each(self, models: Tensor) -> None:
        """Evaluate the worst of the workers' models, if workers keep different models."""
        if self.evaluates_each_worker and self._problem is not None:
            buffers = self.buffers() or None
            losses = self._problem.losses(models, buffers, is_batched=self.uses_vmap())
            worst = self._problem.evaluate(models[max(range(len(losses)), key=losses.__getitem__)], buffers)
            self._worst = {"worst_loss": number(worst.loss), "worst_metric": number(worst.metric)}

    def _evaluate(self, parameters: Tensor) -> Evaluation | None:
        return None if self._problem is None else self._problem.evaluate(parameters, self.buffers() or None)

    def _report(self, step: int) -> None:
        if self._progress is not None:
            evaluation = self._measured[step][0]
            self._progress(step, self._steps, self._times.get(step, 0.0), evaluation.loss if evaluation else None)


def row_of(time_s: float, step: int, evaluation: Evaluation | None, spread: float | None) -> Row:
    """Return the measured part of a row of the history."""
    return {"time_s": time_s, "step": step, **_numbers(evaluation), "spread": number(spread)}


def _numbers(evaluation: Evaluation | None) -> dict[str, Any]:
    if evaluation is None:
        return dict.fromkeys(("loss", "gradient_norm_squared", "metric"))
    return {name: number(value) for name, value in evaluation._asdict().items()}
