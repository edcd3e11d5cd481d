"""Exact time per update of K-async with hyper-exponential times.

After an update P−K workers continue their current step. Each kind of step in the mixture is memoryless, so the state is
the number of these steps of each kind. This is a finite Markov chain; its stationary distribution gives the mean time
between updates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Kinds: TypeAlias = tuple[int, ...]  # number of running steps of each kind

MOST_STATES: Final = 2000


def k_async_time(means_s: Sequence[float], weights: Sequence[float], k: int, workers: int) -> float | None:
    """Return the long-run mean time between updates, or None if the chain is too large to solve."""
    kinds = [(mean_s, weight) for mean_s, weight in zip(means_s, weights, strict=True) if weight > 0]
    if math.comb(workers + len(kinds) - 1, len(kinds) - 1) > MOST_STATES:
        return None
    left = list(_ways(workers - k, len(kinds)))
    duration, after = _race([mean_s for mean_s, _ in kinds], left, workers)
    step = np.zeros((len(left), len(left)))
    hold = np.zeros(len(left))
    for row, continued in enumerate(left):
        for fresh in _ways(k, len(kinds)):
            share = _multinomial(fresh, [weight for _, weight in kinds])
            running = tuple(a + b for a, b in zip(continued, fresh, strict=True))
            step[row] += share * after[running]
            hold[row] += share * duration[running]
    equations = np.vstack([step.T - np.eye(len(left)), np.ones(len(left))])
    stationary, *_ = np.linalg.lstsq(equations, np.append(np.zeros(len(left)), 1.0), rcond=None)
    return float(stationary @ hold)


def _race(
    means_s: Sequence[float], left: Sequence[Kinds], workers: int
) -> tuple[dict[Kinds, float], dict[Kinds, NDArray[np.float64]]]:
    """Return the mean time until one of the states ``left`` is reached, and the distribution over these states.

    Both by the numbers of running steps of each kind, for ``workers`` running steps.
    """
    duration = dict.fromkeys(left, 0.0)
    after = dict(zip(left, np.eye(len(left)), strict=True))
    for running in range(sum(left[0]) + 1, workers + 1):
        level: tuple[dict[Kinds, float], dict[Kinds, NDArray[np.float64]]] = ({}, {})
        for mix in _ways(running, len(means_s)):
            rates = [count / mean_s for count, mean_s in zip(mix, means_s, strict=True)]
            level[0][mix], level[1][mix] = 1 / sum(rates), np.zeros(len(left))
            for kind, rate in enumerate(rates):
                if rate:
                    fewer = (*mix[:kind], mix[kind] - 1, *mix[kind + 1 :])
                    level[0][mix] += rate / sum(rates) * duration[fewer]
                    level[1][mix] += rate / sum(rates) * after[fewer]
        duration, after = level
    return duration, after


def _ways(total: int, kinds: int) -> Iterator[Kinds]:
    """Yield every way to split ``total`` into ``kinds`` counts."""
    if kinds == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _ways(total - first, kinds - 1):
            yield (first, *rest)


def _multinomial(counts: Kinds, weights: Sequence[float]) -> float:
    ways = math.factorial(sum(counts))
    for count in counts:
        ways //= math.factorial(count)
    return ways * math.prod(weight**count for count, weight in zip(counts, weights, strict=True))
