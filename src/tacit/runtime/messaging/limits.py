"""Limits on what strangers can make an endpoint hold: bytes of a frame, and connections that do not speak."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from torch import nn

from tacit.core.message_fields import Bytes
from tacit.core.messages import Message
from tacit.errors import TacitError

if TYPE_CHECKING:  # a run without messages does not import zmq
    import zmq

LEAST_LIMIT_BYTES: Final = 2**24
"""Limit of a frame in runs with small models."""
_BYTES_PER_NUMBER: Final = 16
"""The most that a message holds for each number of a model: an index and a value of eight bytes each."""
_DESCRIPTORS: Final = 2**14
"""Open files that a process asks for, so that thousands of held connections leave room for a peer."""
_BACKLOG: Final = 2**12
_HANDSHAKE_MS: Final = 5000
"""A connection that has not said within this time how it wants to speak is closed. A peer connects again."""


def frame_limit_bytes(model: nn.Module) -> int:
    """Return the size of the largest frame that a run with ``model`` can have."""
    numbers = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    return max(LEAST_LIMIT_BYTES, _BYTES_PER_NUMBER * numbers + 2**20)


def check_frames(message: Message, frames: Iterable[Bytes], largest_bytes: int) -> None:
    """Raise if a receiver would refuse ``frames``."""
    size_bytes = max(map(len, frames))
    if size_bytes > largest_bytes:
        raise TacitError(
            f"a {type(message).__name__} with a field of {size_bytes} bytes is larger than any message of this run may "
            f"be, {largest_bytes} bytes for this model; send it in parts."
        )


def limit_connections(socket: zmq.Socket[bytes], largest_bytes: int) -> None:
    """Let a socket, before it is bound, refuse large frames at once, and hold many connections."""
    allow_descriptors()
    socket.maxmsgsize = largest_bytes
    socket.backlog = _BACKLOG
    socket.handshake_ivl = _HANDSHAKE_MS


def allow_descriptors() -> None:
    """Let this process open as many files as thousands of connections need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
