"""The mean of the latest exchange, computed once for all ranks that one process simulates."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
from torch import Tensor


class _Mean(NamedTuple):
    total: weakref.ref[Tensor]
    divisor: float
    before: Tensor
    after: Tensor
    mean: Tensor


class LatestMean:
    """The mean of the latest exchange of a feedback that adds all messages to a sum which is equal on all ranks.

    Simulated ranks that hold the same tensor, or equal ones, share the next one. These tensors are read-only.
    """

    def __init__(self) -> None:
        self._latest: _Mean | None = None

    def advance(self, before: Tensor, total: Tensor, divisor: float) -> tuple[Tensor, Tensor]:
        """Return ``before + total``, and that divided by ``divisor``; ``total`` is one tensor for all ranks."""
        latest = self._latest
        if latest is not None and (latest.total() is not total or latest.divisor != divisor):
            latest = None
        if latest is not None and latest.before is before:
            return latest.after, latest.mean
        after = before + total
        if latest is None:
            self._latest = latest = _Mean(weakref.ref(total, self._drop), divisor, before, after, after / divisor)
        is_equal = after is latest.after or torch.equal(after, latest.after)
        return (latest.after, latest.mean) if is_equal else (after, after / divisor)

    def _drop(self, total: weakref.ref[Tensor]) -> None:
        if self._latest is not None and self._latest.total is total:
            self._latest = None
