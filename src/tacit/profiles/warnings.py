"""Sentences about what makes predictions from measured runs uncertain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median, quantiles
from typing import Final

from tacit.profiles.measurement import Measurement

_SHORT_STEP_S: Final = 5e-3
_UNSTEADY: Final = 0.1
_CLEARLY: Final = 4.0  # standard errors: the largest difference of many is judged
_FEWEST_STEPS: Final = 8  # of a rank, for a comparison of the two halves of a run


def warnings_of(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Yield a sentence for each reason to doubt predictions from these runs."""
    yield from _shared_cores(measurements[0])
    shortest_s = min(median(times_s) for m in measurements for times_s in m.steps_s.values())
    if shortest_s < _SHORT_STEP_S:
        yield (
            f"Steps take {1e3 * shortest_s:.2g} ms. Below 5 ms the time of Python itself matters: expect errors of "
            f"50 %."
        )
    largest = max((drift for m in measurements for drift in drifts(m)), key=abs, default=0.0)
    if abs(largest) > _UNSTEADY:
        is_probe = bool(measurements[0].again_s)
        when = "the begin and the end of the probe" if is_probe else "the first and the second half of a run"
        yield (
            f"Steps changed by {100 * largest:+.0f} % between {when}: "
            f"the machine was not steady. Measure again when it is idle."
        )
    if measurements[0].facts.get("backend") == "nccl":
        yield "Collectives of nccl are known at the measured sizes only; other sizes are extrapolated."


def _shared_cores(measurement: Measurement) -> Iterator[str]:
    cores: Mapping[str, int] = measurement.facts.get("cores", {})
    for ranks in measurement.facts.get("hosts", []):
        available = max((cores.get(str(rank), 0) for rank in ranks), default=0)
        if available and len(ranks) > available:
            yield (
                f"Ranks {', '.join(map(str, ranks))} share {available} core{'s' * (available > 1)} of one host. Their "
                f"steps contain this slowdown, and other strategies change it: predictions are uncertain."
            )


def drifts(measurement: Measurement) -> Iterator[float]:
    """Yield, for each rank, the share by which its median step is longer in the second half, or when measured again.

    Differences that random step times explain count as 0.
    """
    for rank, times_s in measurement.steps_s.items():
        if again_s := measurement.again_s.get(rank):
            yield _drift(times_s, again_s)
        elif len(times_s) >= _FEWEST_STEPS:
            half = len(times_s) // 2
            yield _drift(times_s[:half], times_s[half:])


def _drift(before_s: Sequence[float], after_s: Sequence[float]) -> float:
    difference_s = median(after_s) - median(before_s)
    error_s = math.hypot(median_error_s(before_s), median_error_s(after_s))
    return difference_s / median(before_s) if abs(difference_s) > _CLEARLY * error_s else 0.0


def median_error_s(times_s: Sequence[float]) -> float:
    """Return the standard error of the median, from the range of the middle half of the times."""
    if len(times_s) < 2:
        return 0.0
    first, _, third = quantiles(times_s, n=4)
    return 1.2533 * (third - first) / 1.349 / math.sqrt(len(times_s))
