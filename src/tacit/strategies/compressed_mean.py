"""The mean of the ranks' vectors, said in compressed words: what ``CompressedGradient`` and compressed rounds of ``LocalSGD`` share."""

from __future__ import annotations

from torch import Tensor

from tacit.compression.compressor import Compressor
from tacit.errors import NotFinite, require
from tacit.feedback.feedback import Coder, Feedback, FeedbackState
from tacit.worker import Worker


def check(compressor: Compressor, feedback: Feedback) -> None:
    """Raise unless the two are what they should be; what depends on the model's size is found when a run begins."""
    require(
        isinstance(compressor, Compressor),
        f"compressor={compressor!r} must be a compressor such as TopK(fraction=0.01).",
    )
    require(
        isinstance(feedback, Feedback),
        f"feedback={feedback!r} must be a feedback such as EF21(); NoFeedback() is none.",
    )
    feedback.check(compressor)


def begin(worker: Worker, compressor: Compressor, feedback: Feedback) -> FeedbackState:
    """Return the memory before the first exchange, or raise where the two do not fit the model."""
    feedback.scale(compressor, worker.parameters.numel())
    return feedback.begin(worker.rank, worker.size, worker.parameters)


def compressed_mean(
    worker: Worker, state: FeedbackState, compressor: Compressor, feedback: Feedback, vector: Tensor, weight: float, rate: float,
    what: str,
) -> Tensor:  # fmt: skip
    """Return the mean of all ranks' ``vector`` as far as it was understood: bit for bit the same on every rank.

    ``rate`` multiplies it in the model. A vector with NaN or infinity is refused before anything is said or remembered; ``what`` names it.
    """
    _require_finite(worker, vector, what)
    coder = Coder(
        compressor, worker.random, worker.shared_random, vector.numel(), vector.dtype, vector.device,
        worker.layout.shapes, feedback.scale(compressor, vector.numel()),
    )  # fmt: skip
    said = worker.network.all_gather(feedback.encode(state, vector, weight, rate, coder))
    mean = feedback.decode(state, said, rate, coder)
    worker.weighed(sum(one.weight for one in said))
    if state.master_bytes and worker.rank == 0:
        worker.note("broadcast_bytes", state.master_bytes)
    return mean.to(vector.dtype)


def _require_finite(worker: Worker, vector: Tensor, what: str) -> None:
    if bool(vector.sum().isfinite()):  # a finite sum has finite terms
        return
    for name, part in worker.layout.split(vector).items():
        wrong = part[~part.isfinite()]
        if wrong.numel():
            raise NotFinite(worker.rank, worker.step + 1, float(wrong[0]), f"{what} of {name}")
