"""A warning if all workers train on the same batches: equal seeds, and data that is not divided."""

from __future__ import annotations

import logging
from typing import Final

from torch import Tensor

from tacit.session.backend import SessionBackend

_logger: Final = logging.getLogger("tacit")
_STEPS: Final = 2
"""Number of losses that are compared. The first ones may be equal without equal data: a last layer of zeros gives every
batch the same loss.
"""
_LAST_CHECK: Final = 64
_NAME: Final = "first losses"


class DuplicateWork:
    """Compares the losses of all workers in their first steps.

    No worker waits: rank 0 checks at steps 2, 4, 8 … 64 until all losses are published.
    """

    def __init__(self, backend: SessionBackend) -> None:
        self._backend, self._losses = backend, list[float]()
        self._is_over = backend.size == 1

    def observe(self, step: int, loss: float | Tensor) -> None:
        """Keep the first loss that is observed after ``step`` completed steps."""
        if not self._is_over and step == len(self._losses) < _STEPS:
            self._losses.append(float(loss))
            if len(self._losses) == _STEPS:
                self._backend.publish(_NAME, self._losses)

    def end_step(self, step: int) -> None:
        """Warn on rank 0 once all losses are known and equal."""
        if self._is_over or self._backend.rank != 0 or len(self._losses) < _STEPS or step & (step - 1):
            return
        published = self._backend.published(_NAME)
        self._is_over = len(published) == self._backend.size or step >= _LAST_CHECK
        if len(published) == self._backend.size and all(losses == published[0] for losses in published):
            shown = " and ".join(f"{loss:.6g}" for loss in published[0])
            _logger.warning(
                "all %d workers observed the same losses in their first two steps (%s): they train on the same "
                "batches. Give each worker its own data, for example with DistributedSampler(data, "
                "num_replicas=tacit.size(), rank=tacit.rank()), or seed by tacit.rank().",
                self._backend.size,
                shown,
            )
