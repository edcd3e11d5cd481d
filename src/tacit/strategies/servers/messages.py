"""Messages between the learners and the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tacit.compression.feedback.updates import Update
from tacit.core.messages import Message
from tacit.core.weights import has_data
from tacit.errors import BadMessage


@dataclass(frozen=True)
class ToServer(Message, wire="server"):
    """Base class of the messages that a server receives. It takes them in the order of arrival."""


@dataclass(frozen=True)
class ServerPush(ToServer, wire="push"):
    """A learner's gradient, with the numbers that the server needs to use it.

    A learner that does not wait for an answer (K-batch-sync) would otherwise fill a slow link with late gradients.
    """

    one_under_way: ClassVar[bool] = True

    number: int  # increases from push to push, over all lives of a learner
    version: int  # of the model that the gradient was computed at: its number of updates
    rate: float  # the learner's learning rate
    weight: float  # number of samples, relative to the nominal batch
    loss: float  # mean loss of the mini-batches since the last push; NaN if it was not observed
    body: Tensor | Update  # the gradient, uncompressed or compressed

    @property
    def is_skipped(self) -> bool:
        """Whether the learner skipped this step, so that the gradient must not be used."""
        return not has_data(self.weight)


@dataclass(frozen=True)
class ModelRequest(ToServer, wire="ask"):
    """A learner's request for the model: to evaluate it, or (``is_joining``) to start computing at it."""

    is_joining: bool = False


@dataclass(frozen=True)
class ServerLeave(ToServer, wire="leave"):
    """From a learner: no push follows. From the first shard to the others: no ``ShardBatch`` follows."""


@dataclass(frozen=True)
class ToShards(ToServer, wire="shards"):
    """Base class of what the first shard sends to the others, which do it in this order."""


@dataclass(frozen=True)
class ShardBatch(ToShards, wire="batch"):
    """The pushes of the next update."""

    ranks: Tensor
    numbers: Tensor

    def __post_init__(self) -> None:
        for name, value in (("ranks", self.ranks), ("numbers", self.numbers)):
            if value.dtype != torch.int64 or value.dim() != 1 or len(value) != len(self.ranks):
                raise ValueError(f"{name} must be a vector of int64, with one entry per push.")


@dataclass(frozen=True)
class ShardReport(ToServer, wire="has"):
    """A push that has arrived at a shard, which tells the first one. An update uses pushes that all shards have."""

    rank: int
    number: int


@dataclass(frozen=True)
class CheckpointRequest(ToShards, wire="keep"):
    """A request to write the server's part of a checkpoint: from worker 0 to the first shard, which sends it on.

    It follows the updates that the first shard has announced, so all shards write at the same version.
    """

    folder: str


@dataclass(frozen=True)
class PartWritten(Message, wire="kept"):
    """A shard's answer to worker 0: its part at ``version`` is written, or why not."""

    version: int
    failure: str = ""


@dataclass(frozen=True)
class ServedModel(Message, wire="model"):
    """The server's part of the model after ``version`` updates, for a learner to compute at.

    body: the parameters, or their change in compressed form. An empty tensor: continue at the model you have.
    """

    version: int
    body: Tensor | Update


@dataclass(frozen=True)
class ModelReply(Message, wire="show"):
    """The server's part of the model, for evaluation only."""

    body: Tensor


@dataclass(frozen=True)
class ServerRestart(Message, wire="redo"):
    """A ``ServedModel`` that cancels the step in progress: its gradient is no longer needed."""

    version: int
    body: Tensor | Update


Pushed = tuple[int, ServerPush]
"""A learner's rank and its push."""


def uncompressed(body: Tensor | Update) -> Tensor:
    """Return ``body`` if it is not compressed; otherwise raise ``BadMessage``."""
    if not isinstance(body, Tensor):
        raise BadMessage(f"a {type(body).__name__} arrived where an uncompressed tensor was expected.")
    return body
