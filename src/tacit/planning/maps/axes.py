"""Axes of a map, and the profile at each of its places."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tacit.cluster.collectives import Measured
from tacit.cluster.delays import Delay
from tacit.errors import nearest, require
from tacit.planning.what_if import scaled
from tacit.profiles.profile import Profile

WORKERS: Final = "workers"
UNITS: Final = {WORKERS: "", "bandwidth": "bytes/s", "latency": "s", "compute": "", "slow": ""}
"""The names of axes, and the units of their values.

- ``workers``: number of workers; workers beyond the profile's are copies of its workers in turn.
- ``bandwidth``, ``latency``: of the network.
- ``compute``: factor of the compute times of all workers.
- ``slow``: factor of the compute times of the last worker.
"""
_COUNT: Final = 8
_LARGEST: Final = 64
"""The largest number of values of an axis."""


@dataclass(frozen=True)
class Axis:
    """One axis of a map: a name of ``UNITS`` and increasing values."""

    name: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        require(self.name in UNITS, f"axis {self.name!r} is unknown{nearest(self.name, UNITS)}")
        positive = all(isinstance(value, int | float) and 0 < value < math.inf for value in self.values)
        require(
            positive and 1 <= len(self.values) <= _LARGEST,
            f"{self.name}={list(self.values)} must be 1 to {_LARGEST} positive numbers.",
        )
        require(
            all(a < b for a, b in zip(self.values, self.values[1:], strict=False)),
            f"{self.name}={list(self.values)} must increase.",
        )

    @classmethod
    def spaced(cls, name: str, low: float, high: float, count: int | None = None) -> Axis:
        """Return values between ``low`` and ``high`` at equal ratios; by default 8, of workers doubled each time."""
        require(
            0 < low <= high < math.inf,
            f"{name}={low:g}:{high:g} must be positive numbers, the smaller one first; try {name}={min(low, high):g}:"
            f"{max(low, high):g}.",
        )
        if count is None:
            count = max(1, round(math.log2(high / low)) + 1) if name == WORKERS else _COUNT
        require(1 <= count <= _LARGEST, f"{name}: count={count} must be between 1 and {_LARGEST}.")
        if low == high or count == 1:
            return cls(name, (low,))
        values = [low * (high / low) ** (place / (count - 1)) for place in range(count)]
        if name == WORKERS:
            return cls(name, tuple(sorted({round(value) for value in values})))
        return cls(name, (*values[:-1], high))


def axes_of(given: Mapping[str, Sequence[float]] | Sequence[Axis]) -> tuple[Axis, Axis]:
    """Return the two axes of ``{"bandwidth": (1e6, 1e9), "latency": (1e-4, 1e-2, 8)}``: low, high and maybe a count."""
    if isinstance(given, Mapping):
        for name, span in given.items():
            require(len(span) in (2, 3), f"{name}={span!r} must be (low, high) or (low, high, count).")
        axes = [
            Axis.spaced(name, span[0], span[1], int(span[2]) if len(span) > 2 else None) for name, span in given.items()
        ]
    else:
        axes = list(given)
    require(len(axes) == 2, f"a map has two axes, and {len(axes)} were given; name two of {', '.join(UNITS)}.")
    require(axes[0].name != axes[1].name, f"both axes are {axes[0].name!r}; name two different ones.")
    return axes[0], axes[1]


def profile_at(profile: Profile, place: Mapping[str, float]) -> Profile:
    """Return ``profile`` with the values of ``place``, by the names of axes."""
    if WORKERS in place:
        profile = resized(profile, round(place[WORKERS]))
    if "bandwidth" in place or "latency" in place:
        profile = _with_network(profile, place)
    if "compute" in place:
        profile = scaled(profile, compute=place["compute"])
    if "slow" in place:
        last = profile.workers - 1
        profile = replace(profile, speed={**profile.speed, last: profile.speed.get(last, 1.0) / place["slow"]})
    return profile


def _with_network(profile: Profile, place: Mapping[str, float]) -> Profile:
    require(
        not isinstance(profile.collectives, Measured),
        'a profile with collectives=Measured(…) has one network only; use collectives="gloo" for a map.',
    )
    if profile.workers > 1 and len({profile.host(rank) for rank in range(profile.workers)}) == 1:
        profile = replace(profile, hosts=None)  # on one machine there is no network: each worker gets its own
    changes: dict[str, Any] = {}
    for name, field in (("bandwidth", "bandwidth_bytes_per_s"), ("latency", "latency_s")):
        own = getattr(profile, field)
        if name in place and 0 < own < math.inf:
            profile = scaled(profile, **{name: place[name] / own})
        elif name in place:
            changes[field] = place[name]
    return replace(profile, **changes) if changes else profile


def resized(profile: Profile, workers: int) -> Profile:
    """Return ``profile`` with another number of workers: its first ones, or copies of them in turn."""
    own = profile.workers
    if workers <= own:
        return profile.of_ranks(range(workers))
    sources = [rank % own for rank in range(workers)]

    def repeated(values: Mapping[int, Any]) -> dict[int, Any]:
        return {rank: values[source] for rank, source in enumerate(sources) if source in values}

    hosts = None
    if profile.hosts is not None:
        found = [profile.host(rank) for rank in range(own)]
        hosts = [found[source] + (max(found) + 1) * (rank // own) for rank, source in enumerate(sources)]
    compute = profile.compute
    return replace(
        profile,
        workers=workers,
        compute=compute if isinstance(compute, Delay) else [compute[source] for source in sources],
        speed=repeated(profile.speed),
        nics=repeated(profile.nics),
        hosts=hosts,
        peak_memory_bytes=repeated(profile.peak_memory_bytes),
        memory_bytes=repeated(profile.memory_bytes),
        faults=(),
    )
