"""A period from measured times: communication takes at most a given share of a run's time.

    c = r / (H s + r)    ⇔    H = ⌈r (1 − c) / (c s)⌉          clipped to 1 … ``maximum``

    r    seconds of a round: the shortest time that a rank spends in it. The last rank to arrive waits for no other; the
         others also wait for that rank, and waiting is not communication.
    s    seconds per step of the slowest rank, from the end of one round to the start of the next.

Both are medians of the last five rounds, so that one late step or one slow round changes nothing. It is the smallest
period with this share: among the periods that a network allows, the one whose models diverge least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar, Final

from tacit.core.specs import ALWAYS_SPELLED
from tacit.errors import require
from tacit.strategies.local_sgd.periods.period import Period, PeriodState, Round, require_at_least_one

_WINDOW: Final = 5
"""Rounds behind a median."""

_FEWEST: Final = 3
"""Rounds to measure before the period changes: connections are opened in the first one, which misleads alone."""


_ROUNDING: Final = 1e-6
"""Relative error of times that travelled in float32; without it ⌈30⌉ may come out as 31."""


@dataclass(frozen=True, kw_only=True)
class PacePeriod(Period):
    """Set the period from measured times, so that rounds take at most the share ``communication`` of the time.

    H = ⌈r(1 − c)/(c s)⌉, clipped to 1 … ``maximum``, with the share c, r seconds per round (on the rank that waits
    least) and s seconds per step (of the slowest rank). r and s are medians of five rounds. r includes the round's
    hooks: encoding, decoding, the outer step. With ``overlap_steps``, r is the time in which a rank does not compute:
    the start of the round and the wait for its end. The time of a round travels with the next one. The first four
    rounds follow one step each.

    In the simulator times are virtual and runs are deterministic. On real processes equal seeds may give other periods.
    """

    communication: float = field(default=0.1, metadata=ALWAYS_SPELLED)  # c; larger = shorter periods
    maximum: int = 64

    reads_time: ClassVar[bool] = True

    def __post_init__(self) -> None:
        share = self.communication
        require(0 < share < 1, f"communication={share} must be a share of the time, above 0 and below 1, such as 0.1.")
        require_at_least_one("maximum", self.maximum)

    def init(self, steps: int | None) -> PeriodState:
        return PeriodState(1, {"rounds": 0})

    def update(self, state: PeriodState, reduced: Round) -> None:
        if reduced.round_s is None or reduced.step_s is None:
            return
        memory, place = state.memory, int(state.memory["rounds"]) % _WINDOW
        memory[f"round_s {place}"], memory[f"step_s {place}"] = reduced.round_s, reduced.step_s
        memory["rounds"] += 1
        if memory["rounds"] >= _FEWEST:
            state.period = self.period_of(_median(memory, "round_s"), _median(memory, "step_s"))

    def period_of(self, round_s: float, step_s: float) -> int:
        """Return H for rounds of ``round_s`` and steps of ``step_s`` seconds."""
        wanted = round_s * (1 - self.communication)
        if wanted >= self.maximum * self.communication * step_s:  # also for steps that take no time
            return self.maximum if wanted > 0 else 1
        return max(1, math.ceil(wanted / (self.communication * step_s) * (1 - _ROUNDING)))


def _median(memory: dict[str, float], name: str) -> float:
    known = min(_WINDOW, int(memory["rounds"]))
    return median(memory[f"{name} {place}"] for place in range(known))
