"""A strategy: average models along a ring."""

from __future__ import annotations

from dataclasses import dataclass, field

import tacit
from tacit import PeriodState, Round, TensorMessage, Worker


@dataclass
class RingState:
    """The current period, the step of the next round, and the number of rounds so far."""

    period: PeriodState
    due: int
    rounds: int = 0


@dataclass(frozen=True, kw_only=True)
class RingAverage(tacit.Strategy[RingState], tacit.RunsAhead):
    """After every period, average the own model with that of the previous rank on a ring."""

    period: tacit.Period = field(default_factory=lambda: tacit.Every(4))

    def init(self, worker: Worker) -> RingState:
        first = self.period.init(worker.steps)
        return RingState(first, due=first.period)

    def hook_free_steps(self, worker: Worker, state: RingState) -> int:
        return max(0, state.due - worker.step - 1)

    def after_step(self, worker: Worker, state: RingState) -> None:
        if worker.step < state.due:
            return
        if worker.size > 1:
            worker.network.send((worker.rank + 1) % worker.size, TensorMessage(worker.parameters))
            _, received = worker.network.receive(TensorMessage, source=(worker.rank - 1) % worker.size)
            worker.parameters.add_(received.tensor.to(worker.parameters.device)).div_(2)
        self.period.update(state.period, Round(state.rounds, worker.step, worker.learning_rate))
        state.rounds += 1
        state.due = worker.step + state.period.period

    def finish(self, worker: Worker, state: RingState) -> None:
        worker.parameters.copy_(worker.network.all_reduce_mean(worker.parameters))
