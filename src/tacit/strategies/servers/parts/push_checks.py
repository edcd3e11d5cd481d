"""Checks of what learners send: content that does not fit is refused before it changes the server's state."""

from __future__ import annotations

import math
from typing import Final

from torch import Tensor

from tacit.core.network import SERVER, shard_at
from tacit.core.worker import Server
from tacit.errors import BadMessage
from tacit.strategies.servers.messages import (
    CheckpointRequest,
    ModelRequest,
    ServerLeave,
    ServerPush,
    ShardBatch,
    ShardReport,
    ToServer,
)
from tacit.strategies.vector_checks import is_too_large

_LARGEST: Final = 1e12
"""Largest weight and learning rate of a push. With larger ones an update overflows."""


def check_sender(source: int, message: ToServer, server: Server, shards: int) -> None:
    """Raise ``BadMessage`` unless ``source`` may send this message to ``server``."""
    match message:
        case ServerPush() | ModelRequest():
            may_send = 0 <= source < server.size
        case ServerLeave():
            may_send = 0 <= source < server.size or (server.shard > 0 and source == SERVER)
        case ShardBatch():
            may_send = server.shard > 0 and source == SERVER
            may_send = may_send and all(0 <= rank < server.size for rank in message.ranks.tolist())
        case CheckpointRequest():
            may_send = source == (0 if server.shard == 0 else SERVER)
        case ShardReport():
            may_send = server.shard == 0 and source < 0 and 0 < shard_at(source) < shards
            may_send = may_send and 0 <= message.rank < server.size
        case _:
            may_send = False
    if not may_send:
        raise BadMessage(f"a {type(message).__name__} arrived from {source}, which may not send it.")


def check_push(source: int, push: ServerPush, server: Server, version: int | None) -> None:
    """Raise ``BadMessage`` unless the numbers of ``push`` are possible. version: of the model; None: of another shard.

    Gradients that a simulation has not evaluated yet are not checked: the check would evaluate them.
    """
    if push.version < 0 or push.number < 0 or (version is not None and push.version > version):
        raise BadMessage(f"learner {source} pushed a gradient at version {push.version} of a model at {version}.")
    for name, value in (("weight", push.weight), ("rate", push.rate)):
        if not (math.isfinite(value) and 0 <= value <= _LARGEST):
            raise BadMessage(f"learner {source} pushed a gradient with {name}={value}.")
    if type(push.body) is not Tensor:
        return
    if push.body.dtype != server.parameters.dtype:
        raise BadMessage(f"a gradient of {push.body.dtype} arrived for parameters of {server.parameters.dtype}.")
    check_gradient(source, push.body, push.rate)


def check_gradient(source: int, gradient: Tensor, rate: float) -> None:
    """Raise ``BadMessage`` if ``gradient``, uncompressed, contains numbers that make an update overflow."""
    if type(gradient) is Tensor and not gradient.is_meta and is_too_large(gradient, rate):
        raise BadMessage(f"learner {source} pushed a gradient that contains NaN, infinity or too large numbers.")
