"""Faults of a simulated cluster. The simulator reports them with the exceptions that real processes raise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tacit.core.specs import Spec
from tacit.errors import require


class Fault(Spec):
    """Base class of faults."""


@dataclass(frozen=True, kw_only=True)
class Crash(Fault):
    """Worker ``rank`` stops at ``at_s``; with ``for_s`` a new worker replaces it after so many seconds.

    Rank -1 is the server.
    """

    rank: int
    at_s: float
    for_s: float = math.inf

    def __post_init__(self) -> None:
        _when(self.at_s)
        require(self.for_s > 0, f"for_s={self.for_s} must be positive; remove it for a worker that does not return.")
        require(
            self.rank >= 0 or self.for_s == math.inf,
            f"for_s={self.for_s}: a server that crashes does not return; remove for_s and resume with start=error.run.",
        )


@dataclass(frozen=True, kw_only=True)
class Join(Fault):
    """Worker ``rank`` joins the run at ``at_s``, after the others have started."""

    rank: int
    at_s: float

    def __post_init__(self) -> None:
        _when(self.at_s)


@dataclass(frozen=True, kw_only=True)
class Pause(Fault):
    """Worker ``rank`` neither computes nor answers for ``for_s`` seconds from ``at_s``."""

    rank: int
    at_s: float
    for_s: float

    def __post_init__(self) -> None:
        _when(self.at_s)
        require(
            0 < self.for_s < math.inf,
            f"for_s={self.for_s} must be positive and finite; use Crash for a worker that stops for good.",
        )


@dataclass(frozen=True, kw_only=True)
class Slow(Fault):
    """Worker ``rank`` computes ``factor`` times slower for ``for_s`` seconds from ``at_s`` (default: always)."""

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
    """No message passes between ``ranks`` and the others for ``for_s`` seconds from ``at_s``.

    Messages wait and arrive afterwards, as with TCP.
    """

    ranks: Sequence[int]
    at_s: float
    for_s: float = math.inf

    def __post_init__(self) -> None:
        _when(self.at_s)
        require(len(self.ranks) > 0, "ranks is empty; give the workers on one side of the partition.")
        require(self.for_s > 0, f"for_s={self.for_s} must be positive.")


@dataclass(frozen=True, kw_only=True)
class MessageLoss(Fault):
    """Each message is lost with ``probability``.

    Collectives send again after ``retry_s``. A message of ``send`` that is lost does not arrive.
    """

    probability: float
    retry_s: float = 0.2

    def __post_init__(self) -> None:
        require(0 <= self.probability < 1, f"probability={self.probability} must be at least 0 and below 1.")
        require(self.retry_s > 0, f"retry_s={self.retry_s} must be positive.")


def _when(at_s: float) -> None:
    require(math.isfinite(at_s) and at_s >= 0, f"at_s={at_s} must be finite and at least 0 seconds.")
