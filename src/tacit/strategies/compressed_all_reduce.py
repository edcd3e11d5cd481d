"""All-reduce of compressed vectors, used by ``CompressedGradient`` and ``LocalSGD``.

Messages are aggregated in one of two ways, which count as one round each:

    gather    Every rank receives every message: each rank sends its message n − 1 times.
    scatter   Rank j sums the j-th range of coordinates: each rank sends the parts of its message to their ranks, then a
              reply about its own range to all: 2(n−1)/n messages where a reply is as small as a message (a quantizer
              without feedback, EF21-BC). An exact reply takes up to eight bytes per nonzero number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from tacit.compression.compressor import Compressor
from tacit.compression.feedback.codec import Codec
from tacit.compression.feedback.encoding import Encoding
from tacit.compression.feedback.feedback import Feedback
from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.summable import SummableFeedback
from tacit.compression.feedback.updates import Update, Weights, computed_once
from tacit.core.host_memory import copied
from tacit.core.messages import check_kind
from tacit.core.worker import Worker, is_timing_only
from tacit.errors import MembersChanged, require
from tacit.strategies.aggregation import Aggregate, aggregation, check_aggregate
from tacit.strategies.nominal_exchange import nominal_updates
from tacit.strategies.scattered_exchange import ScatteredUpdate, scattered
from tacit.strategies.vector_checks import require_finite


@dataclass(frozen=True)
class CompressedAllReduce:
    """The mean of the ranks' vectors, by compressed messages."""

    compressor: Compressor
    feedback: Feedback
    aggregate: Aggregate = "auto"  # "auto": the one that sends fewer bytes, by sizes that all ranks know beforehand

    def __post_init__(self) -> None:
        compressor, feedback, aggregate = self.compressor, self.feedback, self.aggregate
        require(
            isinstance(compressor, Compressor),
            f"compressor={compressor!r} must be a compressor such as TopK(fraction=0.01).",
        )
        is_feedback = isinstance(feedback, Feedback)
        require(is_feedback, f"feedback={feedback!r} must be a feedback such as EF21(); NoFeedback() is none.")
        feedback.check(compressor)
        check_aggregate(aggregate, compressor, feedback)

    def begin(self, worker: Worker) -> FeedbackState:
        """Return the state before the first exchange, or raise where compressor and feedback do not fit the model."""
        self.feedback.scale(self.compressor, worker.parameters.numel())
        return self.feedback.begin(worker.rank, worker.size, worker.parameters)

    def all_reduce(
        self, worker: Worker, state: FeedbackState, vector: Tensor, weight: float, rate: float, what: str
    ) -> Tensor:
        """Return the decoded mean of all ranks' ``vector``, the same on every rank.

        Simulated ranks may share the tensor of the mean: do not write to it.

        ``rate`` multiplies the mean in the model. A ``vector`` with NaN or infinity raises ``NotFinite`` before any
        state changes; ``what`` names it.
        """
        return self.all_reduce_with_updates(worker, state, vector, weight, rate, what)[0]

    def all_reduce_with_updates(
        self,
        worker: Worker,
        state: FeedbackState,
        vector: Tensor,
        weight: float,
        rate: float,
        what: str,
        statistics: Tensor | None = None,
    ) -> tuple[Tensor, Sequence[Update]]:
        """Return the mean and the ranks' updates, in which ``statistics`` travel uncompressed."""
        worker.spend("flatten", vector.numel())
        feedback, like = self.feedback, (vector.numel(), vector.dtype, vector.device)
        scale, form = self.plan(worker, vector, len(state.weights))
        shapes = worker.layout.shapes
        codec = Codec(self.compressor, worker.random, worker.shared_random, *like, shapes, scale, weight, rate)
        if is_timing_only(worker):
            return vector, nominal_updates(worker, feedback, state, codec, form, statistics)
        check = partial(require_finite, worker, what)
        mean, updates = self._exchange(worker, state, Encoding(feedback, state, vector, codec, statistics, check), form)
        state.sent = None
        worker.report_total_weight(Weights.of(updates).total)
        if state.master_bytes and worker.rank == 0:
            worker.note("broadcast_bytes", state.master_bytes)
        return rounded(mean, vector.dtype, updates), updates

    def regrouped(self, worker: Worker, state: FeedbackState, members: Sequence[int]) -> None:
        """Adapt the state of the feedback to other members."""
        _, form = self.plan(worker, worker.parameters, len(state.weights))
        network = worker.network
        mean = partial(network.all_reduce_mean, extra_state=False) if form == "scatter" else None
        self.feedback.regrouped(state, worker.rank, members, mean)

    def _exchange(
        self, worker: Worker, state: FeedbackState, encoding: Encoding, form: str
    ) -> tuple[Tensor, Sequence[Update]]:
        """Return the mean and the updates. Ranges of other members are summed and sent anew."""
        feedback, codec = self.feedback, encoding.codec
        update = ScatteredUpdate(encoding)
        while form == "scatter":
            assert isinstance(feedback, SummableFeedback)
            try:
                return scattered(worker, feedback, state, update, codec)
            except MembersChanged:
                form = self.plan(worker, encoding.vector, len(state.weights))[1]
        updates = worker.network.all_gather(encoding if update.own is None else update.own)
        computed_once(updates, encoding.kind.kind, lambda: check_kind(updates, encoding.kind))
        mean = feedback.decode_updates(state, updates, codec)
        worker.spend(f"decode {type(self.compressor).__name__}", codec.dimension * len(updates))
        return mean, updates

    @cached_property
    def _plans(self) -> dict[tuple[object, ...], tuple[float, str]]:
        return {}

    def plan(self, worker: Worker, vector: Tensor, ranks: int) -> tuple[float, str]:
        """Return the factor of decoded vectors and the form of aggregation, which all exchanges of a run share."""
        like = (vector.numel(), vector.dtype, vector.device)
        if (known := self._plans.get((ranks, *like))) is not None:
            return known
        scale = self.feedback.scale(self.compressor, vector.numel())
        codec = Codec(self.compressor, worker.random, worker.shared_random, *like, worker.layout.shapes, scale)
        plan = scale, aggregation(self.aggregate, self.feedback, ranks, codec)
        self._plans[ranks, *like] = plan
        return plan


def rounded(mean: Tensor, dtype: torch.dtype, updates: Sequence[Update]) -> Tensor:
    """Return the mean in ``dtype``; simulated ranks that share the mean round it once."""
    if mean.dtype == dtype:
        return mean
    known, rounded = computed_once(updates, dtype, lambda: (mean, copied(mean, dtype)))
    return rounded if known is mean else copied(mean, dtype)
