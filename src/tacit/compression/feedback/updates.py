"""The messages that ranks exchange: a weight and a compressed vector."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from tacit.compression.compressor import Compressed
from tacit.core.messages import Message
from tacit.core.network import Gathered
from tacit.errors import BadMessage

Value = TypeVar("Value")


@dataclass(frozen=True)
class Update(Message, wire="update"):
    """The update of one rank: its weight and a compressed vector, or None where it sends none."""

    weight: float
    body: Compressed | None = None
    is_fresh: bool = False  # EF21+: the body replaces the estimate instead of changing it

    def with_body(self, message: Compressed) -> Self:
        """Return this update with another body, which does not change with the sender's tensors."""
        return replace(self, body=message if message.is_owned else message.snapshot())


@dataclass(frozen=True)
class UpdateWithStatistics(Update, wire="report"):
    """An update with a few uncompressed numbers: what the period rule needs to know of a round."""

    statistics: Tensor = field(default_factory=lambda: torch.empty(0))


class Weights(NamedTuple):
    """The weights of one exchange."""

    by_rank: tuple[float, ...]
    total: float
    all_sent: bool  # whether every rank sent a vector

    @classmethod
    def of(cls, updates: Sequence[Update]) -> Weights:
        """Return the weights of ``updates``, collected by the first simulated rank for all."""

        def collect() -> Weights:
            by_rank = tuple([one.weight for one in updates])
            return cls(by_rank, sum(by_rank), all(one.body is not None for one in updates))

        return computed_once(updates, "weights", collect)


def computed_once(messages: Sequence[Message], key: Hashable, compute: Callable[[], Value]) -> Value:
    """Return ``compute()``, or what another simulated rank has computed from the same messages under ``key``."""
    if not isinstance(messages, Gathered):
        return compute()
    if key not in messages.derived:
        messages.derived[key] = compute()
    result: Value = messages.derived[key]
    return result


def statistics_of(updates: Sequence[Update], own: Tensor) -> Tensor:
    """Return every rank's statistics in float64, one row per rank; ``own`` has the expected length."""
    rows = [update.statistics for update in updates if isinstance(update, UpdateWithStatistics)]
    if len(rows) != len(updates) or any(row.shape != own.shape for row in rows):
        raise BadMessage(f"statistics of other lengths came where each rank sends {own.numel()} numbers.")
    return torch.stack([row.double().cpu() for row in rows])


def weighted_mean(rows: Tensor, weights: Sequence[float], rank: int) -> list[float]:
    """Return Σ w_i row_i / Σ w_i; the row of ``rank`` where all weights are 0."""
    total = sum(weights)
    shares = rows.new_tensor(weights) / total if total > 0 else torch.eye(len(rows), dtype=rows.dtype)[rank]
    return [float(value) for value in (shares.unsqueeze(1) * rows).sum(0)]
