"""Distributions of the compute time of a step, in seconds. Each worker draws from its own random stream."""

from __future__ import annotations

import bz2
import gzip
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import IO, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.core.specs import ALWAYS_SPELLED, Spec
from tacit.errors import BadData, require

Seconds: TypeAlias = NDArray[np.float64]
Shares: TypeAlias = NDArray[np.float64]  # probabilities

_ERFC: Final = np.vectorize(math.erfc, otypes=[float])
_NORMAL_QUANTILE: Final = np.vectorize(NormalDist().inv_cdf, otypes=[float])


def _positive(name: str, value: float) -> None:
    require(math.isfinite(value) and value > 0, f"{name}={value} must be positive and finite.")


class Delay(Spec, ABC):
    """Base class of delays: the distribution of one step's compute time on a worker of speed 1.

    Derive a frozen keyword-only dataclass. Override ``draw`` and ``expected_s``; for closed forms of ``tacit.theory``
    also ``survival`` and ``tail_quantile``. All draws come from the generator that ``draw`` is given.

    >>> from dataclasses import dataclass
    >>> import tacit
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Uniform(tacit.Delay):
    ...     longest_s: float = 0.1
    ...     def draw(self, random, count):
    ...         return random.uniform(0.0, self.longest_s, count)
    ...     @property
    ...     def expected_s(self):
    ...         return self.longest_s / 2
    >>> tacit.Cluster(workers=2, compute=Uniform()).compute.expected_s
    0.05
    """

    @abstractmethod
    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        """Return ``count`` independent times."""

    @property
    @abstractmethod
    def expected_s(self) -> float:
        """The mean; infinite if the distribution has none."""

    def survival(self, times_s: Seconds) -> Shares:
        """Return P(X > t) for every t."""
        raise ValueError(
            f"{self} does not define P(X > t), which closed forms need; define survival(), or simulate instead."
        )

    def tail_quantile(self, shares: Shares) -> Seconds:
        """Return the times that a step exceeds with probabilities ``shares``; accurate in the tail."""
        raise ValueError(
            f"{self} does not define quantiles, which closed forms need; define tail_quantile(), or simulate."
        )


@dataclass(frozen=True, kw_only=True)
class Constant(Delay):
    """Each step takes ``mean_s``."""

    mean_s: float = field(default=0.02, metadata=ALWAYS_SPELLED)

    def __post_init__(self) -> None:
        _positive("mean_s", self.mean_s)

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        return np.full(count, self.mean_s)

    def survival(self, times_s: Seconds) -> Shares:
        return np.where(times_s < self.mean_s, 1.0, 0.0)

    def tail_quantile(self, shares: Shares) -> Seconds:
        return np.full(np.shape(shares), self.mean_s)

    @property
    def expected_s(self) -> float:
        return self.mean_s


@dataclass(frozen=True, kw_only=True)
class Exponential(Delay):
    """Exponential times of mean ``mean_s``."""

    mean_s: float = field(default=0.02, metadata=ALWAYS_SPELLED)

    def __post_init__(self) -> None:
        _positive("mean_s", self.mean_s)

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        return random.exponential(self.mean_s, count)

    def survival(self, times_s: Seconds) -> Shares:
        return np.exp(-np.maximum(times_s, 0) / self.mean_s)

    def tail_quantile(self, shares: Shares) -> Seconds:
        return -self.mean_s * np.log(shares)

    @property
    def expected_s(self) -> float:
        return self.mean_s


@dataclass(frozen=True, kw_only=True)
class ShiftedExponential(Delay):
    """A fixed part ``shift_s`` and an exponential tail of mean ``tail_mean_s``."""

    shift_s: float = field(default=0.01, metadata=ALWAYS_SPELLED)
    tail_mean_s: float = field(default=0.01, metadata=ALWAYS_SPELLED)

    def __post_init__(self) -> None:
        require(self.shift_s >= 0, f"shift_s={self.shift_s} must be at least 0; without a fixed part use Exponential.")
        _positive("tail_mean_s", self.tail_mean_s)

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        return self.shift_s + random.exponential(self.tail_mean_s, count)

    def survival(self, times_s: Seconds) -> Shares:
        return np.exp(-np.maximum(times_s - self.shift_s, 0) / self.tail_mean_s)

    def tail_quantile(self, shares: Shares) -> Seconds:
        return self.shift_s - self.tail_mean_s * np.log(shares)

    @property
    def expected_s(self) -> float:
        return self.shift_s + self.tail_mean_s


@dataclass(frozen=True, kw_only=True)
class Pareto(Delay):
    """Heavy-tailed times: P(X > x) = (minimum_s / x)^shape; smaller shape = heavier tail."""

    minimum_s: float = field(default=0.01, metadata=ALWAYS_SPELLED)
    shape: float = field(default=2.5, metadata=ALWAYS_SPELLED)

    def __post_init__(self) -> None:
        _positive("minimum_s", self.minimum_s)
        _positive("shape", self.shape)

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        return self.minimum_s * (1.0 + random.pareto(self.shape, count))

    def survival(self, times_s: Seconds) -> Shares:
        return (self.minimum_s / np.maximum(times_s, self.minimum_s)) ** self.shape

    def tail_quantile(self, shares: Shares) -> Seconds:
        return self.minimum_s * shares ** (-1 / self.shape)

    @property
    def expected_s(self) -> float:
        return math.inf if self.shape <= 1 else self.minimum_s * self.shape / (self.shape - 1)


@dataclass(frozen=True, kw_only=True)
class LogNormal(Delay):
    """Log-normal times: the logarithm is normal with mean log ``median_s`` and standard deviation ``sigma``."""

    median_s: float = field(default=0.02, metadata=ALWAYS_SPELLED)
    sigma: float = field(default=0.5, metadata=ALWAYS_SPELLED)

    def __post_init__(self) -> None:
        _positive("median_s", self.median_s)
        require(self.sigma >= 0, f"sigma={self.sigma} must be at least 0; 0 gives constant times.")

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        return self.median_s * np.exp(self.sigma * random.standard_normal(count))

    def survival(self, times_s: Seconds) -> Shares:
        if self.sigma == 0:
            return Constant(mean_s=self.median_s).survival(times_s)
        logs = np.log(np.maximum(times_s, 1e-300) / self.median_s)
        return np.asarray(_ERFC(logs / (self.sigma * math.sqrt(2))) / 2)

    def tail_quantile(self, shares: Shares) -> Seconds:
        inside = np.clip(shares, 1e-300, 1 - 2**-53)  # a share that was rounded to 0 or 1 has no normal quantile
        return np.asarray(self.median_s * np.exp(-self.sigma * _NORMAL_QUANTILE(inside)))

    @property
    def expected_s(self) -> float:
        return self.median_s * math.exp(self.sigma**2 / 2)


@dataclass(frozen=True, kw_only=True)
class HyperExponential(Delay):
    """A mixture of exponentials: with probability ``weights[i]`` a step has mean ``means_s[i]``."""

    means_s: Sequence[float] = (0.01, 0.1)
    weights: Sequence[float] = (0.9, 0.1)

    def __post_init__(self) -> None:
        require(
            len(self.means_s) == len(self.weights) > 0,
            f"means_s has {len(self.means_s)} entries and weights {len(self.weights)}; give one weight per mean.",
        )
        for mean_s in self.means_s:
            _positive("means_s", mean_s)
        require(
            all(w >= 0 for w in self.weights) and math.isclose(sum(self.weights), 1.0, rel_tol=1e-6),
            f"weights={list(self.weights)} must be probabilities that add up to 1.",
        )

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        which = np.searchsorted(np.cumsum(self.weights)[:-1], random.random(count), side="right")
        return np.asarray(self.means_s, float)[which] * random.standard_exponential(count)

    def survival(self, times_s: Seconds) -> Shares:
        each = np.exp(-np.maximum(times_s, 0)[..., None] / np.asarray(self.means_s, float))
        return np.asarray(each @ np.asarray(self.weights, float))

    def tail_quantile(self, shares: Shares) -> Seconds:
        low, high = (-mean_s * np.log(shares) for mean_s in (min(self.means_s), max(self.means_s)))
        for _ in range(60):  # bisection between the quantiles of the shortest and the longest mean
            middle = (low + high) / 2
            is_later = self.survival(middle) > shares
            low, high = np.where(is_later, middle, low), np.where(is_later, high, middle)
        return np.asarray((low + high) / 2)

    @property
    def expected_s(self) -> float:
        return sum(w * m for w, m in zip(self.weights, self.means_s, strict=True))


@dataclass(frozen=True, kw_only=True)
class Recorded(Delay):
    """Measured step times, drawn at random with replacement.

    times_s: a list, or the name of a text file (.gz, .bz2) with one time in seconds per line. A saved run refers to the
    file by this name. A list of more than 32 numbers is written to a file of the run's folder.
    """

    times_s: Sequence[float] | str

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> Recorded:
        """Return the times in a text file as a list, which the saved run keeps."""
        return cls(times_s=_read_times(Path(path)).tolist())

    def __post_init__(self) -> None:
        if isinstance(self.times_s, os.PathLike):
            object.__setattr__(self, "times_s", os.fspath(self.times_s))
        if not isinstance(self.times_s, str):
            require(len(self.times_s) > 0, "times_s is empty; give at least one step time.")
            bad = next((t for t in self.times_s if not (math.isfinite(t) and t > 0)), None)
            require(bad is None, f"times_s contains {bad}; step times are positive seconds.")

    @cached_property
    def values(self) -> Seconds:
        if isinstance(self.times_s, str):
            return _read_times(Path(self.times_s))
        return np.asarray(self.times_s, float)

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        return self.values[random.integers(0, len(self.values), count)]

    def survival(self, times_s: Seconds) -> Shares:
        return 1 - np.searchsorted(np.sort(self.values), times_s, side="right") / len(self.values)

    def tail_quantile(self, shares: Shares) -> Seconds:
        count = len(self.values)
        above = np.clip(np.floor(np.asarray(shares) * count).astype(int), 0, count - 1)
        return np.asarray(np.sort(self.values)[count - 1 - above])

    @property
    def expected_s(self) -> float:
        return float(self.values.mean())


@dataclass(frozen=True, kw_only=True)
class SlowSpells(Delay):
    """Workers that are slow for random periods: ``compute`` times ``factor`` during a slow spell.

    Normal periods and slow spells alternate, each worker with its own. Their lengths are exponential with means
    ``healthy_mean_s`` and ``spell_mean_s``.
    """

    compute: Delay = Exponential(mean_s=0.02)
    factor: float = 4.0
    healthy_mean_s: float = 10.0
    spell_mean_s: float = 2.0

    def __post_init__(self) -> None:
        require(
            not isinstance(self.compute, SlowSpells),
            "compute is itself a SlowSpells; give the distribution of a normal step instead.",
        )
        _positive("factor", self.factor)
        _positive("healthy_mean_s", self.healthy_mean_s)
        _positive("spell_mean_s", self.spell_mean_s)

    def draw(self, random: np.random.Generator, count: int) -> Seconds:
        return self.compute.draw(random, count)

    def survival(self, times_s: Seconds) -> Shares:
        raise ValueError(
            f"{self} has steps that depend on each other, so P(X > t) does not describe them; simulate instead."
        )

    def tail_quantile(self, shares: Shares) -> Seconds:
        raise ValueError(
            f"{self} has steps that depend on each other, so quantiles do not describe them; simulate instead."
        )

    @property
    def expected_s(self) -> float:
        """The mean over a long run: a worker does 1 unit of work per second in normal periods, 1/factor in spells."""
        cycle_s = self.healthy_mean_s + self.spell_mean_s
        return self.compute.expected_s * cycle_s / (self.healthy_mean_s + self.spell_mean_s / self.factor)


def _read_times(path: Path) -> Seconds:
    """Return the times in a text file; text after # is a comment."""
    openers: dict[str, Callable[..., IO[str]]] = {".gz": gzip.open, ".bz2": bz2.open}
    opener = openers.get(path.suffix, open)
    times = []
    try:
        with opener(path, "rt") as lines:
            for number, line in enumerate(lines, 1):
                if text := line.split("#")[0].strip():
                    try:
                        times.append(float(text))
                    except ValueError:
                        raise BadData(f"{path}, line {number}: {text!r} is not a number of seconds.") from None
                    if not (math.isfinite(times[-1]) and times[-1] > 0):
                        raise BadData(f"{path}, line {number}: {text} is not a positive number of seconds.")
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}.") from error
    if not times:
        raise BadData(f"{path} contains no step times; write one number of seconds per line.")
    return np.asarray(times)
