"""Arguments that closed forms share, and what they may be."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.cluster.delays import Delay
from tacit.errors import require

Crew: TypeAlias = tuple[tuple[float, int], ...]
"""Workers by speed: (speed, how many), slowest first."""


def check_positive(name: str, value: float) -> None:
    require(value > 0 and math.isfinite(value), f"{name}={value:g} must be positive and finite.")


def check_not_negative(name: str, value: float, what: str) -> None:
    require(value >= 0 and math.isfinite(value), f"{name}={value:g} must be finite and not negative: it is {what}.")


def check_whole(name: str, value: int) -> None:
    require(isinstance(value, int) and value >= 1, f"{name}={value} must be a whole number, at least 1.")


def counted(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Return ``values``, a number or an array of any shape, as an array of numbers that are not negative."""
    numbers = np.asarray(values, float)
    wrong = numbers[~(numbers >= 0)]
    require(not wrong.size, f"{name}={wrong[0] if wrong.size else 0:g} must not be negative.")
    return numbers


def crew_of(workers: int, speed: Mapping[int, float] | None, compute: Delay) -> Crew:
    """Return the workers by speed, after checking all three arguments; ``speed`` reads as in ``Cluster``."""
    check_whole("workers", workers)
    require(isinstance(compute, Delay), f"compute={compute!r} must be a delay; try Exponential(mean_s=0.02).")
    for rank, value in (speed or {}).items():
        require(
            isinstance(rank, int) and 0 <= rank < workers,
            f"speed={{{rank}: {value}}} names no worker; with workers={workers} ranks are 0 to {workers - 1}.",
        )
        require(value > 0 and math.isfinite(value), f"speed={{{rank}: {value}}} must be positive and finite.")
    counted = Counter(float((speed or {}).get(rank, 1.0)) for rank in range(workers))
    return tuple(sorted(counted.items()))


def never_waiting_s(compute: Delay, crew: Crew, steps: int) -> float:
    """Return how long all workers together take for ``steps`` steps in the long run when nobody ever waits."""
    return steps * compute.expected_s / sum(speed * count for speed, count in crew)
