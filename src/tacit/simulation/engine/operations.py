"""Operations that wait in the queues of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

ADVANCE, GRADIENT, UPDATE, SNAPSHOT, DEFERRED = range(5)
"""Kinds: whole steps; a gradient that a hook uses; the update after it; a snapshot of the row; a deferred gradient."""

Operation = tuple[int, int, Any]
"""Kind, step and argument: mini-batches, one per step; None; the function that takes the snapshot; or a deferred
gradient, which is never in a queue."""

Work = tuple[int, Operation]
"""The rank of a worker, and an operation."""

Snapshot = Callable[[int, int, Tensor], None]
"""Called with rank, step and the row, which it must copy."""
