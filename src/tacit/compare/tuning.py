"""Search for the learning rate of each strategy, on a seed that is not reported: ``tacit compare --tune``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

FACTORS: Final = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
"""Learning rates that are tried first, as factors of the given one."""
FURTHER: Final = 2
"""Number of further rates: beyond the grid if its edge is best, else halfway to the better neighbour."""


@dataclass(frozen=True)
class Candidate:
    """A learning rate that was tried, and its final loss; None where the run diverged or failed."""

    lr: float
    loss: float | None


@dataclass(frozen=True)
class Tuning:
    """The search for one strategy's learning rate: all candidates on ``seed``, in order of the rate."""

    seed: int
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        """The candidate with the smallest final loss; None if no run finished."""
        ended = [c for c in self.candidates if c.loss is not None]
        return min(ended, key=lambda c: c.loss if c.loss is not None else math.inf, default=None)

    @property
    def is_at_edge(self) -> bool:
        """Whether the best rate is the smallest or largest candidate: a wider search might find a better one."""
        return self.best in (self.candidates[0], self.candidates[-1])

    def __str__(self) -> str:
        tried = ", ".join(f"{c.lr:.4g} → {'failed' if c.loss is None else f'{c.loss:.4g}'}" for c in self.candidates)
        return f"final loss by lr on seed {self.seed}: {tried}"

    @property
    def note(self) -> str:
        """The chosen rate as a short text."""
        if self.best is None:
            return f"lr not tuned: all {len(self.candidates)} runs on seed {self.seed} failed"
        edge = ", at the edge of the search" if self.is_at_edge else ""
        return f"lr={self.best.lr:.4g}, best of {len(self.candidates)} on seed {self.seed}{edge}"


def tunings_from(described: Mapping[str, Any]) -> dict[str, Tuning]:
    """Return the searches that ``Findings.as_json`` wrote."""
    return {
        label: Tuning(search["seed"], tuple(Candidate(c["lr"], c["loss"]) for c in search["candidates"]))
        for label, search in described.get("tuning", {}).items()
    }


def next_rates(lr: float, candidates: Sequence[Candidate]) -> list[float]:
    """Return the rates to try after ``candidates``: first all of the grid, then one at a time, at the end none."""
    if not candidates:
        return [lr * factor for factor in FACTORS]
    if not len(FACTORS) <= len(candidates) < len(FACTORS) + FURTHER:
        return []
    return [_next_rate(sorted(candidates, key=lambda c: c.lr))]


def _next_rate(candidates: list[Candidate]) -> float:
    """Return the rate beyond the edge if that is best, else the geometric mean with the better neighbour."""
    losses = [math.inf if c.loss is None else c.loss for c in candidates]
    best = min(range(len(losses)), key=losses.__getitem__)
    if losses[best] == math.inf or best == 0:
        return candidates[0].lr / 2
    if best == len(candidates) - 1:
        return candidates[-1].lr * 2
    neighbour = best - 1 if losses[best - 1] <= losses[best + 1] else best + 1
    return math.sqrt(candidates[best].lr * candidates[neighbour].lr)
