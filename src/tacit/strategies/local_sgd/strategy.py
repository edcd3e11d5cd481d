"""Local SGD: workers take local steps and average their models every τ steps.

    x_i ← x_i − γ g_i(x_i)              every step, on worker i alone
    x̄   ← Σ_j w_j x_j / Σ_j w_j         every τ steps, over all workers
    r   ← r − u(r − x̄)                  outer step; r ← x̄ without an outer optimizer
    x_i ← r,  τ ← rule(τ, round)        on all workers

Between rounds, models differ only by the noise of their own gradients, so few averagings serve as well as many.
    LUPA-SGD, CPSGD    period=Every(τ)                      Haddadpour et al., NeurIPS 2019, arXiv 1910.13598
    ADA-LUPA           period=LinearPeriod or LossPeriod    the same paper
    ADPSGD             period=VariancePeriod                Jiang & Agrawal, arXiv 2007.06134
    AdaComm            period=AdaCommPeriod                 Wang & Joshi, arXiv 1810.08313
    STL-SGD, QSR       period=RatePeriod                    Shen et al., arXiv 2006.06377; Gu et al., arXiv 2310.14423
    post-local SGD     warmup_steps                         Lin et al., arXiv 1808.07217
    SlowMo             outer=SlowMo                         Wang et al., arXiv 1910.00643
    DiLoCo             outer=OuterSGD                       Douillard et al., arXiv 2311.08105
    Streaming DiLoCo   fragments, overlap_steps, mix        Douillard et al., arXiv 2501.18512

``periods`` and ``outer`` hold these rules, ``rounds`` the ways to compute x̄; ``fragments`` runs hooks for each part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from tacit.compression.compressor import Compressor
from tacit.compression.feedback.feedback import Feedback
from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, RunsAhead, Strategy
from tacit.core.worker import Worker
from tacit.errors import require
from tacit.strategies.aggregation import Aggregate
from tacit.strategies.local_sgd.fragments import by_fragment, check_fragments, divided, merged_fragments
from tacit.strategies.local_sgd.interval import Interval
from tacit.strategies.local_sgd.model_round import ModelRound
from tacit.strategies.local_sgd.outer import Outer
from tacit.strategies.local_sgd.periods import Every, Period, next_period
from tacit.strategies.local_sgd.round_report import check_period, period_on_wire
from tacit.strategies.local_sgd.rounds import Rounds
from tacit.strategies.local_sgd.state import LocalSGDState, initial_state, note_period
from tacit.strategies.weights import Weights, check_weights, weigh


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Strategy[LocalSGDState], RunsAhead, MergesStates):
    """Train locally and average the models every ``period`` steps: LUPA-SGD, ADPSGD; with ``outer`` SlowMo, DiLoCo."""

    period: Period = field(default=Every(8), metadata=ALWAYS_SPELLED)
    outer: Outer | None = None  # None: the average itself
    warmup_steps: int = 0  # average after every one of the first steps (post-local SGD)
    overlap_steps: int = 0  # steps taken between the start and the end of a round
    mix: float | None = None  # share of the local model where an overlapped round ends; None: keep the steps since
    fragments: int = 1  # parts of the model, each averaged at its own offset in the period
    compressor: Compressor | None = None  # None: models are sent uncompressed
    feedback: Feedback | None = None  # None: ErrorFeedback(), where there is a compressor
    aggregate: Aggregate = "auto"  # of compressed updates: "gather", "scatter", or the one that sends less
    weights: Weights = "size"  # of ranks in a round: by samples since the last one, or "equal"
    _rounds: Rounds = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        wrong = f"period={self.period!r} must be a period; for a fixed number of steps write Every({self.period!r})."
        require(isinstance(self.period, Period), wrong)
        for name, steps in (("warmup_steps", self.warmup_steps), ("overlap_steps", self.overlap_steps)):
            require(steps >= 0, f"{name}={steps} must not be negative; 0 is the default.")
        check_weights(self.weights)
        parts = (self.period, self.outer, self.compressor, self.feedback, self.aggregate, self.overlap_steps, self.mix)
        object.__setattr__(self, "_rounds", Rounds.of(*parts))
        check_fragments(self.fragments, self.period, self.compressor, self.warmup_steps)

    def init(self, worker: Worker) -> LocalSGDState:
        return self._init(worker) if self.fragments == 1 else divided(worker, self.fragments, self.period, self._init)

    def _init(self, worker: Worker) -> LocalSGDState:
        """Return the state of rounds of all parameters of ``worker``."""
        keeps_common = self.period.needs_variance or self.outer is not None or self.compressor is not None
        feedback = self._rounds.init_feedback(worker)
        return initial_state(worker, self.period, self.warmup_steps, feedback, keeps_common=keeps_common)

    def hook_free_steps(self, worker: Worker, state: LocalSGDState) -> int:
        if state.fragments:
            return min(self.hook_free_steps(worker, fragment.rounds) for fragment in state.fragments)
        coming = state.due if state.pending is None else state.last_round + self.overlap_steps
        return max(0, coming - worker.step - 1)

    @property
    def ranks_act_alike(self) -> bool:
        return self._rounds.are_alike and self.fragments == 1

    @by_fragment
    def after_step(self, worker: Worker, state: LocalSGDState) -> None:
        if state.pending is not None and worker.step >= state.last_round + self.overlap_steps:
            self._end(worker, state, self._rounds.pending(worker, state))
        if state.pending is None and worker.step >= state.due:
            self._start(worker, state, self._rounds.new(worker, state, overlaps=self.overlap_steps > 0))

    @by_fragment
    def finish(self, worker: Worker, state: LocalSGDState) -> None:
        if state.pending is not None:
            self._end(worker, state, self._rounds.pending(worker, state))
        if worker.step > state.last_round:
            self._start(worker, state, self._rounds.new(worker, state, overlaps=False))

    def reported(self, worker: Worker, state: LocalSGDState) -> Tensor | None:
        """Return r where a round does not end with the mean of the models, which no worker ever has then."""
        return None if self.compressor is None and self.outer is None else state.common_model

    def regrouped(self, worker: Worker, state: LocalSGDState, members: Sequence[int]) -> None:
        self._rounds.regrouped(worker, state, members)

    def merged(self, states: Sequence[LocalSGDState], rank: int, size: int) -> LocalSGDState:
        """Drop a pending round: all workers start from the mean of the models, which it would not change."""
        feedback = self._rounds.merged_feedback([state.feedback for state in states], rank, size)
        fragments = merged_fragments(states, rank, lambda rounds: self.merged(rounds, rank, size))
        return replace(states[rank % len(states)], pending=None, feedback=feedback, fragments=fragments)

    def _start(self, worker: Worker, state: LocalSGDState, current: ModelRound) -> None:
        """Start a round; end it at once unless it overlaps with the next steps."""
        interval, steps = state.interval, worker.step - state.last_round
        interval.observe(worker, self.period)
        # A rank whose data has ended no longer follows the schedule: the rate travels.
        statistics = interval.statistics(period_on_wire(state.period.period), worker.learning_rate)
        weight = weigh(self.weights, interval.weight / steps)  # equal batches weigh 1.0, exactly
        state.last_round = worker.step
        state.interval = Interval(is_averaged=interval.is_averaged or not current.overlaps)
        current.start(statistics, weight)
        if not current.overlaps:
            self._end(worker, state, current)

    def _end(self, worker: Worker, state: LocalSGDState, current: ModelRound) -> None:
        """Wait for the mean, apply the outer step, put the model, update the period."""
        result = current.wait()
        mean, statistics = result.mean, result.statistics
        if current.overlaps and self.period.needs_loss:
            state.interval.observe(worker, self.period)
            state.interval.is_averaged = True
        check_period(worker, state.period.period, statistics["period"])
        rate = statistics.get("rate", worker.learning_rate)
        model = mean if self.outer is None else self.outer.apply(state.outer, current.common, mean, rate)
        if state.common is not None:
            state.common.copy_(model)
        current.put(model)
        if state.last_round > self.warmup_steps:  # the variance of the warm-up would mislead the rule
            step = state.last_round - self.warmup_steps
            next_period(self.period, state.period, result.reduced(state.rounds, step, rate))
            state.rounds += 1
        state.due = max(state.next_due(self.warmup_steps), worker.step)  # an overlapped round may outlast the period
        note_period(worker, state)
