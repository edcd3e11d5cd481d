"""Synchronous data-parallel SGD: all workers step with the mean of their gradients.

    g ← Σ_i w_i g_i / Σ_i w_i,   x ← x − γ · optimizer(g)

The baseline for all other strategies, and what ``DistributedDataParallel`` does. By default w_i is the number of
samples behind g_i; ``weights="equal"`` makes all w_i = 1, as in ``DistributedDataParallel``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.core.strategy import Strategy
from tacit.core.worker import Worker
from tacit.strategies.weights import Weights, check_weights, weigh


@dataclass(frozen=True, kw_only=True)
class AllReduce(Strategy[None]):
    """Average the gradients of all workers in every step (synchronous SGD, what DDP does)."""

    weights: Weights = "size"  # of ranks in the mean: by samples, or "equal"

    def __post_init__(self) -> None:
        check_weights(self.weights)

    def init(self, worker: Worker) -> None:
        if worker.rank == 0:
            worker.note("period", 1)

    def before_step(self, worker: Worker, state: None) -> None:
        gradient = worker.gradient
        worker.network.all_reduce_mean(gradient, weigh(self.weights, worker.weight), into=gradient)
        worker.gradient = gradient
