"""The check of vectors before they are sent: exact, also where the sum of finite numbers overflows."""

from __future__ import annotations

import pytest
import torch

from tacit.core.parameter_layout import Layout
from tacit.errors import NotFinite
from tacit.session.steps.finite_checks import require_finite
from tacit.strategies.vector_checks import has_wrong_numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_numbers_are_wrong_if_and_only_if_one_is_nan_or_infinite(dtype: torch.dtype):
    largest = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)  # whose sum overflows
    for finite in (torch.zeros(0, dtype=dtype), torch.ones(5, dtype=dtype), largest):
        assert not has_wrong_numbers(finite)
    for wrong in (float("nan"), float("inf")):
        assert has_wrong_numbers(torch.tensor([1.0, wrong], dtype=dtype))
    assert has_wrong_numbers(torch.tensor([float("inf"), -float("inf")], dtype=dtype))


def test_the_parameter_with_the_wrong_number_is_named():
    layout = Layout.of(torch.nn.Linear(2, 1))
    require_finite(3, 7, "gradient", torch.ones(3), layout)
    require_finite(3, 7, "gradient", torch.full((3,), torch.finfo(torch.float32).max), layout)  # whose sum overflows
    with pytest.raises(NotFinite, match="the gradient of bias of worker 3 is inf in step 7"):
        require_finite(3, 7, "gradient", torch.tensor([1.0, 1.0, float("inf")]), layout)
