"""Learning-rate schedules: the factor on the base rate at a step.

Any function of the step is a schedule; these have names.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tacit.core.specs import Spec
from tacit.errors import require


class Schedule(Spec, ABC):
    """Base class of schedules: the factor on the learning rate at each step.

    Derive a frozen keyword-only dataclass and override ``factor``. In Python a plain function of the step is a schedule
    too; a class also knows the length of the run, prints, and can be named on the command line.

    >>> from dataclasses import dataclass
    >>> import tacit
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Linear(tacit.Schedule):
    ...     final: float = 0.0
    ...     def factor(self, step, steps):
    ...         return 1 + (self.final - 1) * step / steps
    >>> Linear().factor(25, 100)
    0.75
    >>> run = tacit.simulate(tacit.workloads.quadratic(dimension=3), tacit.AllReduce(), steps=5, schedule=Linear())
    >>> run.status
    'finished'
    """

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """Return the factor for ``step`` (from 0) of ``steps``."""


@dataclass(frozen=True, kw_only=True)
class StepDecay(Schedule):
    """Multiply the rate by ``by`` at each of the given fractions of the run."""

    at: Sequence[float] = (0.5, 0.75)
    by: float = 0.1

    def __post_init__(self) -> None:
        require(all(0 < a < 1 for a in self.at), f"at={list(self.at)} must be fractions of the run, between 0 and 1.")
        require(self.by > 0, f"by={self.by} must be positive.")

    def factor(self, step: int, steps: int) -> float:
        return float(self.by ** sum(step >= a * steps for a in self.at))


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Decrease from 1 to ``final`` along half a cosine, after a linear rise over ``warmup_steps``."""

    warmup_steps: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        require(self.warmup_steps >= 0, f"warmup_steps={self.warmup_steps} must not be negative.")
        require(0 <= self.final <= 1, f"final={self.final} must lie between 0 and 1.")

    def factor(self, step: int, steps: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * min(1.0, progress))) / 2


@dataclass(frozen=True, kw_only=True)
class InverseTime(Schedule):
    """offset / (step + offset).

    The rate η_t = 4/(μ(t + a)) of LUPA-SGD (arXiv 1910.13598) is lr = 4/(μ a) with offset = a.
    """

    offset: float

    def __post_init__(self) -> None:
        require(self.offset > 0, f"offset={self.offset} must be positive; LUPA's theory takes max(8 L/mu, period + 4).")

    def factor(self, step: int, steps: int) -> float:
        return self.offset / (step + self.offset)


def factors(schedule: Schedule | Callable[[int], float] | None, steps: int) -> Callable[[int], float]:
    """Return the factor as a function of the step alone."""
    match schedule:
        case None:
            return lambda step: 1.0
        case Schedule():
            return lambda step: schedule.factor(step, steps)
        case _ if callable(schedule):
            return schedule
        case _:
            raise TypeError(f"schedule={schedule!r} must be a function of the step, or StepDecay, Cosine, InverseTime.")
