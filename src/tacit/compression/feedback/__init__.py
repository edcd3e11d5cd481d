"""Feedback: what is compressed, and what is remembered so that nothing is lost for good. Pure tensors: no worker, no
network.

Out of scope: EF21-PAGE, which evaluates each mini-batch at two models, and EF21-Prox, whose proximal step belongs to
the optimizer.
"""

from tacit.compression.feedback.ef21 import (
    EF21,
    EF21Bidirectional,
    EF21HeavyBall,
    EF21Momentum,
    EF21Partial,
    EF21Weighted,
)
from tacit.compression.feedback.ef21_plus import EF21Plus
from tacit.compression.feedback.error_feedback import ErrorFeedback, NoFeedback
from tacit.compression.feedback.feedback import (
    Coder,
    Feedback,
    FeedbackState,
    SummableFeedback,
    Update,
    UpdateWithStatistics,
)

__all__ = [
    "EF21",
    "Coder",
    "EF21Bidirectional",
    "EF21HeavyBall",
    "EF21Momentum",
    "EF21Partial",
    "EF21Plus",
    "EF21Weighted",
    "ErrorFeedback",
    "Feedback",
    "FeedbackState",
    "NoFeedback",
    "SummableFeedback",
    "Update",
    "UpdateWithStatistics",
]
