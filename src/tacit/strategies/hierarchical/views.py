"""A worker as the parts of ``Hierarchical`` see it: one among fewer workers, with a network of these alone.

InnerView   a rank of its group: place and size in the group, collectives of the group
OuterView   the leader of a group: number of the group and number of groups, collectives of the leaders
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from tacit.core.worker import ObservedLosses, Worker
from tacit.strategies.hierarchical.groups import Groups
from tacit.strategies.hierarchical.networks import LeaderNetwork
from tacit.strategies.worker_view import WorkerView


class InnerView(WorkerView):
    """A worker inside its group."""

    @property
    def gradient(self) -> Tensor:
        return self._worker.gradient

    @gradient.setter
    def gradient(self, value: Tensor) -> None:
        self._worker.gradient = value

    def note(self, name: str, value: float) -> None:
        """Record a number, but for the period: that of a run is the one across groups."""
        if name != "period":
            self._worker.note(name, value)


class OuterView(WorkerView):
    """The leader of a group among leaders. ``seed``: of the numbers that all leaders draw alike in this hook."""

    network: LeaderNetwork

    def __init__(
        self, worker: Worker, groups: Groups, observed: ObservedLosses | None = None, seed: int | None = None
    ) -> None:
        # A member stands in the place of its leader where it initialises its state.
        leaders = [leader if leader != groups.leader else worker.rank for leader in groups.leaders]
        seen = ObservedLosses(0, 0.0, None, None) if observed is None else observed
        super().__init__(worker, LeaderNetwork(worker.network, tuple(leaders)), lambda: seen)
        self._is_leader = worker.rank == groups.leader
        self.shared_random = np.random.default_rng(seed)

    def report_total_weight(self, total_weight: float) -> None:
        self.network.has_data = total_weight > 0

    def note(self, name: str, value: float) -> None:
        if self._is_leader:
            self._worker.note(name, value)
