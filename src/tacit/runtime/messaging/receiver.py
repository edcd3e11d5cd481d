"""Receiver of messages: the bound socket, and the checks that incoming bytes must pass."""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Collection, Iterator
from enum import IntEnum
from time import perf_counter
from typing import Final, NamedTuple

import zmq

from tacit.core.message_reading import unpack_frames
from tacit.core.messages import Message
from tacit.errors import BadMessage
from tacit.runtime.messaging.limits import limit_connections
from tacit.runtime.messaging.security import Credentials, guard_receiver


class Purpose(IntEnum):
    """Purpose of a first frame. A peer sends GOODBYE last, and leaves when all peers have acknowledged it.

    LOST: the sender has lost its connection to the receiver, has gone on without it, and drops what it sends.
    """

    MESSAGE = 0
    LARGE_MESSAGE = 1  # several frames
    GOODBYE = 2
    GOODBYE_ACK = 3
    LOST = 4


Incoming = tuple[int, Message | Purpose]
"""Source and message, or source and one of the other purposes."""

_STAMP: Final = struct.Struct("<16siBI")
_LARGE_STAMP: Final = struct.Struct("<16siBI103x")
"""zmq passes the first 8 KB to the kernel separately, then the rest of a large tensor. After a first frame of 54 to 68
bytes the rest begins up to 15 bytes before a page, and copying it takes twice as long (4 KB aliasing). The padding of
this stamp makes the first frame longer.
"""
_PURPOSES: Final = tuple(Purpose)
_LARGE: Final = int(Purpose.LARGE_MESSAGE)
_AWAKE_S: Final = 200e-6
"""How long a waiting thread polls before it sleeps: sleep and wake-up take longer than a small message travels."""
_NOW: Final = int(zmq.NOBLOCK)
_yield_processor: Final = getattr(os, "sched_yield", lambda: None)
_QUEUE_MESSAGES: Final = 16
"""Messages of one sender that zmq reads ahead; then it stops the sender."""
_log = logging.getLogger(__name__)


def stamp(token: bytes, source: int, purpose: Purpose = Purpose.MESSAGE, life: int = 1) -> bytes:
    """Return the header of a message's first frame: token · source i32 · purpose u8 · life of the source u32."""
    return (_LARGE_STAMP if purpose == Purpose.LARGE_MESSAGE else _STAMP).pack(token, source, purpose, life)


class Stamps(NamedTuple):
    """Headers of the messages to one peer."""

    message: bytes
    large_message: bytes
    goodbye: bytes
    goodbye_ack: bytes
    lost: bytes

    @classmethod
    def to(cls, peer: int, peer_life: int, source: int, credentials: Credentials) -> Stamps:
        token = credentials.token_to(peer, peer_life)
        return cls(*(stamp(token, source, purpose, credentials.life) for purpose in Purpose))


class Receiver:
    """A bound PULL socket. A process that connects receives nothing, and its messages count only with the token.

    Used by one thread at a time. largest_bytes: of a frame; zmq closes a connection that announces a larger one.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        host: str,
        peers: Collection[int],
        credentials: Credentials,
        largest_bytes: int,
    ) -> None:
        self._credentials, self._peers = credentials, frozenset(peers)
        self.bad_messages = 0
        self.life = 1  # of the sender of the message read last
        self._socket = context.socket(zmq.PULL)
        self._socket.rcvhwm = _QUEUE_MESSAGES
        limit_connections(self._socket, largest_bytes)
        self._wait_s, self._is_more = -1.0, False  # whether frames of the message read last remain
        guard_receiver(self._socket, credentials.keys)
        self._socket.bind(f"tcp://{host}:*")
        self.url = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def read(self, wait_s: float, *, eagerly: bool = False) -> Incoming | None:
        """Return the next message; None if none arrives within ``wait_s``, or one that fails the checks.

        eagerly: poll for a moment before sleeping, and yield the processor to other threads meanwhile.
        """
        if wait_s != self._wait_s:
            self._wait_s, self._socket.rcvtimeo = wait_s, int(wait_s * 1e3)
        head = self._receive_soon() if eagerly else None
        try:
            if head is None:
                head = self._socket.recv(copy=False)
            self._is_more = head.more  # cheaper than a query of the socket
            return self._open(head.bytes)
        except zmq.Again:
            return None
        except BadMessage as error:
            for _ in self:  # its remaining frames
                pass
            self.drop(str(error))
            return None

    def _receive_soon(self) -> zmq.Frame | None:
        """Return a first frame if one arrives soon."""
        receive, end_s = self._socket.recv, perf_counter() + _AWAKE_S
        while True:
            try:
                return receive(_NOW, copy=False)
            except zmq.Again:
                if perf_counter() > end_s:
                    return None
                _yield_processor()

    def _open(self, head: bytes) -> Incoming:
        try:
            token, source, code, self.life = _STAMP.unpack_from(head)
        except struct.error:
            raise BadMessage(f"{len(head)} bytes are fewer than the header's {_STAMP.size}.") from None
        if source not in self._peers or code >= len(_PURPOSES):
            raise BadMessage(f"source {source} or purpose {code} is unknown.")
        if not self._credentials.is_token_of(token, source, self.life):
            raise BadMessage("it does not carry the token of its sender.")
        if not code:
            return source, unpack_frames(head, _STAMP.size)
        if code == _LARGE:
            return source, unpack_frames(head, _LARGE_STAMP.size, self)
        return source, _PURPOSES[code]

    def __iter__(self) -> Iterator[memoryview]:
        return self

    def __next__(self) -> memoryview:
        """Return the next frame of the message read last."""
        if not self._is_more:
            raise StopIteration
        frame = self._socket.recv(copy=False)
        self._is_more = frame.more
        return frame.buffer

    def drop(self, why: str) -> None:
        """Count a message that cannot be used; log the first one."""
        self.bad_messages += 1
        if self.bad_messages == 1:
            _log.warning("dropped bytes received at %s: %s Further ones are only counted.", self.url, why)
