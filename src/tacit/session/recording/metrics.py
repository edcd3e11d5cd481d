"""Exchanges of values outside the strategy: means, gathered values, barriers.

They are collective and not counted as traffic of the strategy.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.session.backend import SessionBackend, synchronize_clocks


def mean_over_workers(backend: SessionBackend, value: float | Tensor) -> float | Tensor:
    """Return the plain mean of ``value``, a number or a tensor, over all workers, computed in float64.

    The run's clock includes the time until the last worker arrives, but not the exchange.
    """
    if not isinstance(value, bool | int | float | np.number | Tensor):
        raise TypeError(
            f"session.mean({value!r}): the value must be a number or a tensor; use session.gather for others."
        )
    own = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value))
    if own.is_complex():
        raise TypeError(f"session.mean: a tensor of {own.dtype} is not real; call it for value.real and value.imag.")
    with backend.pause():
        synchronize_clocks(backend)
        mean = backend.mean(own.to("cpu", torch.float64))
    if not isinstance(value, Tensor):
        return float(mean)
    return mean.to(value.device, value.dtype if value.is_floating_point() else torch.float32)


def gather_over_workers(backend: SessionBackend, value: Any) -> list[Any]:
    """Return every worker's ``value`` in rank order: a number, text, tensor, None, or a list, tuple or dict of these.

    Workers that are lost have none.

    The run's clock includes the time until the last worker arrives, but not the exchange.
    """
    packed = io.BytesIO()
    torch.save(_on_host(value), packed)
    try:
        _unpacked(packed.getvalue())
    except pickle.UnpicklingError:
        raise TypeError(
            f"session.gather({type(value).__name__}): a value must consist of numbers, texts, tensors, and lists, "
            f"tuples and dicts of these; convert it first."
        ) from None
    with backend.pause():
        synchronize_clocks(backend)
        return [_unpacked(data) for data in backend.all_gather(packed.getvalue()) if data]


def wait_for_all(backend: SessionBackend) -> None:
    """Return when every worker has called it."""
    with backend.pause():
        synchronize_clocks(backend)


def _on_host(value: Any) -> Any:
    """Return ``value`` with copies of its tensors on the CPU and numpy scalars as Python numbers."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _on_host(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_on_host, value)) if type(value) in (list, tuple) else value
    return value


def _unpacked(data: bytes) -> Any:
    """Return the value in ``data``; ``weights_only`` never executes code."""
    return torch.load(io.BytesIO(data), weights_only=True)
