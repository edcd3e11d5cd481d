"""Feedback: what is compressed, and what is remembered so that compression loses nothing for good.

Out of scope: EF21-PAGE, which evaluates each mini-batch at two models, and EF21-Prox, whose proximal step belongs to
the optimizer.
"""

from tacit.compression.feedback.codec import Codec, Total
from tacit.compression.feedback.ef21 import EF21
from tacit.compression.feedback.ef21_bidirectional import EF21Bidirectional
from tacit.compression.feedback.ef21_plus import EF21Plus
from tacit.compression.feedback.ef21_variants import EF21HeavyBall, EF21Momentum, EF21Partial, EF21Weighted
from tacit.compression.feedback.error_feedback import ErrorFeedback, NoFeedback
from tacit.compression.feedback.feedback import Feedback
from tacit.compression.feedback.state import FeedbackState
from tacit.compression.feedback.summable import SummableFeedback
from tacit.compression.feedback.updates import Update, UpdateWithStatistics

__all__ = [
    "EF21",
    "Codec",
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
    "Total",
    "Update",
    "UpdateWithStatistics",
]
