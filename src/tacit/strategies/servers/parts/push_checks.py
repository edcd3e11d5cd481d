"""Checks of what learners send: content that does not fit is refused before it changes the server's state."""

from __future__ import annotations

import math
from typing import Final

from torch import Tensor

from tacit.core.network import SERVER
from tacit.core.worker import Server
from tacit.errors import BadMessage
from tacit.strategies.servers.messages import (
    CheckpointRequest,
    ModelRequest,
    ServerLeave,
    ServerPush,
    ToServer,
    ToShards,
)
from tacit.strategies.vector_checks import has_wrong_numbers

_LARGEST: Final = 1e12
"""Largest weight and learning rate of a push. With larger ones an update overflows."""


def check_sender(source: int, message: ToServer, server: Server) -> None:
    """Raise ``BadMessage`` unless ``source`` may send a message of this kind to ``server``."""
    is_learners = isinstance(message, ServerPush | ModelRequest | ServerLeave) and 0 <= source < server.size
    is_leaders = isinstance(message, ToShards | ServerLeave) and server.shard > 0 and source == SERVER
    is_keeper = isinstance(message, CheckpointRequest) and server.shard == 0 and source == 0
    if not (is_learners or is_leaders or is_keeper):
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
    if has_wrong_numbers(push.body):
        raise BadMessage(f"learner {source} pushed a gradient that contains NaN or infinity.")
