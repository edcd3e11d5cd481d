"""A worker as a part of a strategy sees it: with another network, and with readings of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tacit.core.network import Network
from tacit.core.worker import ObservedLosses, VectorMean, Worker


class WorkerView:
    """A worker with another network; all else is the worker's own."""

    def __init__(self, worker: Worker, network: Network, take_observed: Callable[[], ObservedLosses]) -> None:
        self._worker, self.network, self.take_observed = worker, network, take_observed
        self.rank, self.size = network.rank, network.size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def average_extra_state(self, weight: float, mean: VectorMean | None = None) -> None:
        """Do nothing: the whole strategy averages buffers and moments."""
