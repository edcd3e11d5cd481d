"""All-reduces of gradient buckets that overlap with the backward pass, as in ``DDP``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tacit.cluster.cluster import Cluster
from tacit.core.parameter_layout import Layout
from tacit.simulation.links import Price
from tacit.strategies.ddp import DDP


class BackwardOverlap:
    """The part of DDP's all-reduces that remains when the backward pass of the slowest worker has ended.

    Buckets are averaged one after the other. One starts when its gradients are ready on all workers. On a worker this
    is before the end of its step, by a share of its backward pass. A worker's backward pass takes a share of its step.

    layout: of the model. step_s: the time of a step of a rank.
    """

    def __init__(self, strategy: DDP, layout: Layout, step_s: Callable[[int], float]) -> None:
        self._strategy, self._step_s = strategy, step_s
        self._sizes = [shape.numel() for shape in layout.shapes]

    def exposed(
        self, ends_s: Mapping[int, float], elements: int, element_bytes: int, price_of: Callable[[int, int], Price]
    ) -> Price:
        """Return the price after the last worker's step; ``ends_s``: when each rank's step ended."""
        backward_s = {rank: self._strategy.backward * self._step_s(rank) for rank in ends_s}
        last_s, done_s, computed = max(ends_s.values()), 0.0, 0
        sent_bytes = [0] * len(ends_s)
        for size in self._buckets(elements, element_bytes):
            computed += size
            left = 1 - computed / elements
            ready_s = max(end_s - left * backward_s[rank] for rank, end_s in ends_s.items())
            price = price_of(size, element_bytes)
            done_s = max(done_s, ready_s) + max(price.seconds)
            sent_bytes = [total + own for total, own in zip(sent_bytes, price.sent_bytes, strict=True)]
        return Price((max(0.0, done_s - last_s),) * len(ends_s), tuple(sent_bytes))

    def _buckets(self, elements: int, element_bytes: int) -> list[int]:
        """Return the elements of each bucket; the last one has what is not of the model, such as the weight."""
        own = sum(self._sizes)
        sizes = self._sizes if own <= elements else [elements]
        *before, last = self._strategy.buckets(sizes, element_bytes)
        return [*before, last + max(0, elements - own)]


def mean_step_s(cluster: Cluster, rank: int) -> float:
    """Return the mean time of a step of worker ``rank``."""
    return cluster.delay(rank).expected_s * cluster.slowdown(rank) / cluster.speed.get(rank, 1.0)
