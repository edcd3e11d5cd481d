"""Base class of the three ways to average the models in a round of LocalSGD: ``start`` → ``wait`` → ``put``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from torch import Tensor

from tacit.core.worker import Worker
from tacit.strategies.local_sgd.round_report import RoundReport
from tacit.strategies.local_sgd.state import LocalSGDState


class RoundResult(NamedTuple):
    """What all ranks know when a round ends."""

    mean: Tensor  # x̄; a tensor that the round owns, or the worker's parameters themselves
    statistics: dict[str, float]  # their means over ranks
    variance: float | None  # (1/n) Σ ‖x_i − x̄‖² before the round; None where the period rule does not need it


class ModelRound(ABC):
    """One averaging of the models. Made for one round of one worker; what must outlast a hook is in the state."""

    overlaps: ClassVar[bool] = False
    """Whether steps are taken between ``start`` and ``wait``."""

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
