"""The rounds of one LocalSGD: dense, overlapped or compressed, each with ``start`` → ``wait`` → ``put``.

    DenseRound        x̄ = Σ_j w_j x_j / Σ_j w_j in one all-reduce;  x_i ← r'
    OverlappedRound   the same of a snapshot s_i, while the next steps run;  x_i ← x_i + r' − s_i when the mean is there
    MixedRound        as OverlappedRound;  x_i ← a x_i + (1 − a) r'
    CompressedRound   x̄ = r + decoded mean of C(x_i − r), through the feedback that gradients use;  x_i ← r'

r is the last common model and r' the next one: x̄ itself, or the outer optimizer's step towards it. The statistics of
``RoundReport`` travel in the same messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.compression.compressor import Compressor
from tacit.compression.feedback import ErrorFeedback
from tacit.compression.feedback.feedback import Feedback
from tacit.compression.feedback.state import FeedbackState
from tacit.core.specs import spell
from tacit.core.worker import Worker
from tacit.errors import require
from tacit.strategies.aggregation import Aggregate
from tacit.strategies.compressed_all_reduce import CompressedAllReduce
from tacit.strategies.local_sgd.compressed_round import CompressedRound
from tacit.strategies.local_sgd.dense_rounds import DenseRound, OverlappedRound
from tacit.strategies.local_sgd.mixed_round import MixedRound
from tacit.strategies.local_sgd.model_round import ModelRound
from tacit.strategies.local_sgd.outer import Outer
from tacit.strategies.local_sgd.periods import Period
from tacit.strategies.local_sgd.round_report import RoundReport
from tacit.strategies.local_sgd.state import LocalSGDState
from tacit.strategies.local_sgd.timed_round import TimedRound


@dataclass(frozen=True)
class Rounds:
    """Makes the rounds of one ``LocalSGD``."""

    report: RoundReport
    changes: CompressedAllReduce | None  # of compressed rounds
    needs_variance: bool
    are_alike: bool  # whether ranks that take equal steps do the same in a round
    mix: float | None = None  # share of the local model where an overlapped round ends

    @classmethod
    def of(
        cls,
        period: Period,
        outer: Outer | None,
        compressor: Compressor | None,
        feedback: Feedback | None,
        aggregate: Aggregate,
        overlap_steps: int,
        mix: float | None,
    ) -> Rounds:
        """Return the rounds for these parts of a strategy, or raise where they do not fit together.

        The default is error feedback: changes of models are as noisy as the batches behind them and grow with the
        period. That disturbs an accumulated error less than the estimates of EF21.
        """
        for name, value, default in (("feedback", feedback, None), ("aggregate", aggregate, "auto")):
            needs = f"{name}={spell(value)} needs a compressor; add compressor=…, or leave out {name}."
            require(compressor is not None or value == default, needs)
        changes = None
        if compressor is not None:
            changes = CompressedAllReduce(compressor, ErrorFeedback() if feedback is None else feedback, aggregate)
        report = RoundReport.of(
            rate=period.needs_rate or (outer is not None and outer.needs_rate),
            loss=period.needs_loss,
            squared_distance=period.needs_variance and changes is None,
            times=period.reads_time,
        )
        clash = f"overlap_steps={overlap_steps} must be 0 with a compressor; leave out one of the two."
        require(compressor is None or overlap_steps == 0, clash)
        is_share = mix is None or 0 <= mix < 1
        require(is_share, f"mix={mix} must be at least 0 and below 1, the share of the local model; 1 takes no mean.")
        lacks_steps = f"mix={mix} needs overlap_steps above 0: without steps during a round there is nothing to keep."
        require(mix is None or overlap_steps > 0, lacks_steps)
        reads_own_numbers = period.needs_loss or period.needs_variance or period.reads_time
        are_alike = compressor is None and outer is None and overlap_steps == 0 and not reads_own_numbers
        return cls(report, changes, period.needs_variance, are_alike, mix)

    def new(self, worker: Worker, state: LocalSGDState, *, overlaps: bool) -> ModelRound:
        """Return a round to start."""
        if self.changes is not None:
            return self._timed(CompressedRound(worker, state, self.report, self.changes, self.needs_variance))
        return self.pending(worker, state) if overlaps else self._timed(DenseRound(worker, state, self.report))

    def pending(self, worker: Worker, state: LocalSGDState) -> ModelRound:
        """Return an overlapped round, to start or to wait for."""
        if self.mix is not None:
            return self._timed(MixedRound(worker, state, self.report, self.mix))
        return self._timed(OverlappedRound(worker, state, self.report))

    def _timed(self, made: ModelRound) -> ModelRound:
        return TimedRound(made) if self.report.times else made

    def init_feedback(self, worker: Worker) -> FeedbackState | None:
        """Return the state of the feedback before the first round; None where rounds are not compressed."""
        return None if self.changes is None else self.changes.begin(worker)

    def regrouped(self, worker: Worker, state: LocalSGDState, members: Sequence[int]) -> None:
        """Adapt the feedback of compressed rounds to other members; all else is equal on all, or each one's own."""
        if self.changes is not None and state.feedback is not None:
            self.changes.regrouped(worker, state.feedback, members)

    def merged_feedback(self, states: Sequence[FeedbackState | None], rank: int, size: int) -> FeedbackState | None:
        """Return the state of the feedback of ``rank`` when a run resumes with ``size`` workers."""
        present = [state for state in states if state is not None]
        return self.changes.feedback.merged(present, rank, size) if self.changes is not None and present else None
