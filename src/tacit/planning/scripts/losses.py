"""The loss curve of a simulated script: the running mean of the losses that its workers observe."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tacit.record.smoothing import RunningLoss
from tacit.simulation.scripts.following import StepOfScript

TARGET, STEPS, BUDGET = "target", "steps", "budget"
"""Why a follower ends a run."""


@dataclass
class _Step:
    """The losses of one step so far. Ranks without a loss count as having ended the step."""

    ranks: int = 0
    product: float = 0.0  # Σ weight · loss
    weight: float = 0.0
    time_s: float = 0.0


@dataclass
class LossFollower:
    """Follows the steps of a simulated script, and ends it at the target, after ``most_steps``, or at ``until_s``.

    For strategies with rounds a point of the curve is a step that all workers have ended. For others, whose workers are
    not in step, it is every observed loss; ``steps`` are then updates of the server, or steps of the mean worker.
    least: mini-batches in a window, at least. until_s: by ``now_s``.
    """

    workers: int
    least: int
    in_step: bool
    has_server: bool = False
    until_loss: float | None = None
    most_steps: int | None = None
    until_s: float | None = None
    now_s: Callable[[], float] = time.time
    steps: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    done: int = 0  # steps, whether their losses were observed or not
    ended_by: str = ""
    _pending: dict[int, _Step] = field(default_factory=dict)
    _seen: int = 0

    def __post_init__(self) -> None:
        self._running = RunningLoss(self.least)

    def __call__(self, one: StepOfScript) -> bool:
        """Take note of a step; return whether the run ends."""
        self._seen += 1
        if self.in_step:
            self._end_step(one)
        else:
            self.done = one.updates if self.has_server else -(-self._seen // self.workers)
            if one.loss is not None:
                self._add(one.time_s, one.loss, one.weight, 1)
        if self.until_loss is not None and self.losses and self.losses[-1] <= self.until_loss:
            self.ended_by = TARGET
        elif self.most_steps is not None and self.done >= self.most_steps:
            self.ended_by = STEPS
        elif self.until_s is not None and self.now_s() > self.until_s:
            self.ended_by = BUDGET
        return bool(self.ended_by)

    def _end_step(self, one: StepOfScript) -> None:
        step = self._pending.setdefault(one.step, _Step())
        step.ranks += 1
        step.time_s = max(step.time_s, one.time_s)
        if one.loss is not None:
            step.product += one.weight * one.loss
            step.weight += one.weight
        if step.ranks < self.workers:
            return
        del self._pending[one.step]
        self.done = one.step
        if step.weight:
            self._add(step.time_s, step.product / step.weight, step.weight, self.workers)

    def _add(self, time_s: float, loss: float, weight: float, batches: int) -> None:
        point = self._running.add(self.done, time_s, loss, weight, batches)
        if point is None:
            return
        step = round(point.step)
        if self.steps and self.steps[-1] == step:
            self.times_s[-1], self.losses[-1] = point.time_s, point.loss
            return
        self.steps.append(step)
        self.times_s.append(point.time_s)
        self.losses.append(point.loss)
