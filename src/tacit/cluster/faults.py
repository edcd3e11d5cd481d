"""Faults as values: what goes wrong, with whom, when. Both worlds report them with the same exceptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tacit.core.specs import Spec
from tacit.errors import require


class Fault(Spec):
    """Something that goes wrong, or at least not as planned."""


@dataclass(frozen=True, kw_only=True)
class Crash(Fault):
    """Worker ``rank`` is gone from ``at_s`` on; with ``for_s`` a fresh one takes its place after so many seconds.

    Rank -1 is the server.
    """

    rank: int
    at_s: float
    for_s: float = math.inf

    def __post_init__(self) -> None:
        _when(self.at_s)
        require(self.for_s > 0, f"for_s={self.for_s} must be positive; leave it out for a worker that never returns.")
        require(
            self.rank >= 0 or self.for_s == math.inf,
            "a server's crash ends the run; go on from what it left with start=error.run, not with for_s.",
        )


@dataclass(frozen=True, kw_only=True)
class Join(Fault):
    """Worker ``rank`` is not there before ``at_s``: it joins a run that others have begun."""

    rank: int
    at_s: float

    def __post_init__(self) -> None:
        _when(self.at_s)


@dataclass(frozen=True, kw_only=True)
class Pause(Fault):
    """Worker ``rank`` neither computes nor answers from ``at_s`` for ``for_s`` seconds."""

    rank: int
    at_s: float
    for_s: float

    def __post_init__(self) -> None:
        _when(self.at_s)
        require(0 < self.for_s < math.inf, f"for_s={self.for_s} must be positive and finite; for ever is Crash.")


@dataclass(frozen=True, kw_only=True)
class Slow(Fault):
    """Worker ``rank`` computes ``factor`` times slower from ``at_s`` for ``for_s`` seconds (default: always)."""

    rank: int
    factor: float
    at_s: float = 0.0
    for_s: float = math.inf

    def __post_init__(self) -> None:
        _when(self.at_s)
        require(self.factor > 0, f"factor={self.factor} must be positive; 4.0 means four times slower.")
        require(self.for_s > 0, f"for_s={self.for_s} must be positive.")


@dataclass(frozen=True, kw_only=True)
class Partition(Fault):
    """Nothing passes between ``ranks`` and the others from ``at_s`` for ``for_s`` seconds; what was sent waits, as TCP
    does.
    """

    ranks: Sequence[int]
    at_s: float
    for_s: float = math.inf

    def __post_init__(self) -> None:
        _when(self.at_s)
        require(len(self.ranks) > 0, "ranks is empty; name the workers on one side of the cut.")
        require(self.for_s > 0, f"for_s={self.for_s} must be positive.")


@dataclass(frozen=True, kw_only=True)
class Loss(Fault):
    """Each message is lost with ``probability``.

    Collectives send again after ``retry_s``; a lost ``send`` never arrives.
    """

    probability: float
    retry_s: float = 0.2

    def __post_init__(self) -> None:
        require(0 <= self.probability < 1, f"probability={self.probability} must be at least 0 and below 1.")
        require(self.retry_s > 0, f"retry_s={self.retry_s} must be positive.")


def _when(at_s: float) -> None:
    require(math.isfinite(at_s) and at_s >= 0, f"at_s={at_s} must be a time from 0 on, in seconds.")
