"""Rounds of LocalSGD whose models travel uncompressed: dense, and overlapped with the next steps.

The variance (1/n) Σ ‖x_i − x̄‖² is computed as mean‖x_i − r‖² − ‖x̄ − r‖²: raw norms would cancel in float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tacit.strategies.local_sgd.model_round import ModelRound, RoundResult
from tacit.strategies.local_sgd.rank_times import extremes, placed, rows_in


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

    overlaps = True

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
        worker, snapshot = self.worker, self.state.snapshot
        assert snapshot is not None
        is_unchanged = worker.step == self.state.last_round
        if not is_unchanged and worker.weight == 0:  # its data may have ended with the round's start
            is_unchanged = torch.equal(self._parameters, snapshot)
        if is_unchanged:  # no update since the snapshot: equal bits on all ranks
            self._parameters.copy_(model)
        else:
            self._parameters.add_(model.sub_(snapshot))
        self.state.pending = None


def _packed(current: ModelRound, parameters: Tensor, statistics: Mapping[str, float]) -> list[float]:
    """Return the report of a round whose models travel uncompressed."""
    if "squared_distance" in current.report.names:
        statistics = {**statistics, "squared_distance": _squared_distance(parameters, current.common)}
    numbers = current.report.pack(statistics)
    return (
        numbers + placed(current.times, current.worker.rank, current.worker.size) if current.report.times else numbers
    )


def _result(current: ModelRound, mean: Tensor, numbers: Tensor) -> RoundResult:
    """Return the result of a round whose models travel uncompressed."""
    received, width, variance = numbers.tolist(), len(current.report.names), None
    statistics = current.report.unpack(received[:width])
    if "squared_distance" in statistics:
        variance = max(0.0, statistics["squared_distance"] - _squared_distance(mean, current.common))
    return RoundResult(mean, statistics, variance, extremes(rows_in(received[width:])))


def _squared_distance(a: Tensor, b: Tensor) -> float:
    return float(torch.linalg.vector_norm(a - b, dtype=torch.float64) ** 2)
