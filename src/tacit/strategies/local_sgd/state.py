"""The state of one worker in LocalSGD. Checkpoints store it by the names of its fields."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from tacit.compression.feedback.state import FeedbackState
from tacit.core.network import Pending
from tacit.strategies.local_sgd.interval import Interval
from tacit.strategies.local_sgd.outer import OuterState
from tacit.strategies.local_sgd.periods import PeriodState
from tacit.strategies.local_sgd.rank_times import RoundClock


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
    clock: RoundClock = field(default_factory=RoundClock)  # of rounds for a rule that reads time
