"""The state of one worker in ``Hierarchical``, and what it observes, for both parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tacit.core.worker import ObservedLosses, Worker
from tacit.strategies.hierarchical.groups import Groups
from tacit.strategies.local_sgd.state import LocalSGDState
from tacit.strategies.observed import Observed


@dataclass
class HierarchicalState:
    """The states of both parts. Members of a group keep the leader's next round and common model up to date."""

    inner: Any
    outer: LocalSGDState
    is_leader: bool = False  # as of the latest round
    inner_seen: Observed = field(default_factory=Observed)
    outer_seen: Observed = field(default_factory=Observed)

    def take(self, worker: Worker) -> None:
        """Take what the worker has observed, for both parts."""
        seen = worker.take_observed()
        self.inner_seen.add(seen)
        self.outer_seen.add(seen)

    def take_inner(self, worker: Worker) -> ObservedLosses:
        """Return what the inner part has not seen."""
        self.take(worker)
        return self.inner_seen.take()


def observed_by_group(worker: Worker, groups: Groups, own: ObservedLosses) -> ObservedLosses:
    """Return what a group has observed: the sum of weights, relative to a group of mean size, and the mean losses."""
    if len(groups.own) == 1:
        return own._replace(weight=own.weight * groups.share)
    losses = (own.first_loss, own.loss)
    shares = [own.weight * (loss is not None) for loss in losses]
    sums = [share * (loss or 0.0) for share, loss in zip(shares, losses, strict=True)]
    numbers = worker.parameters.new_tensor([own.weight, *shares, *sums], dtype=torch.float64)
    weight, *received = worker.network.all_reduce_mean(numbers, group=groups.own).tolist()
    first, mean = (
        total / share if share > 0 else None for share, total in zip(received[:2], received[2:], strict=True)
    )
    return ObservedLosses(own.steps, weight * groups.share, first, mean)
