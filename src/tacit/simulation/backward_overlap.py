"""All-reduces of gradient buckets that overlap with the backward pass, as in ``DDP``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tacit.cluster.cluster import Cluster
from tacit.simulation.links import Price
from tacit.strategies.ddp import DDP


class BackwardOverlap:
    """The part of DDP's all-reduces that remains when the backward pass of the slowest worker has ended.

    Buckets are averaged one after the other. One starts when its gradients are ready on all workers. On a worker this
    is before the end of its step, by a share of its backward pass. A worker's backward pass takes a share of its mean
    step.
    """

    def __init__(self, strategy: DDP, cluster: Cluster) -> None:
        self._buckets = strategy.buckets
        self._backward_s = [
            strategy.backward * cluster.delay(rank).expected_s * cluster.slowdown(rank) / cluster.speed.get(rank, 1.0)
            for rank in range(cluster.workers)
        ]

    def exposed(
        self, ends_s: Mapping[int, float], elements: int, element_bytes: int, price_of: Callable[[int, int], Price]
    ) -> Price:
        """Return the price after the last worker's step; ``ends_s``: when each rank's step ended."""
        last_s, done_s, computed = max(ends_s.values()), 0.0, 0
        sent_bytes = [0] * len(ends_s)
        for size in self._buckets(elements, element_bytes):
            computed += size
            left = 1 - computed / elements
            ready_s = max(end_s - left * self._backward_s[rank] for rank, end_s in ends_s.items())
            price = price_of(size, element_bytes)
            done_s = max(done_s, ready_s) + max(price.seconds)
            sent_bytes = [total + own for total, own in zip(sent_bytes, price.sent_bytes, strict=True)]
        return Price((max(0.0, done_s - last_s),) * len(ends_s), tuple(sent_bytes))
