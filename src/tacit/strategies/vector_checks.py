"""Checks that all numbers of a vector are finite, at the cost of one sum."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from tacit.core.worker import Worker
from tacit.errors import BadMessage, NotFinite

_LONG: Final = (torch.float32, torch.float64)
_HALVES: Final = (torch.float16, torch.bfloat16)
_EXPONENTS: Final = {torch.float16: 0.8}
"""The largest number that counts as possible is that power of the type's largest: 1.8e19 for float32."""


def has_wrong_numbers(vector: Tensor) -> bool:
    """Return whether ``vector`` contains NaN or infinity."""
    total = vector.sum(dtype=torch.float32 if vector.dtype in _HALVES else None)
    return not (math.isfinite(float(total)) or bool(vector.isfinite().all()))  # a finite sum has finite terms


def is_too_large(vector: Tensor, factor: float) -> bool:
    """Return whether ``vector`` times ``factor`` contains NaN, infinity, or numbers that make a sum overflow."""
    if not vector.numel():
        return False
    flat = vector.reshape(-1)  # of whatever shape it arrives
    if factor <= 1.0 and vector.dtype in _LONG and float(flat.dot(flat)) <= torch.finfo(vector.dtype).max / 2:
        return False  # each square is at most the sum
    low, high = vector.aminmax()
    largest = max(-float(low), float(high)) * max(1.0, factor)
    return not largest <= torch.finfo(vector.dtype).max ** _EXPONENTS.get(vector.dtype, 0.5)  # NaN is too large


def received_model(model: Tensor, own: Tensor) -> Tensor:
    """Return another worker's model in the dtype of ``own``; raise ``BadMessage`` if it cannot be one.

    Models that a simulation has not evaluated, or that have no contents, are not checked.
    """
    if model.shape != own.shape:
        raise BadMessage(f"received a model of {model.numel()} numbers; expected {own.numel()}.")
    if not model.is_floating_point():
        raise BadMessage(f"received a model of {model.dtype}; expected {own.dtype}.")
    model = model.to(own)
    if type(model) is Tensor and not model.is_meta and is_too_large(model, 1.0):
        raise BadMessage("received a model that contains NaN, infinity or too large numbers.")
    return model


def require_finite(worker: Worker, what: str, vector: Tensor) -> None:
    """Raise ``NotFinite`` with the name of a parameter if ``vector`` contains NaN or infinity."""
    if math.isfinite(float(vector.sum())):  # a finite sum has finite terms
        return
    for name, part in worker.layout.split(vector).items():
        wrong = part[~part.isfinite()]
        if wrong.numel():
            raise NotFinite(worker.rank, worker.step + 1, float(wrong[0]), f"{what} of {name}")
