"""Evaluations of a simulated run at multiples of a virtual time.

The model at time t is what the strategy would report at this moment, after all events up to t: the server's model, or
the mean over workers of the result of ``Strategy.reported``, which is by default the mean of their current models. The
step of a row is the number of steps that all workers have completed by then, or of the server's updates.

An evaluation is no event of the run. It changes neither the trace nor the models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tacit.record.run import Row, Tally
from tacit.record.trace import Trace
from tacit.simulation.engine.engine import Engine
from tacit.simulation.evaluation.evaluator import Evaluator, Progress, row_of
from tacit.workloads.workload import Evaluation, Problem

if TYPE_CHECKING:
    from tacit.simulation.world import World


class _Measurement(NamedTuple):
    time_s: float
    step: int
    evaluation: Evaluation | None
    spread: float | None


class TimedEvaluator(Evaluator):
    """Evaluates the models of all workers, or the server's, every ``every_s`` seconds, and at the end of the run."""

    def __init__(
        self,
        problem: Problem | None,
        matrix: Tensor,
        steps: int,
        every_s: float,
        progress: Progress | None,
        until_loss: float | None = None,
    ) -> None:
        super().__init__(problem, matrix, steps, steps, progress, until_loss)
        self._every_s, self._at_times = every_s, list[_Measurement]()

    @property
    def next_s(self) -> float:
        """The time of the next evaluation."""
        return (len(self._at_times) + 1) * self._every_s

    def due_between(self, first: int, last: int) -> Sequence[int]:
        return ()

    def observe(self, world: World) -> None:
        """Evaluate the model of this moment."""
        if world.server_model is not None:
            self._measure_at(world.servers[0].updates, None, world.server_model)
            return
        alive = [worker for worker in world.workers if not worker.is_lost]
        step = min((worker.progress() for worker in alive), default=0)
        if not alive or not isinstance(world.engine, Engine):
            self._measure_at(step, None, None)
            return
        world.engine.settle()
        models = world.engine.matrix[[worker.rank for worker in alive]]
        with torch.no_grad():
            shares = [worker.reported_now() for worker in alive]
            reported = [own if share is None else share for own, share in zip(models, shares, strict=True)]
            self._measure_at(step, models, torch.stack(reported))

    def rows(self, trace: Trace, until_s: float) -> list[Row]:
        tally = Tally(trace)
        timed = [{**row_of(*one), **tally.at(one.time_s)} for one in self._at_times if one.time_s <= until_s]
        if timed and self.target is not None and self.target.time_s == timed[-1]["time_s"]:
            timed[-1] |= self._worst
        whole = super().rows(trace, until_s)  # the start of the run, and its end
        return sorted([*whole, *timed], key=lambda row: (row["time_s"], row["step"]))

    def _measure_at(self, step: int, models: Tensor | None, reported: Tensor | None) -> None:
        """Evaluate ``reported``: a model, or the workers' shares of it. models: those of the workers."""
        time_s, evaluation, spread = self.next_s, None, None
        if models is not None:
            spread = float((models - models.mean(0)).square().sum(1).mean())
        if reported is not None:
            model = reported if reported.dim() == 1 else reported.mean(0)
            evaluation = self._evaluate(model)
            if self._find_target(step, time_s, evaluation, model) and reported.dim() == 2:
                self._evaluate_each(reported)
        self._at_times.append(_Measurement(time_s, step, evaluation, spread))
        if self._progress is not None:
            self._progress(step, self._steps, time_s, evaluation.loss if evaluation else None)
