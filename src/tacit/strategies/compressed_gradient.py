"""Synchronous SGD with compressed gradients and error feedback.

Every rank sends C(…) of its gradient; the mean that all ranks decode is the gradient of every rank. The feedback
decides what is compressed and remembered. With EF21 (Richtárik, Sokolov & Fatkhullin, NeurIPS 2021, arXiv 2106.05203):

    c_i ← C(∇f_i(x) − g_i),  g_i ← g_i + c_i,  x ← x − γ · optimizer((1/n) Σ g_i)

The paper's objective is f = (1/n) Σ f_i: all ranks have the same weight. That is ``weights="equal"``. The default,
"size", weighs ranks by the samples of their gradients, so that f is the mean over all samples; with equal batches the
two are the same.

A gradient changes little from step to step, so a hundredth of the numbers of its change, well chosen, keeps all ranks'
estimates up to date.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tacit.compression import TopK
from tacit.compression.compressor import Compressor
from tacit.compression.feedback import EF21
from tacit.compression.feedback.feedback import Feedback
from tacit.compression.feedback.state import FeedbackState
from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import ActsForAll, MergesStates, Strategy
from tacit.core.worker import AllWorkers, Worker
from tacit.strategies.aggregation import Aggregate
from tacit.strategies.compressed_all_reduce import CompressedAllReduce
from tacit.strategies.compressed_for_all import all_reduce_gradients
from tacit.strategies.weights import Weights, check_weights, weigh


@dataclass(frozen=True, kw_only=True)
class CompressedGradient(Strategy[FeedbackState], ActsForAll, MergesStates):
    """Average compressed gradients in every step: EF21 and its variants, classic error feedback, DCGD."""

    compressor: Compressor = field(default=TopK(fraction=0.01), metadata=ALWAYS_SPELLED)
    feedback: Feedback = field(default=EF21(), metadata=ALWAYS_SPELLED)
    aggregate: Aggregate = "auto"  # "gather", "scatter", or the one that sends less
    weights: Weights = "size"  # of ranks in the mean: by samples, or "equal", the papers' (1/n) Σ f_i

    def __post_init__(self) -> None:
        self._exchange  # noqa: B018 - the constructor checks the three
        check_weights(self.weights)

    @cached_property
    def _exchange(self) -> CompressedAllReduce:
        return CompressedAllReduce(self.compressor, self.feedback, self.aggregate)

    def init(self, worker: Worker) -> FeedbackState:
        if worker.rank == 0:
            worker.note("period", 1)
        return self._exchange.begin(worker)

    def before_step(self, worker: Worker, state: FeedbackState) -> None:
        weight = weigh(self.weights, worker.weight)
        rate = worker.learning_rate
        worker.gradient = self._exchange.all_reduce(worker, state, worker.gradient, weight, rate, "gradient")

    def acts_for_all(self, worker: Worker) -> bool:
        return self._exchange.plan(worker, worker.parameters, worker.size)[1] == "gather"

    def before_step_of_all(self, ranks: AllWorkers, states: Sequence[FeedbackState]) -> None:
        weights = [weigh(self.weights, worker.weight) for worker in ranks.workers]
        all_reduce_gradients(self._exchange, ranks, states, weights, "gradient")

    def regrouped(self, worker: Worker, state: FeedbackState, members: Sequence[int]) -> None:
        self._exchange.regrouped(worker, state, members)

    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """Return equal states for another number of workers, with an unchanged mean over workers."""
        return self.feedback.merged(states, rank, size)
