"""Rules for the learning rate of a gradient by its staleness or by its learner's speed, and their use in the server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tacit.core.specs import Spec
from tacit.core.worker import Server
from tacit.errors import require
from tacit.strategies.servers.messages import Pushed, ServerPush
from tacit.strategies.servers.parts.learner_speeds import UpdateIntervals
from tacit.strategies.servers.parts.server_state import ServerState


class Rate(Spec, ABC):
    """Base class of the rules for the learning rate η of one gradient."""

    needs_distance: ClassVar[bool] = False
    """Whether ``of`` needs ``distance_squared``, for which the server keeps the models that learners hold."""

    needs_times: ClassVar[bool] = False
    """Whether ``of`` takes ``relative_time=``, for which the server measures the learners' speeds."""

    @abstractmethod
    def of(self, rate: float, staleness: int, distance_squared: float, *, relative_time: float = 1.0) -> float:
        """Return η of a gradient.

        rate: the learner's learning rate. staleness: number of updates since the gradient's model. distance_squared:
        ‖w_j − w_τ‖² between the server's model and the gradient's model; 0 without ``needs_distance``. relative_time:
        the learner's mean time between two uses, divided by the mean over learners. Rules without ``needs_times`` are
        called without it and may omit the argument.
        """


@dataclass(frozen=True, kw_only=True)
class StalenessRate(Rate):
    """η_j = min(C/‖w_j − w_τ(j)‖², η_max): smaller steps the farther the model has moved (Dutta et al. 2018).

    c: C, larger = larger steps; the paper uses 0.005 η_max.
    maximum: η_max; None: the learner's learning rate, so that its schedule applies.
    """

    needs_distance: ClassVar[bool] = True

    c: float
    maximum: float | None = None

    def __post_init__(self) -> None:
        require(self.c > 0, f"c={self.c} must be positive; the paper uses 0.005 times the learning rate.")
        require(
            self.maximum is None or self.maximum > 0,
            f"maximum={self.maximum} must be positive; None uses the learner's learning rate.",
        )

    def of(self, rate: float, staleness: int, distance_squared: float, *, relative_time: float = 1.0) -> float:
        maximum = rate if self.maximum is None else self.maximum
        return min(self.c / distance_squared, maximum) if distance_squared > 0 else maximum


@dataclass(frozen=True, kw_only=True)
class InverseStaleness(Rate):
    """η/(1 + staleness)^power: smaller steps for older gradients (Zhang et al. 2016); FedBuff's power is 0.5."""

    power: float = 1.0

    def __post_init__(self) -> None:
        require(self.power > 0, f"power={self.power} must be positive; rate=None does not look at staleness.")

    def of(self, rate: float, staleness: int, distance_squared: float, *, relative_time: float = 1.0) -> float:
        return rate / float((1 + staleness) ** self.power)


@dataclass(frozen=True, kw_only=True)
class RescaledRate(Rate):
    """η_i = η τ_i / mean_j τ_j: larger steps for slower learners (Rescaled ASGD, Mahran et al., arXiv 2605.13434).

    τ_i is the mean number of updates between two uses of learner i's gradients, measured by the server. All learners
    then have the same total learning rate over time, so that on split data the model minimises the mean of all
    learners' losses at any speeds. The mean of η_i over learners is η. No step is larger than P η.
    """

    needs_times: ClassVar[bool] = True

    def of(self, rate: float, staleness: int, distance_squared: float, *, relative_time: float = 1.0) -> float:
        return rate * relative_time


class GradientRates:
    """Computes the learning rate of each gradient. Without a rule it is the learner's own."""

    def __init__(self, rule: Rate | None, server: Server, state: ServerState) -> None:
        self._rule, self._server, self._state = rule, server, state
        self._intervals = UpdateIntervals(state.memory) if rule is not None and rule.needs_times else None
        self._models: dict[int, Tensor] = {}  # by version: the models that learners hold, if the rule needs distances
        if self.keeps_models:
            self._models[state.version] = server.parameters.clone()

    @property
    def keeps_models(self) -> bool:
        """Whether the rule needs the distance to the models that learners hold."""
        return self._rule is not None and self._rule.needs_distance

    def rate(self, source: int, push: ServerPush, learners: Iterable[int]) -> float:
        """Return the learning rate of ``push``, a gradient of learner ``source``."""
        if self._rule is None:
            return push.rate
        staleness, distance_squared = self._state.version - push.version, self._distance_squared(push)
        if self._intervals is None:
            return self._rule.of(push.rate, staleness, distance_squared)
        relative_time = self._intervals.relative(source, learners)
        return self._rule.of(push.rate, staleness, distance_squared, relative_time=relative_time)

    def record_uses(self, batch: Sequence[Pushed]) -> None:
        """Record that the next update uses ``batch``."""
        if self._intervals is not None:
            for source, _ in batch:
                self._intervals.record(source, self._state.version + 1)

    def keep_model(self, version: int, model: Tensor) -> None:
        """Keep a model that a learner computes at, if ``keeps_models``."""
        self._models[version] = model

    def has_model(self, version: int) -> bool:
        """Return whether the distance to the model of ``version`` can be computed, if the rule needs it."""
        return not self.keeps_models or version == self._state.version or version in self._models

    def drop_models(self, held: Iterable[int], pending: Iterable[Pushed]) -> None:
        """Drop the models that no learner computes at and no pending gradient was computed at.

        The server keeps versions, not one copy per learner.
        """
        if self._models:
            wanted = {*held, *(push.version for _, push in pending), self._state.version}
            self._models = {version: model for version, model in self._models.items() if version in wanted}

    def _distance_squared(self, push: ServerPush) -> float:
        """Return ‖w_j − w_τ‖² between the model and the one that the gradient was computed at."""
        if not self.keeps_models or push.version == self._state.version:
            return 0.0
        return float((self._server.parameters - self._models[push.version]).square().sum())
