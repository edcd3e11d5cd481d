"""What a gradient's age, or its learner's speed, does to its learning rate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from tacit.core.specs import Spec
from tacit.errors import require


class Rate(Spec, ABC):
    """A rule for η of one gradient, given how old it is, and on request how long its learner takes."""

    needs_distance: ClassVar[bool] = False
    """Whether the server must keep the models that learners hold."""

    needs_times: ClassVar[bool] = False
    """Whether ``of`` is also given ``relative_time=``, for which the server measures how long each learner takes."""

    @abstractmethod
    def of(self, rate: float, staleness: int, distance_squared: float, *, relative_time: float = 1.0) -> float:
        """Return η for a gradient that came with the learner's ``rate``, taken ``staleness`` updates and so far from
        here.

        relative_time: the learner's time between two uses over the mean of all learners' times. Rules without
        ``needs_times`` are called without it, and need not take it.
        """


@dataclass(frozen=True, kw_only=True)
class StalenessRate(Rate):
    """η_j = min(C/‖w_j − w_τ(j)‖², η_max): the farther the model has moved since, the smaller the step (Dutta et al.
    2018).

    c: C, larger = bolder; the paper takes 0.005 η_max.
    maximum: η_max; None: the learner's own learning rate, so that its schedule goes on working.
    """

    needs_distance: ClassVar[bool] = True

    c: float
    maximum: float | None = None

    def __post_init__(self) -> None:
        require(self.c > 0, f"c={self.c} must be positive; the paper takes 0.005 times the learning rate.")
        require(
            self.maximum is None or self.maximum > 0,
            f"maximum={self.maximum} must be positive; None takes the learner's learning rate.",
        )

    def of(self, rate: float, staleness: int, distance_squared: float, *, relative_time: float = 1.0) -> float:
        maximum = rate if self.maximum is None else self.maximum
        return min(self.c / distance_squared, maximum) if distance_squared > 0 else maximum


@dataclass(frozen=True, kw_only=True)
class InverseStaleness(Rate):
    """η/(1 + staleness), whatever the distance: the rival of Zhang et al. (2016)."""

    def of(self, rate: float, staleness: int, distance_squared: float, *, relative_time: float = 1.0) -> float:
        return rate / (1 + staleness)


@dataclass(frozen=True, kw_only=True)
class RescaledRate(Rate):
    """η_i = η τ_i / mean_j τ_j: the longer a learner takes, the larger its steps (Rescaled ASGD, Mahran et al., arXiv
    2605.13434).

    τ_i is the mean number of updates between two uses of learner i's gradients, measured by the server. Over a cycle
    every learner then has the same total learning rate, so that on split data the model is trained for the mean of all
    learners' losses, whatever their speeds. The mean of η_i over learners is η. No step is larger than P η.
    """

    needs_times: ClassVar[bool] = True

    def of(self, rate: float, staleness: int, distance_squared: float, *, relative_time: float = 1.0) -> float:
        return rate * relative_time
