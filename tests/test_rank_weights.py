"""The rule that tells a weight with data from one without."""

from __future__ import annotations

import pytest

from tacit.core.weights import SKIPPED_WEIGHT, has_data


@pytest.mark.parametrize("weight", [0.0, SKIPPED_WEIGHT, 1000 * SKIPPED_WEIGHT])
def test_ended_data_and_skipped_steps_have_no_data(weight: float):
    assert not has_data(weight)


@pytest.mark.parametrize("weight", [1 / 65536, 1.0, 32.0, float("inf")])
def test_one_sample_of_a_large_batch_is_data(weight: float):
    assert has_data(weight)


def test_a_sum_over_steps_is_compared_with_the_number_of_steps():
    steps = 2**20
    assert not has_data(steps * SKIPPED_WEIGHT, steps)
    assert has_data(steps * SKIPPED_WEIGHT + 1.0, steps)
    assert not has_data(0.0, 0)
