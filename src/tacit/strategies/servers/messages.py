"""What learners and servers say to each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.compression.feedback.feedback import Update
from tacit.core.messages import Message
from tacit.errors import BadMessage


@dataclass(frozen=True)
class ToServer(Message, wire="server"):
    """Anything a server takes in the order in which it comes."""


@dataclass(frozen=True)
class ServerPush(ToServer, wire="push"):
    """A gradient, and what a server must know of it."""

    number: int  # of this learner's pushes, from 0
    version: int  # of the model it was taken at: updates behind it
    rate: float  # the learner's learning rate
    weight: float  # samples behind it, relative to the nominal batch
    loss: float  # of the mini-batches since the last push; NaN where nobody told it
    body: Tensor | Update  # the gradient, in full or compressed


@dataclass(frozen=True)
class ServerAsk(ToServer, wire="ask"):
    """Show me the model; or give it to me, for one who is joining and will compute with it."""

    is_joining: bool = False


@dataclass(frozen=True)
class ServerLeave(ToServer, wire="leave"):
    """I shall push nothing more; from the first shard to the others: and I shall decree nothing more."""


@dataclass(frozen=True)
class ServerDecree(ToServer, wire="batch"):
    """From the first shard to the others: the pushes that make up the next update."""

    ranks: Tensor
    numbers: Tensor

    def __post_init__(self) -> None:
        for name, value in (("ranks", self.ranks), ("numbers", self.numbers)):
            if value.dtype != torch.int64 or value.dim() != 1 or len(value) != len(self.ranks):
                raise ValueError(f"{name} must be whole numbers, as many as there are pushes.")


@dataclass(frozen=True)
class ServedModel(Message, wire="model"):
    """A server's part of the model after ``version`` updates, to compute with; in full, or what it changed by,
    compressed.
    """

    version: int
    body: Tensor | Update


@dataclass(frozen=True)
class ShownModel(Message, wire="show"):
    """The same for one who only looks."""

    body: Tensor


@dataclass(frozen=True)
class ServerRestart(Message, wire="redo"):
    """A new model, as in ``ServedModel``, for learners whose gradient is not needed any more."""

    version: int
    body: Tensor | Update


def in_full(body: Tensor | Update) -> Tensor:
    """Return a body that is not compressed, or raise ``BadMessage``."""
    if not isinstance(body, Tensor):
        raise BadMessage(f"a {type(body).__name__} came where numbers in full were expected.")
    return body
