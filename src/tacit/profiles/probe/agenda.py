"""The phases of a probe, and how many steps each takes so that the probe ends within its budget.

    start         steps that are dropped: memory is allocated, caches are filled
    steps         steps without hooks: the time of a step on each rank
    gradients     steps without update: gradient noise scale and heterogeneity
    rounds        AllReduce in every step: rounds at the model's size in the rhythm of the run
    top-k, qsgd   the same with a compressor
    network       rounds back to back, other sizes, and pairs of ranks; no steps
    steps again   steps without hooks: whether the machine was steady

All ranks take the same number of steps, so that collective calls in the script's own loop still meet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

START, STEPS, GRADIENTS, ROUNDS = "start", "steps", "gradients", "rounds"
TOP_K, QSGD, NETWORK, STEPS_AGAIN = "top-k", "qsgd", "network", "steps again"
PHASES: Final = (START, STEPS, GRADIENTS, ROUNDS, TOP_K, QSGD, NETWORK, STEPS_AGAIN)
WITH_OTHERS: Final = (ROUNDS, TOP_K, QSGD, NETWORK)
"""Phases that need at least two ranks."""
TITLES: Final[Mapping[str, str]] = {
    STEPS: "steps",
    GRADIENTS: "noise scale",
    ROUNDS: "rounds",
    TOP_K: "rounds of Top 1 %",
    QSGD: "rounds of QSGD 8 bit",
    NETWORK: "other sizes and pairs of ranks",
    STEPS_AGAIN: "steps again",
}
"""Phases as messages name them."""

DROPPED: Final = 3
_STEPS_S, _LONGEST_STEPS_S = 2.0, 15.0  # seconds of steps without hooks: wanted, and at most
_FEWEST_STEPS, _MOST_STEPS = 20, 120
_ROUNDS, _FEWEST_ROUNDS, _COMPRESSED_ROUNDS = 12, 2, 4  # the first of each counts little: memory is allocated
_BATCHES, _FEWEST_BATCHES = 8, 2
_RESERVE_S: Final = 2.0
"""Kept for the end of the probe: records travel to rank 0, and processes exit."""


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """What all ranks know at the end of a phase: the largest values of any rank."""

    elapsed_s: float  # since tacit.attach
    step_s: float  # a step, without hooks
    round_s: float  # a round at the model's size: measured, or estimated from a smaller one; 0: no other rank
    steps_left: float = math.inf  # until the script ends, as it told tacit.attach

    def left_s(self, budget_s: float) -> float:
        """Return what is left of the budget."""
        return budget_s - min(_RESERVE_S, budget_s / 4) - self.elapsed_s


def steps_of(phase: str, agreed: Agreed, budget_s: float, workers: int) -> int:
    """Return how many steps ``phase`` takes; 0: it is left out."""
    left_s, step_s, round_s = agreed.left_s(budget_s), max(agreed.step_s, 1e-6), agreed.round_s
    if workers == 1 and phase in WITH_OTHERS:
        return 0
    if phase == START:
        return DROPPED
    if phase in (STEPS, STEPS_AGAIN):
        wanted = min(max(_STEPS_S / step_s, _FEWEST_STEPS), _MOST_STEPS)
        share = 1 / 3 if phase == STEPS else 1.0
        affordable = min(_LONGEST_STEPS_S, budget_s / 4, share * left_s) / step_s - 1  # one more counts for no phase
        fewest = 2 if phase == STEPS else 0  # without step times there is no profile
        return max(fewest, int(min(wanted, affordable, share * agreed.steps_left - 1)))
    if phase == GRADIENTS:
        affordable = int(0.1 * left_s / step_s)
        if affordable < _FEWEST_BATCHES and 0.3 * left_s >= _FEWEST_BATCHES * step_s:
            affordable = _FEWEST_BATCHES
        return 0 if affordable < _FEWEST_BATCHES else min(affordable, _BATCHES)
    if phase == ROUNDS:
        affordable = int(0.4 * left_s / (step_s + round_s))
        if affordable < _FEWEST_ROUNDS and 0.7 * left_s >= _FEWEST_ROUNDS * (step_s + round_s):
            affordable = _FEWEST_ROUNDS
        return 0 if affordable < _FEWEST_ROUNDS else min(affordable, _ROUNDS)
    if phase in (TOP_K, QSGD):
        return _COMPRESSED_ROUNDS if _COMPRESSED_ROUNDS * (step_s + round_s) <= 0.3 * left_s else 0
    return 0


def averages_models(agreed: Agreed, budget_s: float) -> bool:
    """Whether one round at the model's size fits in, which makes the models equal before gradients are compared."""
    return agreed.round_s <= 0.25 * agreed.left_s(budget_s)


def affordable_s(agreed: Agreed, budget_s: float) -> float:
    """Return the seconds that one part of the phase ``network`` may take."""
    return max(0.0, 0.15 * agreed.left_s(budget_s))
