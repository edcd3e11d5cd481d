"""K-async with hyper-exponential times, exactly.

Right after an update P−K workers go on with the step they are in. Each kind of step in the mixture is memoryless, so
all that matters of the past is how many of the P−K are of which kind: a finite Markov chain, whose stationary law gives
the mean time between updates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Kinds: TypeAlias = tuple[int, ...]  # how many running steps are of each kind

MOST_STATES: Final = 2000


def k_async_time(means_s: Sequence[float], weights: Sequence[float], k: int, workers: int) -> float | None:
    """Return the mean time between updates in the long run, or None where the chain is too large to be solved."""
    kinds = [(mean_s, weight) for mean_s, weight in zip(means_s, weights, strict=True) if weight > 0]
    if math.comb(workers + len(kinds) - 1, len(kinds) - 1) > MOST_STATES:
        return None
    left = list(_ways(workers - k, len(kinds)))
    duration, after = _race([mean_s for mean_s, _ in kinds], left, workers)
    step = np.zeros((len(left), len(left)))
    hold = np.zeros(len(left))
    for row, going_on in enumerate(left):
        for fresh in _ways(k, len(kinds)):
            share = _multinomial(fresh, [weight for _, weight in kinds])
            running = tuple(a + b for a, b in zip(going_on, fresh, strict=True))
            step[row] += share * after[running]
            hold[row] += share * duration[running]
    equations = np.vstack([step.T - np.eye(len(left)), np.ones(len(left))])
    stationary, *_ = np.linalg.lstsq(equations, np.append(np.zeros(len(left)), 1.0), rcond=None)
    return float(stationary @ hold)


def _race(
    means_s: Sequence[float], left: Sequence[Kinds], workers: int
) -> tuple[dict[Kinds, float], dict[Kinds, NDArray[np.float64]]]:
    """Return, for every mix of ``workers`` running steps, the mean time until one of ``left`` is left, and the law of
    which.
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
