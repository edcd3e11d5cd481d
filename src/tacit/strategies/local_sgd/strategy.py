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

``periods`` and ``outer`` hold these rules. ``rounds`` holds the ways to compute x̄: dense, overlapped, compressed.
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
from tacit.strategies.local_sgd.interval import Interval
from tacit.strategies.local_sgd.model_round import ModelRound
from tacit.strategies.local_sgd.outer import Outer
from tacit.strategies.local_sgd.periods import UNTIL_THE_END, Every, Period, first_period, next_period
from tacit.strategies.local_sgd.round_report import check_period, period_on_wire
from tacit.strategies.local_sgd.rounds import Rounds
from tacit.strategies.local_sgd.state import LocalSGDState
from tacit.strategies.weights import Weights, check_weights, weigh


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Strategy[LocalSGDState], RunsAhead, MergesStates):
    """Train locally and average the models every ``period`` steps: LUPA-SGD, ADPSGD; with ``outer`` SlowMo, DiLoCo."""

    period: Period = field(default=Every(8), metadata=ALWAYS_SPELLED)
    outer: Outer | None = None  # None: the average itself
    warmup_steps: int = 0  # average after every one of the first steps (post-local SGD)
    overlap_steps: int = 0  # steps taken between the start and the end of a round
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
        parts = (self.period, self.outer, self.compressor, self.feedback, self.aggregate, self.overlap_steps)
        object.__setattr__(self, "_rounds", Rounds.of(*parts))

    def init(self, worker: Worker) -> LocalSGDState:
        keeps_common = self.period.needs_variance or self.outer is not None or self.compressor is not None
        common = worker.parameters.clone() if keeps_common else None
        steps = None if worker.steps is None else max(0, worker.steps - self.warmup_steps)
        state = LocalSGDState(first_period(self.period, steps), common, feedback=self._rounds.init_feedback(worker))
        state.due = self._next_due(state)
        self._note_period(worker, state)
        return state

    def hook_free_steps(self, worker: Worker, state: LocalSGDState) -> int:
        coming = state.due if state.pending is None else state.last_round + self.overlap_steps
        return max(0, coming - worker.step - 1)

    @property
    def ranks_act_alike(self) -> bool:
        return self._rounds.are_alike

    def after_step(self, worker: Worker, state: LocalSGDState) -> None:
        if state.pending is not None and worker.step >= state.last_round + self.overlap_steps:
            self._end(worker, state, self._rounds.pending(worker, state))
        if state.pending is None and worker.step >= state.due:
            self._start(worker, state, self._rounds.new(worker, state, overlaps=self.overlap_steps > 0))

    def finish(self, worker: Worker, state: LocalSGDState) -> None:
        if state.pending is not None:
            self._end(worker, state, self._rounds.pending(worker, state))
        if worker.step > state.last_round:
            self._start(worker, state, self._rounds.new(worker, state, overlaps=False))

    def reported(self, worker: Worker, state: LocalSGDState) -> Tensor | None:
        """Return r where a round does not end with the mean of the models; no worker ever has that mean then."""
        return None if self.compressor is None and self.outer is None else state.common

    def merged(self, states: Sequence[LocalSGDState], rank: int, size: int) -> LocalSGDState:
        """Drop a pending round: all workers start from the mean of the models, which it would not change."""
        feedback = self._rounds.merged_feedback([state.feedback for state in states], rank, size)
        return replace(states[rank % len(states)], pending=None, feedback=feedback)

    def _start(self, worker: Worker, state: LocalSGDState, current: ModelRound) -> None:
        """Start a round; end it at once unless it overlaps with the next steps."""
        interval, steps = state.interval, worker.step - state.last_round
        interval.observe(worker, self.period)
        statistics = {
            "period": period_on_wire(state.period.period),
            "rate": worker.learning_rate,  # a rank whose data has ended no longer follows the schedule
            "loss": interval.loss or 0.0,
            "has_loss": float(interval.loss is not None),
        }
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
        state.due = max(self._next_due(state), worker.step)  # an overlapped round may outlast the period
        self._note_period(worker, state)

    def _next_due(self, state: LocalSGDState) -> int:
        return state.last_round + (1 if state.last_round < self.warmup_steps else state.period.period)

    def _note_period(self, worker: Worker, state: LocalSGDState) -> None:
        if worker.rank == 0 and (worker.steps is None or state.last_round < worker.steps):
            coming = state.due - state.last_round
            worker.note("period", coming if coming < UNTIL_THE_END else (worker.steps or coming) - state.last_round)
