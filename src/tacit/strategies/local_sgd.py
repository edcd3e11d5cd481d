"""Local SGD with periodic averaging: workers train alone and average their models now and then.

    x_i ← x_i − γ g_i            every step
    x_i ← Σ_j w_j x_j / Σ_j w_j   every τ steps, τ from a period rule

LUPA-SGD and ADA-LUPA (Haddadpour et al., NeurIPS 2019, arXiv 1910.13598), CPSGD and ADPSGD (Jiang & Agrawal, arXiv 2007.06134), post-local SGD
(Lin et al., arXiv 1808.07217) and, with an outer optimizer, SlowMo and DiLoCo are all this file with another period or outer rule.

With ``overlap_steps`` the round that starts at step t travels while training goes on: the snapshot s of step t is averaged, and x += x̄ − s at step
t + overlap_steps. Why it works: between rounds workers drift apart only by their own noise, so the mean of a few steps serves as well as one of each.

With a ``compressor`` a round says C(…) of x_i − r, the change since the last common model r, through the same feedback as gradients:
    x_i ← r + what all understood of Σ_j w_j (x_j − r) / Σ_j w_j
It takes two exchanges: the compressed changes, then a small all-reduce of what the period rule must know (and of buffers, which ride there).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from tacit.compression.compressor import Compressor
from tacit.errors import Disagreement, MisplacedCall, require
from tacit.feedback import ErrorFeedback
from tacit.feedback.feedback import Feedback, FeedbackState
from tacit.network import Pending
from tacit.outer import Outer, OuterState
from tacit.periods import UNTIL_THE_END, Every, Period, PeriodState, Round
from tacit.specs import ALWAYS_SPELLED
from tacit.strategies.compressed_mean import begin, check, compressed_mean
from tacit.strategies.strategy import Strategy
from tacit.worker import Worker

_CHECK: Final = 64
"""The period travels modulo this as a check: small whole numbers survive a float32 sum exactly."""


@dataclass
class LocalSGDState:
    """The period's state, the last common model r where somebody needs it, and the round under way."""

    period: PeriodState
    common: Tensor | None
    last_round: int = 0  # the step whose end began the latest round
    due: int = 0  # the step whose end begins the next one
    rounds: int = 0  # after the warm-up
    outer: OuterState = field(default_factory=dict)
    pending: Pending | None = None
    snapshot: Tensor | None = None  # s, where rounds overlap: what the round under way averages
    feedback: FeedbackState | None = None  # where rounds are compressed


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Strategy[LocalSGDState]):
    """Train locally and average the models every ``period`` steps (LUPA-SGD, ADA-LUPA, CPSGD, ADPSGD; with ``outer`` SlowMo, DiLoCo)."""

    period: Period = field(default=Every(8), metadata=ALWAYS_SPELLED)
    outer: Outer | None = None  # None: the average itself
    warmup_steps: int = 0  # average after every one of the first steps (post-local SGD)
    overlap_steps: int = 0  # steps taken while a round is under way
    compressor: Compressor | None = None  # None: models travel as they are
    feedback: Feedback | None = None  # None: ErrorFeedback(), where there is a compressor

    def __post_init__(self) -> None:
        require(
            isinstance(self.period, Period),
            f"period={self.period!r} must be a period; for a fixed number of steps write Every({self.period!r}).",
        )
        require(self.warmup_steps >= 0, f"warmup_steps={self.warmup_steps} must not be negative.")
        require(
            self.overlap_steps >= 0, f"overlap_steps={self.overlap_steps} must not be negative; 0 waits for rounds."
        )
        if self.compressor is None:
            require(self.feedback is None, f"feedback={self.feedback} needs a compressor=… whose losses it makes good.")
            return
        check(self.compressor, self._feedback)
        require(
            self.overlap_steps == 0,
            f"overlap_steps={self.overlap_steps} cannot go with a compressor: compressed rounds are waited for; leave out one of the two.",
        )

    def init(self, worker: Worker) -> LocalSGDState:
        keeps_common = self.period.needs_variance or self.outer is not None or self.compressor is not None
        common = worker.parameters.clone() if keeps_common else None
        steps = None if worker.steps is None else max(0, worker.steps - self.warmup_steps)
        state = LocalSGDState(self.period.init(steps), common)
        if self.compressor is not None:
            state.feedback = begin(worker, self.compressor, self._feedback)
        state.due = self._next_due(state)
        self._note_period(worker, state)
        return state

    def quiet_steps(self, worker: Worker, state: LocalSGDState) -> int:
        coming = state.due if state.pending is None else state.last_round + self.overlap_steps
        return max(0, coming - worker.step - 1)

    def after_step(self, worker: Worker, state: LocalSGDState) -> None:
        if state.pending is not None and worker.step >= state.last_round + self.overlap_steps:
            self._end_round(worker, state, state.pending.wait())
        if state.pending is None and worker.step >= state.due:
            self._begin_round(worker, state)

    def finish(self, worker: Worker, state: LocalSGDState) -> None:
        if state.pending is not None:
            self._end_round(worker, state, state.pending.wait())
        if worker.step > state.last_round:
            self._begin_round(worker, state, overlap=False)

    def merged(self, states: Sequence[LocalSGDState], rank: int, size: int) -> LocalSGDState:
        """All start from the mean of their models, which a round under way would not change: it is forgotten."""
        remembered = [state.feedback for state in states if state.feedback is not None]
        feedback = self._feedback.merged(remembered, rank, size) if remembered else None
        return replace(states[rank % len(states)], pending=None, feedback=feedback)

    def _begin_round(self, worker: Worker, state: LocalSGDState, overlap: bool = True) -> None:
        """Send parameters and statistics as one buffer; wait for the mean unless it may overlap with the coming steps."""
        seen, steps, parameters = worker.take_observed(), worker.step - state.last_round, worker.parameters
        statistics = [float(state.period.period % _CHECK)]
        if self._needs_rate:
            statistics.append(worker.learning_rate)
        if self.period.needs_variance:
            assert state.common is not None
            statistics.append(_squared_distance(parameters, state.common))
        if self.period.needs_loss:
            if seen.loss is None and seen.weight > 0:
                raise MisplacedCall(
                    f"{self.period} needs the loss; call session.observe(loss) in the training loop, before optimizer.step()."
                )
            statistics += [seen.first_loss or 0.0, seen.loss or 0.0]
        sent = (parameters, parameters.new_tensor(statistics))
        weight = seen.weight / steps  # equal batches weigh 1.0, exactly
        state.last_round = worker.step
        if self.compressor is not None:
            self._end_round(worker, state, self._compressed(worker, state, self.compressor, sent, weight))
        elif overlap and self.overlap_steps:
            state.snapshot = torch.empty_like(parameters) if state.snapshot is None else state.snapshot
            state.snapshot.copy_(parameters)
            state.pending = worker.network.start_all_reduce_mean(sent, weight)
        else:
            self._end_round(worker, state, worker.network.all_reduce_mean(sent, weight))

    def _compressed(
        self, worker: Worker, state: LocalSGDState, compressor: Compressor, sent: tuple[Tensor, Tensor], weight: float
    ) -> Tensor:
        """Return what an all-reduce of ``sent`` would, the models' mean as r plus the mean of their changes as far as it was understood."""
        assert state.common is not None and state.feedback is not None
        parameters, statistics = sent
        change = compressed_mean(
            worker, state.feedback, compressor, self._feedback, parameters - state.common, weight, 1.0, "change"
        )
        return torch.cat([state.common + change, worker.network.all_reduce_mean(statistics, weight)])

    def _end_round(self, worker: Worker, state: LocalSGDState, received: Tensor) -> None:
        """Take over the mean (through the outer optimizer), then let the period rule see the round."""
        parameters = worker.parameters
        mean, statistics = received[: parameters.numel()], received[parameters.numel() :].tolist()
        self._check_agreement(worker, state, statistics[0])
        reduced = self._reduced(worker, state, mean, statistics)
        model = mean
        if self.outer is not None:
            assert state.common is not None
            model = self.outer.apply(state.outer, state.common, mean, reduced.learning_rate)
        if state.common is not None:
            state.common.copy_(model)
        if state.pending is None:
            parameters.copy_(model)
        else:
            assert state.snapshot is not None
            parameters.add_(model.sub_(state.snapshot))
        state.pending = None
        if (
            state.last_round > self.warmup_steps
        ):  # a period rule lives after the warm-up, whose variance would mislead it
            self.period.update(state.period, reduced)
            state.rounds += 1
        state.due = max(
            self._next_due(state), worker.step
        )  # a round that travelled longer than the period delays the next
        self._note_period(worker, state)

    def _reduced(self, worker: Worker, state: LocalSGDState, mean: Tensor, statistics: list[float]) -> Round:
        """What every rank now knows. The variance is mean‖w_i − r‖² − ‖w̄ − r‖²: raw norms would cancel in float32."""
        variance = first_loss = loss = None
        rate = statistics[1] if self._needs_rate else worker.learning_rate
        if self.period.needs_variance:
            assert state.common is not None
            variance = max(0.0, statistics[1 + self._needs_rate] - _squared_distance(mean, state.common))
        if self.period.needs_loss:
            first_loss, loss = statistics[-2:]
        return Round(state.rounds, state.last_round - self.warmup_steps, rate, variance, first_loss, loss)

    @property
    def _feedback(self) -> Feedback:
        """Changes of models are as noisy as the batches behind them, and grow with the period: EF14 minds neither, EF21 both."""
        return ErrorFeedback() if self.feedback is None else self.feedback

    @property
    def _needs_rate(self) -> bool:
        """Whether γ decides anything: it then travels too, because a rank whose data has ended no longer follows the schedule."""
        return self.period.needs_rate or (self.outer is not None and self.outer.needs_rate)

    def _check_agreement(self, worker: Worker, state: LocalSGDState, mean_period: float) -> None:
        if abs(mean_period - state.period.period % _CHECK) > 0.25 / worker.size:
            raise Disagreement("period", f"{state.period.period} (mod {_CHECK})", mean_period, worker.rank)

    def _next_due(self, state: LocalSGDState) -> int:
        return state.last_round + (1 if state.last_round < self.warmup_steps else state.period.period)

    def _note_period(self, worker: Worker, state: LocalSGDState) -> None:
        if worker.rank == 0 and (worker.steps is None or state.last_round < worker.steps):
            coming = state.due - state.last_round
            worker.note("period", coming if coming < UNTIL_THE_END else (worker.steps or coming) - state.last_round)


def _squared_distance(a: Tensor, b: Tensor) -> float:
    return float(torch.linalg.vector_norm(a - b, dtype=torch.float64) ** 2)
