"""Three ways to average the models in a round of LocalSGD: ``start`` → ``wait`` → ``put``.

    DenseRound        x̄ = Σ_j w_j x_j / Σ_j w_j in one all-reduce;  x_i ← r'
    OverlappedRound   the same of a snapshot s_i, while the next steps run;  x_i ← x_i + r' − s_i when the mean is there
    CompressedRound   x̄ = r + decoded mean of C(x_i − r), through the feedback that gradients use;  x_i ← r'

r is the last common model and r' the next one: x̄ itself, or the outer optimizer's step towards it. The statistics of
``RoundReport`` travel in the same messages.

The variance (1/n) Σ ‖x_i − x̄‖² is mean‖x_i − r‖² − ‖x̄ − r‖² in a dense round: raw norms would cancel in float32. In a
compressed round this difference would count what compression left out as variance; sketches of the models estimate it
instead (``variance_sketch``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tacit.compression.compressor import Compressor
from tacit.compression.feedback import ErrorFeedback
from tacit.compression.feedback.feedback import Feedback
from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.updates import statistics_of, weighted_mean
from tacit.core.worker import Worker
from tacit.strategies.compressed_all_reduce import Aggregate, CompressedAllReduce
from tacit.strategies.local_sgd.outer import Outer
from tacit.strategies.local_sgd.periods import Period
from tacit.strategies.local_sgd.round_report import RoundReport
from tacit.strategies.local_sgd.state import LocalSGDState
from tacit.strategies.local_sgd.variance_sketch import sketch, variance_of


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


class DenseRound(ModelRound):
    """All-reduce models and statistics as one buffer, and wait for it: ``wait`` communicates, not ``start``."""

    def start(self, statistics: Mapping[str, float], weight: float) -> None:
        self._parameters, self._weight = self.worker.parameters, weight
        self._numbers = _packed(self, self._parameters, statistics)

    def wait(self) -> RoundResult:
        parameters = self._parameters
        sent = (parameters, self._numbers)
        numbers = self.worker.network.all_reduce_mean(sent, self._weight, into=parameters)
        return _result(self, parameters, numbers)

    def put(self, model: Tensor) -> None:
        if model is not self._parameters:  # the all-reduce wrote the mean there
            self._parameters.copy_(model)


class OverlappedRound(ModelRound):
    """All-reduce a snapshot of the models while training continues. The state holds the round until it ends."""

    overlaps: ClassVar[bool] = True

    def start(self, statistics: Mapping[str, float], weight: float) -> None:
        state, parameters = self.state, self.worker.parameters
        numbers = _packed(self, parameters, statistics)
        state.snapshot = torch.empty_like(parameters) if state.snapshot is None else state.snapshot
        state.snapshot.copy_(parameters)
        state.pending = self.worker.network.start_all_reduce_mean((parameters, numbers), weight)

    def wait(self) -> RoundResult:
        assert self.state.pending is not None
        received = self.state.pending.wait()
        self._parameters = self.worker.parameters
        length = self._parameters.numel()
        return _result(self, received[:length], received[length:])

    def put(self, model: Tensor) -> None:
        assert self.state.snapshot is not None
        self._parameters.add_(model.sub_(self.state.snapshot))
        self.state.pending = None


class CompressedRound(ModelRound):
    """All-reduce compressed changes of the models since the last round. ``wait`` communicates, not ``start``.

    Buffers and moments of an attached model, where there are any, are averaged in an exchange of their own.
    """

    def __init__(
        self,
        worker: Worker,
        state: LocalSGDState,
        report: RoundReport,
        changes: CompressedAllReduce,
        needs_variance: bool,
    ) -> None:
        super().__init__(worker, state, report)
        self._changes, self._needs_variance = changes, needs_variance

    def start(self, statistics: Mapping[str, float], weight: float) -> None:
        self._parameters, self._weight = self.worker.parameters, weight
        self._change = self._parameters - self.common
        self._numbers = self.report.pack(statistics, self._parameters)
        if self._needs_variance:
            self._numbers = torch.cat([self._numbers, sketch(self._change, self.worker.shared_random)])

    def wait(self) -> RoundResult:
        worker, state, numbers = self.worker, self.state, self._numbers
        assert state.feedback is not None
        mean, updates = self._changes.all_reduce(
            worker, state.feedback, self._change, self._weight, 1.0, "change", numbers
        )
        rows, weights = statistics_of(updates, numbers), [update.weight for update in updates]
        width = len(self.report.names)  # sketches stand behind the report
        variance = variance_of(list(rows[:, width:]), weights) if self._needs_variance else None
        worker.average_extra_state(self._weight)
        means = weighted_mean(rows[:, :width], weights, worker.rank)
        return RoundResult(self.common + mean, self.report.unpack(means), variance)

    def put(self, model: Tensor) -> None:
        self._parameters.copy_(model)


@dataclass(frozen=True)
class Rounds:
    """Makes the rounds of one ``LocalSGD``."""

    report: RoundReport
    changes: CompressedAllReduce | None  # of compressed rounds
    needs_variance: bool

    @classmethod
    def of(
        cls,
        period: Period,
        outer: Outer | None,
        compressor: Compressor | None,
        feedback: Feedback | None,
        aggregate: Aggregate,
    ) -> Rounds:
        """Return the rounds for these parts of a strategy, or raise where they do not fit together.

        The default is error feedback: changes of models are as noisy as the batches behind them and grow with the
        period. That disturbs an accumulated error less than the estimates of EF21.
        """
        changes = None
        if compressor is not None:
            changes = CompressedAllReduce(compressor, ErrorFeedback() if feedback is None else feedback, aggregate)
        report = RoundReport.of(
            rate=period.needs_rate or (outer is not None and outer.needs_rate),
            loss=period.needs_loss,
            squared_distance=period.needs_variance and changes is None,
        )
        return cls(report, changes, period.needs_variance)

    def new(self, worker: Worker, state: LocalSGDState, *, overlaps: bool) -> ModelRound:
        """Return a round to start."""
        if self.changes is not None:
            return CompressedRound(worker, state, self.report, self.changes, self.needs_variance)
        return OverlappedRound(worker, state, self.report) if overlaps else DenseRound(worker, state, self.report)

    def pending(self, worker: Worker, state: LocalSGDState) -> ModelRound:
        """Return the round that ``state`` holds, to wait for."""
        return OverlappedRound(worker, state, self.report)

    def init_feedback(self, worker: Worker) -> FeedbackState | None:
        """Return the state of the feedback before the first round; None where rounds are not compressed."""
        return None if self.changes is None else self.changes.begin(worker)

    def merged_feedback(self, states: Sequence[FeedbackState | None], rank: int, size: int) -> FeedbackState | None:
        """Return the state of the feedback of ``rank`` when a run resumes with ``size`` workers."""
        present = [state for state in states if state is not None]
        return self.changes.feedback.merged(present, rank, size) if self.changes is not None and present else None


def _packed(current: ModelRound, parameters: Tensor, statistics: Mapping[str, float]) -> Tensor:
    """Return the report of a round whose models travel uncompressed."""
    if "squared_distance" in current.report.names:
        statistics = {**statistics, "squared_distance": _squared_distance(parameters, current.common)}
    return current.report.pack(statistics, parameters)


def _result(current: ModelRound, mean: Tensor, numbers: Tensor) -> RoundResult:
    """Return the result of a round whose models travel uncompressed."""
    statistics, variance = current.report.unpack(numbers.tolist()), None
    if "squared_distance" in statistics:
        variance = max(0.0, statistics["squared_distance"] - _squared_distance(mean, current.common))
    return RoundResult(mean, statistics, variance)


def _squared_distance(a: Tensor, b: Tensor) -> float:
    return float(torch.linalg.vector_norm(a - b, dtype=torch.float64) ** 2)
