"""A round of LocalSGD in which compressed changes of the models travel: x̄ = r + decoded mean of C(x_i − r).

The difference of norms that gives a dense round its variance would count the compression error as variance here.
Sketches of the models estimate the variance instead (``variance_sketch``).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tacit.compression.feedback.updates import statistics_of, weighted_mean
from tacit.core.worker import Worker
from tacit.strategies.compressed_all_reduce import CompressedAllReduce
from tacit.strategies.local_sgd.model_round import ModelRound, RoundResult
from tacit.strategies.local_sgd.rank_times import WIDTH, RankTimes, extremes, row_of
from tacit.strategies.local_sgd.round_report import RoundReport
from tacit.strategies.local_sgd.state import LocalSGDState
from tacit.strategies.local_sgd.variance_sketch import sketch, variance_of


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
        times = row_of(self.times) if self.report.times else ()
        self._numbers = self._parameters.new_tensor([*self.report.pack(statistics), *times])
        if self._needs_variance:
            self._numbers = torch.cat([self._numbers, sketch(self._change, self.worker.shared_random)])

    def wait(self) -> RoundResult:
        worker, state, numbers = self.worker, self.state, self._numbers
        assert state.feedback is not None
        mean, updates = self._changes.all_reduce_with_updates(
            worker, state.feedback, self._change, self._weight, 1.0, "change", numbers
        )
        rows, weights = statistics_of(updates, numbers), [update.weight for update in updates]
        width = len(self.report.names)  # times and sketches stand behind the report
        begin = width + WIDTH * self.report.times
        variance = variance_of(list(rows[:, begin:]), weights) if self._needs_variance else None
        worker.average_extra_state(self._weight)
        means = weighted_mean(rows[:, :width], weights, state.feedback.rank)
        times = extremes(rows[:, width:begin].tolist()) if self.report.times else RankTimes()
        return RoundResult(self.common + mean, self.report.unpack(means), variance, times)

    def put(self, model: Tensor) -> None:
        self._parameters.copy_(model)
