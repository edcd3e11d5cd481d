"""Asynchronous local SGD on a server: learners take H steps of their own and push the change of their model.

    learner i    x_i ← w_τ;  H times x_i ← x_i − γ g_i(x_i);  push Δ_i = w_τ − x_i, continue at the current w
    server       Δ ← (1/K) Σ s(staleness) Δ_i over K pushes;  w ← w − u(Δ)

FedBuff (Nguyen et al., AISTATS 2022, arXiv 2106.06639) is K > 1 with u(Δ) = η Δ; Liu et al. (arXiv 2401.09135) take
K = 1 and ``DelayedNesterov``. s is ``rate`` divided by the learner's rate; without ``rate`` it is 1. Weights are the
samples of the local steps.

No learner waits for another, and a push costs as much as one gradient. Learners keep the state of their optimizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacit.core.weights import SKIPPED_WEIGHT, has_data
from tacit.core.worker import Server, Worker
from tacit.strategies.local_sgd.outer import Outer
from tacit.strategies.servers.learner import Learner, LearnerState
from tacit.strategies.servers.messages import Pushed
from tacit.strategies.servers.parts.server_state import ServerState
from tacit.strategies.servers.server import ParameterServer

if TYPE_CHECKING:
    from tacit.strategies.servers.kinds import KBatchAsync


class LocalLearner(Learner):
    """A learner that pushes the change of its model after several steps."""

    def __init__(self, strategy: KBatchAsync, worker: Worker, state: LearnerState) -> None:
        super().__init__(strategy, worker, state)
        self._steps = strategy.local_steps

    def before_step(self) -> None:
        worker, state = self._worker, self._state
        if self.is_done:
            worker.skip_update()
            return
        if state.local_steps == 0:
            state.base, state.local_weight = worker.parameters.clone(), 0.0
        if has_data(worker.weight):
            state.local_weight += worker.weight

    def after_step(self) -> None:
        worker, state = self._worker, self._state
        if self.is_done or state.base is None:
            return
        state.local_steps += 1
        if state.local_steps < self._steps:
            return
        # Steps without data leave the model as it is; the push tells the server so and fetches its model.
        state.local_weight = state.local_weight / self._steps or SKIPPED_WEIGHT
        self.push(change=state.base.sub_(worker.parameters))


class ChangeServer(ParameterServer):
    """A parameter server whose updates are steps of an outer optimizer."""

    def __init__(self, strategy: KBatchAsync, server: Server, state: ServerState, outer: Outer | None) -> None:
        super().__init__(strategy, server, state)
        self._outer = outer

    def _apply(self, batch: list[Pushed]) -> None:
        delta, mean_rate = self._average(batch)  # Σ w η Δ / Σ w η and the mean η
        total = sum(push.weight for _, push in batch)
        own_rate = sum(push.weight * push.rate for _, push in batch) / total
        if own_rate:
            delta = delta.mul_(mean_rate / own_rate)
        step = delta if self._outer is None else self._outer.step(self._state.outer, delta, own_rate)
        self._server.update(step, uses_optimizer=False)
