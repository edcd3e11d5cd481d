"""Synchronous SGD whose gradients travel compressed, with feedback.

    every rank says C(…) of its gradient to all; what all understood, averaged in rank order, is everybody's gradient

What is compressed and remembered is the feedback's business: with EF21 (Richtárik, Sokolov & Fatkhullin, NeurIPS 2021,
arXiv 2106.05203)
    c_i ← C(∇f_i(x) − g_i),  g_i ← g_i + c_i,  x ← x − γ · optimizer((1/n) Σ g_i)

The paper's objective is f = (1/n) Σ f_i: ranks count the same whatever their shards hold. That is ``weights="equal"``.
The default, "size", weighs ranks by the samples behind their gradients, so that f is the mean over all samples; with
equal batches the two are the same.

Why: a gradient changes less from step to step than it weighs, so a hundredth of its numbers, well chosen, keeps
everybody informed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tacit.compression import TopK
from tacit.compression.compressor import Compressor
from tacit.compression.feedback import EF21
from tacit.compression.feedback.feedback import Feedback, FeedbackState
from tacit.core.specs import ALWAYS_SPELLED
from tacit.core.strategy import MergesStates, Strategy
from tacit.core.worker import Worker
from tacit.strategies.compressed_all_reduce import Aggregate, CompressedMean
from tacit.strategies.weights import Weights, check_weights, weigh


@dataclass(frozen=True, kw_only=True)
class CompressedGradient(Strategy[FeedbackState], MergesStates):
    """Average compressed gradients in every step, with feedback: EF21 and its relatives, classic error feedback, DCGD."""

    compressor: Compressor = field(default=TopK(fraction=0.01), metadata=ALWAYS_SPELLED)
    feedback: Feedback = field(default=EF21(), metadata=ALWAYS_SPELLED)
    aggregate: Aggregate = "auto"  # "gather", "scatter", or the one that sends less
    weights: Weights = "size"  # of ranks in the mean: by samples, or "equal", the papers' (1/n) Σ f_i

    def __post_init__(self) -> None:
        self._mean  # noqa: B018 - making it checks the three
        check_weights(self.weights)

    @cached_property
    def _mean(self) -> CompressedMean:
        return CompressedMean(self.compressor, self.feedback, self.aggregate)

    def init(self, worker: Worker) -> FeedbackState:
        if worker.rank == 0:
            worker.note("period", 1)
        return self._mean.begin(worker)

    def before_step(self, worker: Worker, state: FeedbackState) -> None:
        weight = weigh(self.weights, worker.weight)
        worker.gradient, _ = self._mean.take(worker, state, worker.gradient, weight, worker.learning_rate, "gradient")

    def merged(self, states: Sequence[FeedbackState], rank: int, size: int) -> FeedbackState:
        """Where the number of workers changes, all go on alike: the mean over workers, which is all the model sees,
        stays what it was.
        """
        return self.feedback.merged(states, rank, size)
