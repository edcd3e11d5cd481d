"""Sentences about what makes predictions from measured runs uncertain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from tacit.profiles.measurement import Measurement

_SHORT_STEP_S: Final = 5e-3
_UNSTEADY: Final = 0.1
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
    """Yield, for each rank, the share by which its median step is longer in the second half, or when measured again."""
    for rank, times_s in measurement.steps_s.items():
        if again_s := measurement.again_s.get(rank):
            yield median(again_s) / median(times_s) - 1
        elif len(times_s) >= _FEWEST_STEPS:
            half = len(times_s) // 2
            yield median(times_s[half:]) / median(times_s[:half]) - 1
