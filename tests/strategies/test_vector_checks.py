"""Whether a vector counts as too large: the shortcut by its sum of squares agrees with the largest number."""

from __future__ import annotations

import math

import pytest
import torch

from tacit.strategies.vector_checks import is_too_large

LARGEST = {torch.float32: 1.8e19, torch.float64: 1.3e154, torch.float16: 65504.0**0.8}


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize(("share", "is_wrong"), [(0.1, False), (0.99, False), (1.1, True), (1.9, True)])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_number_decides(dtype: torch.dtype, share: float, is_wrong: bool, sign: int):
    vector = torch.zeros(7, dtype=dtype)
    vector[3] = sign * share * LARGEST[dtype]
    assert is_too_large(vector, 1.0) is is_wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_many_numbers_whose_squares_overflow_together_are_not_too_large(dtype: torch.dtype):
    assert not is_too_large(torch.full((50,), 0.9 * LARGEST[dtype], dtype=dtype), 1.0)


def test_a_factor_counts():
    vector = torch.full((3,), 1e18)
    assert not is_too_large(vector, 1.0)
    assert is_too_large(vector, 1e3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_too_large(value: float):
    assert is_too_large(torch.tensor([0.0, value, 1.0]), 1.0)
