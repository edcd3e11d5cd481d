"""The mean of the ranks' vectors, said in compressed words: what ``CompressedGradient`` and compressed rounds of
``LocalSGD`` share.

Words reach the others in one of two forms. They are exchanged in one round either way.

    gather    everybody hears everybody: each rank sends its words n − 1 times
    scatter   rank j sums the j-th range of coordinates for all: each rank sends every other its part of a range, then a reply about its own range.
              2(n−1)/n times the words where a reply is as small as they are (a quantizer without feedback, EF21-BC);
              where it must be exact, up to eight bytes a number that is not zero, which never is more than all the
              words together
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from tacit.compression.coding.ranges import bounds_of, parting, split
from tacit.compression.compressor import Compressed, Compressor
from tacit.compression.feedback.feedback import (
    Coder,
    Feedback,
    FeedbackState,
    SummableFeedback,
    Update,
    UpdateWithStatistics,
)
from tacit.core.worker import Worker
from tacit.errors import BadMessage, NotFinite, nearest, require

Aggregate = Literal["auto", "gather", "scatter"]
_FORMS: Final = ("auto", "gather", "scatter")
_HEADERS_BYTES: Final = 120
"""Of a message within a ``Update``: what it costs to send one message more."""


@dataclass(frozen=True)
class CompressedMean:
    """How ranks tell each other the mean of their vectors."""

    compressor: Compressor
    feedback: Feedback
    aggregate: Aggregate = "auto"  # "auto": whichever form sends fewer bytes, by sizes that all ranks know beforehand

    def __post_init__(self) -> None:
        compressor, feedback, aggregate = self.compressor, self.feedback, self.aggregate
        require(
            isinstance(compressor, Compressor),
            f"compressor={compressor!r} must be a compressor such as TopK(fraction=0.01).",
        )
        require(
            isinstance(feedback, Feedback),
            f"feedback={feedback!r} must be a feedback such as EF21(); NoFeedback() is none.",
        )
        feedback.check(compressor)
        if aggregate not in _FORMS:
            raise ValueError(f"aggregate={aggregate!r} is unknown{nearest(str(aggregate), _FORMS)}")
        if aggregate == "scatter":
            require(
                isinstance(feedback, SummableFeedback),
                f'aggregate="scatter" needs a feedback that goes by the sum of all words, and {feedback} needs each rank\'s; use "gather".',
            )
            require(
                all(parting(part, 1, 4) is not None for part in (compressor, *_masters(feedback))),
                f'aggregate="scatter" cannot go with {compressor} and {feedback}: a message cannot be cut by coordinates; use "gather".',
            )

    def begin(self, worker: Worker) -> FeedbackState:
        """Return the memory before the first exchange, or raise where compressor and feedback do not fit the model."""
        self.feedback.scale(self.compressor, worker.parameters.numel())
        return self.feedback.begin(worker.rank, worker.size, worker.parameters)

    def take(
        self,
        worker: Worker,
        state: FeedbackState,
        vector: Tensor,
        weight: float,
        rate: float,
        what: str,
        statistics: Tensor | None = None,
    ) -> tuple[Tensor, Sequence[Update]]:
        """Return the mean of all ranks' ``vector`` as far as it was understood, the same on every rank, and what each
        rank sent beside it.

        ``rate`` multiplies the mean in the model. A vector with NaN or infinity is refused before anything is said or
        remembered; ``what`` names it. ``statistics`` travel to everybody as they are.
        """
        _require_finite(worker, vector, what)
        compressor, feedback = self.compressor, self.feedback
        coder = Coder(
            compressor,
            worker.random,
            worker.shared_random,
            vector.numel(),
            vector.dtype,
            vector.device,
            worker.layout.shapes,
            feedback.scale(compressor, vector.numel()),
        )
        own = feedback.encode(state, vector, weight, rate, coder)
        if statistics is not None:
            own = UpdateWithStatistics(own.weight, own.body, own.is_fresh, statistics)
        if isinstance(feedback, SummableFeedback) and self.form(worker.size, coder) == "scatter":
            mean, said = self._scatter(worker, feedback, state, own, rate, coder)
        else:
            said = worker.network.all_gather(own)
            _check_kind(said, type(own))
            mean = feedback.decode(state, said, rate, coder)
        worker.report_total_weight(sum(one.weight for one in said))
        if state.master_bytes and worker.rank == 0:
            worker.note("broadcast_bytes", state.master_bytes)
        return mean.to(vector.dtype), said

    def form(self, size: int, coder: Coder) -> Aggregate:
        """Return "gather" or "scatter".

        What decides is nominal and known to all: number of ranks, length of the vector, compressor, feedback.
        """
        if self.aggregate != "auto" or size == 1:
            return "gather" if size == 1 else self.aggregate
        words = parting(self.compressor, coder.dimension, coder.dtype.itemsize)
        if words is None or not isinstance(self.feedback, SummableFeedback):
            return "gather"
        replies_bytes = self.feedback.reply_bytes(words, size, coder)
        if replies_bytes is None:
            return "gather"
        scattered_bytes = (words.size_bytes + replies_bytes) / size + 2 * _HEADERS_BYTES
        return "scatter" if scattered_bytes < words.size_bytes + _HEADERS_BYTES else "gather"

    def _scatter(
        self, worker: Worker, feedback: SummableFeedback, state: FeedbackState, own: Update, rate: float, coder: Coder
    ) -> tuple[Tensor, Sequence[Update]]:
        words = parting(self.compressor, coder.dimension, coder.dtype.itemsize)
        assert words is not None
        bounds = bounds_of(coder.dimension, worker.size, words.multiple)
        parts = split(own.message, bounds) if own.body else []
        said = worker.network.all_to_all([own.about(part) for part in parts] if parts else [own] * worker.size)
        _check_kind(said, type(own))
        begin, end = bounds[worker.rank : worker.rank + 2]
        reply = feedback.reply(state, said, begin, coder.of_range(end - begin))
        replies = worker.network.all_gather(reply, continues=True)
        _check_kind(replies, Compressed)
        for place, one in enumerate(replies):
            one.of_length(bounds[place + 1] - bounds[place])
        return feedback.resolve(state, own, said, replies, rate, coder), said


def statistics_of(said: Sequence[Update], own: Tensor) -> Tensor:
    """Return every rank's statistics, a row each in float64; ``own`` says how long they are."""
    rows = [one.statistics for one in said if isinstance(one, UpdateWithStatistics)]
    if len(rows) != len(said) or any(row.shape != own.shape for row in rows):
        raise BadMessage(f"statistics of other lengths came where each rank sends {own.numel()} numbers.")
    return torch.stack([row.double().cpu() for row in rows])


def weighted_mean(rows: Tensor, weights: Sequence[float], rank: int) -> list[float]:
    """Return Σ w_i row_i / Σ w_i; where nobody has any weight, everybody keeps its own."""
    total = sum(weights)
    shares = rows.new_tensor(weights) / total if total > 0 else torch.eye(len(rows), dtype=rows.dtype)[rank]
    return [float(value) for value in (shares.unsqueeze(1) * rows).sum(0)]


def _masters(feedback: Feedback) -> list[Compressor]:
    master = getattr(feedback, "master", None)
    return [] if master is None else [master]


def _check_kind(messages: Sequence[object], kind: type) -> None:
    for message in messages:
        if not isinstance(message, kind):
            raise BadMessage(f"a {type(message).__name__} came where a {kind.__name__} was expected.")


def _require_finite(worker: Worker, vector: Tensor, what: str) -> None:
    if bool(vector.sum().isfinite()):  # a finite sum has finite terms
        return
    for name, part in worker.layout.split(vector).items():
        wrong = part[~part.isfinite()]
        if wrong.numel():
            raise NotFinite(worker.rank, worker.step + 1, float(wrong[0]), f"{what} of {name}")
