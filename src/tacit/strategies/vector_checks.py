"""Checks of an exchange of compressed vectors: finite numbers before it, messages of the expected kind after it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from tacit.core.worker import Worker
from tacit.errors import BadMessage, NotFinite


def check_kind(messages: Sequence[object], kind: type) -> None:
    """Raise ``BadMessage`` unless all ``messages`` are of ``kind``."""
    for received in set(map(type, messages)):
        if not issubclass(received, kind):
            raise BadMessage(f"received {received.__name__}, expected {kind.__name__}.")


def require_finite(worker: Worker, what: str, vector: Tensor) -> None:
    """Raise ``NotFinite`` with the name of a parameter if ``vector`` contains NaN or infinity."""
    if math.isfinite(float(vector.sum())):  # a finite sum has finite terms
        return
    for name, part in worker.layout.split(vector).items():
        wrong = part[~part.isfinite()]
        if wrong.numel():
            raise NotFinite(worker.rank, worker.step + 1, float(wrong[0]), f"{what} of {name}")
