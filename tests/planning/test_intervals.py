"""Ranges of predicted times: over seeds that were simulated, and over others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.planning.results import Interval, factor_for_seeds


def test_nine_of_ten_other_seeds_lie_in_the_range_of_three():
    random, inside = np.random.default_rng(0), []
    for _ in range(4000):
        times_s = np.exp(random.normal(0.0, 0.05, 4))
        found = Interval.of(times_s[:3], 1.0, factor_for_seeds(times_s[:3]))
        inside.append(found.low <= times_s[3] <= found.high)
    assert np.mean(inside) == pytest.approx(0.92, abs=0.03)


def test_more_seeds_need_less_and_the_range_of_far_seeds_is_not_widened():
    equal = [factor_for_seeds([2.0] * seeds) for seeds in (1, 2, 3, 10)]
    assert equal == sorted(equal, reverse=True) and equal[-1] > 1.0
    assert equal[2] == pytest.approx(math.exp(2.13 * math.sqrt(0.05**2 / 2 * 4 / 3)))
    assert factor_for_seeds([1.0, 1.0, *np.linspace(0.5, 2.0, 8)]) < 2.0
    assert factor_for_seeds([0.0, 1.0]) == 1.0


def test_ranges_are_compared_for_the_seeds_that_were_simulated():
    ours, theirs = Interval.of([1.0, 1.1], 1.0, 1.2), Interval.of([1.2, 1.3], 1.0, 1.2)
    assert ours.high > theirs.low and not ours.overlaps(theirs)
    assert ours.overlaps(theirs.scaled(0.9)) and not ours.scaled(0.5).overlaps(ours)
