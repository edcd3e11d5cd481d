"""An overlapped round of LocalSGD whose mean replaces local models in part: x_i ← a x_i + (1 − a) r'.

With a = 0 the steps taken during the round are dropped; with a = 1 the mean has no effect. Douillard et al., arXiv
2501.18512, use a = 1/2. The other overlapped rounds keep these steps whole: x_i ← x_i + r' − s_i.
"""

from __future__ import annotations

from torch import Tensor

from tacit.core.worker import Worker
from tacit.strategies.local_sgd.dense_rounds import OverlappedRound
from tacit.strategies.local_sgd.round_report import RoundReport
from tacit.strategies.local_sgd.state import LocalSGDState


class MixedRound(OverlappedRound):
    """All-reduce a snapshot of the models while training continues; mix the common model into the local one."""

    def __init__(self, worker: Worker, state: LocalSGDState, report: RoundReport, mix: float) -> None:
        super().__init__(worker, state, report)
        self._mix = mix

    def put(self, model: Tensor) -> None:
        # Without data since the start, at the end of a run, the local model is no newer than the mean: ranks take r'.
        self.state.interval.weight += self.worker.take_observed().weight
        share = self._mix if self.state.interval.weight > 0 else 0.0
        self._parameters.lerp_(model, 1.0 - share)
        self.state.pending = None
