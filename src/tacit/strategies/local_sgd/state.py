"""The state of one worker in LocalSGD. Checkpoints store it by the names of its fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacit.compression.feedback.state import FeedbackState
from tacit.core.network import Pending
from tacit.core.worker import Worker
from tacit.strategies.local_sgd.interval import Interval
from tacit.strategies.local_sgd.outer import OuterState
from tacit.strategies.local_sgd.periods import UNTIL_THE_END, Period, PeriodState, first_period
from tacit.strategies.local_sgd.rank_times import RoundClock

if TYPE_CHECKING:
    from tacit.strategies.local_sgd.fragments import Fragment


@dataclass
class LocalSGDState:
    """The state of the period rule, the last common model r where a part of the strategy needs it, and the round."""

    period: PeriodState
    common: Tensor | None  # r
    last_round: int = 0  # the step at whose end the latest round started
    due: int = 0  # the step at whose end the next round starts
    rounds: int = 0  # rounds after the warm-up
    outer: OuterState = field(default_factory=dict)
    pending: Pending | None = None  # the overlapped round that has started and not ended
    snapshot: Tensor | None = None  # s, the model that the overlapped round averages
    feedback: FeedbackState | None = None  # of compressed rounds
    interval: Interval = field(default_factory=Interval)  # what this rank observed since the latest round started
    fragments: list[Fragment] = field(
        default_factory=list
    )  # with rounds of their own; empty: the model is averaged whole
    clock: RoundClock = field(default_factory=RoundClock)  # of rounds for a rule that reads time

    def next_due(self, warmup_steps: int) -> int:
        """Return the step at whose end the round after the latest one starts."""
        return self.last_round + (1 if self.last_round < warmup_steps else self.period.period)

    @property
    def common_model(self) -> Tensor | None:
        """The last common model, joined from those of fragments."""
        parts = [fragment.rounds.common for fragment in self.fragments]
        return (
            torch.cat([part for part in parts if part is not None])
            if any(p is not None for p in parts)
            else self.common
        )


def initial_state(
    worker: Worker, period: Period, warmup_steps: int, feedback: FeedbackState | None, *, keeps_common: bool
) -> LocalSGDState:
    """Return the state of a worker before its first step."""
    steps = None if worker.steps is None else max(0, worker.steps - warmup_steps)
    common = worker.parameters.clone() if keeps_common else None
    state = LocalSGDState(first_period(period, steps), common, feedback=feedback)
    state.due = state.next_due(warmup_steps)
    note_period(worker, state)
    return state


def note_period(worker: Worker, state: LocalSGDState) -> None:
    """Record the steps until the next round, unless the run has ended."""
    if worker.rank == 0 and (worker.steps is None or state.last_round < worker.steps):
        coming = state.due - state.last_round
        worker.note("period", coming if coming < UNTIL_THE_END else (worker.steps or coming) - state.last_round)
