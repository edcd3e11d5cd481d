"""What a gradient's age does to its learning rate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from tacit.errors import require
from tacit.specs import Spec


class Rate(Spec, ABC):
    """A rule for η of one gradient, given how old it is."""

    needs_distance: ClassVar[bool] = False
    """Whether the server must keep the models that learners hold."""

    @abstractmethod
    def of(self, rate: float, staleness: int, distance_squared: float) -> float:
        """Return η for a gradient that came with the learner's ``rate``, taken ``staleness`` updates and so far from here."""


@dataclass(frozen=True, kw_only=True)
class StalenessRate(Rate):
    """η_j = min(C/‖w_j − w_τ(j)‖², η_max): the farther the model has moved since, the smaller the step (Dutta et al. 2018).

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

    def of(self, rate: float, staleness: int, distance_squared: float) -> float:
        maximum = rate if self.maximum is None else self.maximum
        return min(self.c / distance_squared, maximum) if distance_squared > 0 else maximum


@dataclass(frozen=True, kw_only=True)
class InverseStaleness(Rate):
    """η/(1 + staleness), whatever the distance: the rival of Zhang et al. (2016)."""

    def of(self, rate: float, staleness: int, distance_squared: float) -> float:
        return rate / (1 + staleness)
