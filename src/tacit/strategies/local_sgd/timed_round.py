"""A round of LocalSGD that measures itself, for period rules that read time."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tacit.strategies.local_sgd.model_round import ModelRound, RoundResult
from tacit.strategies.local_sgd.rank_times import RankTimes


class TimedRound(ModelRound):
    """Another round, whose time in ``start`` and from ``wait`` to ``put`` the state's clock adds up.

    The time between ``start`` and ``wait`` is that of the steps which an overlapped round does not delay.
    """

    def __init__(self, inner: ModelRound) -> None:
        super().__init__(inner.worker, inner.state, inner.report)
        self._inner, self.overlaps = inner, inner.overlaps

    def start(self, statistics: Mapping[str, float], weight: float) -> None:
        worker, clock = self.worker, self.state.clock
        start_s = worker.now_s()
        times = clock.begin(start_s, worker.step)
        self._inner.times = times if weight > 0 else RankTimes()
        self._inner.start(statistics, weight)
        clock.spent_s = worker.now_s() - start_s

    def wait(self) -> RoundResult:
        self._waiting_s = self.worker.now_s()
        return self._inner.wait()

    def put(self, model: Tensor) -> None:
        self._inner.put(model)
        self.state.clock.spent_s += self.worker.now_s() - self._waiting_s
