"""Base class of the three ways to average the models in a round of LocalSGD: ``start`` → ``wait`` → ``put``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from tacit.core.worker import Worker
from tacit.strategies.local_sgd.periods import Round
from tacit.strategies.local_sgd.rank_times import RankTimes
from tacit.strategies.local_sgd.round_report import RoundReport, mean_loss
from tacit.strategies.local_sgd.state import LocalSGDState


class RoundResult(NamedTuple):
    """What all ranks know when a round ends."""

    mean: Tensor  # x̄; a tensor that the round owns, or the worker's parameters themselves
    statistics: dict[str, float]  # their means over ranks
    variance: float | None  # (1/n) Σ ‖x_i − x̄‖² before the round; None where the period rule does not need it
    times: RankTimes  # their extremes over ranks

    def reduced(self, index: int, step: int, rate: float) -> Round:
        """Return what the period rule is told."""
        return Round(index, step, rate, self.variance, mean_loss(self.statistics), *self.times)


class ModelRound(ABC):
    """One averaging of the models. Made for one round of one worker; what must outlast a hook is in the state."""

    overlaps: bool = False
    """Whether steps are taken between ``start`` and ``wait``."""

    times = RankTimes()
    """This rank's times, which travel where the report says so. Set before ``start``."""

    def __init__(self, worker: Worker, state: LocalSGDState, report: RoundReport) -> None:
        self.worker, self.state, self.report = worker, state, report

    @abstractmethod
    def start(self, statistics: Mapping[str, float], weight: float) -> None:
        """Take this rank's model as it is now, with its statistics and its weight in the means."""

    @abstractmethod
    def wait(self) -> RoundResult:
        """Return the means over all ranks, as soon as they are there."""

    @abstractmethod
    def put(self, model: Tensor) -> None:
        """Write the next common model into the worker's parameters. ``model`` may be overwritten."""

    @property
    def common(self) -> Tensor:
        """The last common model r."""
        assert self.state.common is not None
        return self.state.common
