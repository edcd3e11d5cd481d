"""Distribution of the number of events of many independent workers, at many times at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tacit.cluster.delays import Shares


def fewer_than(k: int, groups: Sequence[tuple[Shares, int]]) -> Shares:
    """Return P(fewer than ``k`` events in total) at every time.

    groups: (law, workers) pairs; law[n, t] is the probability that one worker has n events by time t; n ≥ k is omitted.
    All terms are positive, so small probabilities are accurate.
    """
    total = np.ones((1, groups[0][0].shape[1]))
    for law, workers in groups:
        total = _product(total, _power(law, workers, k), k)
    return np.asarray(total.sum(0))


def _power(law: Shares, workers: int, k: int) -> Shares:
    """Return the distribution of the sum over ``workers`` identical workers, by repeated squaring."""
    result, square = np.ones((1, law.shape[1])), law[:k]
    while workers:
        if workers % 2:
            result = _product(result, square, k)
        workers //= 2
        if workers:
            square = _product(square, square, k)
    return result


def _product(left: Shares, right: Shares, k: int) -> Shares:
    """Return the distribution of the sum of two counts, below ``k``."""
    size = min(len(left) + len(right) - 1, k)
    out = np.zeros((size, left.shape[1]))
    for count, share in enumerate(left[:size]):
        rows = min(len(right), size - count)
        out[count : count + rows] += share * right[:rows]
    return out
