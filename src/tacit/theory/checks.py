"""Checks of arguments that several functions share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.cluster.delays import Delay
from tacit.errors import require

SpeedGroups: TypeAlias = tuple[tuple[float, int], ...]
"""Workers grouped by speed: (speed, number of workers), slowest first."""


def check_positive(name: str, value: float) -> None:
    require(value > 0 and math.isfinite(value), f"{name}={value:g} must be positive and finite.")


def check_not_negative(name: str, value: float, what: str) -> None:
    require(value >= 0 and math.isfinite(value), f"{name}={value:g} must be finite and not negative: it is {what}.")


def check_whole(name: str, value: int) -> None:
    require(isinstance(value, int) and value >= 1, f"{name}={value} must be a whole number, at least 1.")


def counted(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Return ``values``, a number or an array of any shape, as an array; raise if any is negative."""
    numbers = np.asarray(values, float)
    wrong = numbers[~(numbers >= 0)]
    require(not wrong.size, f"{name}={wrong[0] if wrong.size else 0:g} must not be negative.")
    return numbers


def group_by_speed(workers: int, speed: Mapping[int, float] | None, compute: Delay) -> SpeedGroups:
    """Check the arguments and return the workers grouped by speed; ``speed`` is as in ``Cluster``."""
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


def time_without_waiting_s(compute: Delay, by_speed: SpeedGroups, steps: int) -> float:
    """Return the mean time in which all workers together take ``steps`` steps if no worker waits."""
    return steps * compute.expected_s / sum(speed * count for speed, count in by_speed)
