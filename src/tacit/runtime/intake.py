"""Incoming messages: the socket that anybody can connect to, and what is believed of the bytes that come."""

from __future__ import annotations

import hmac
import logging
import struct
from collections.abc import Collection
from typing import Final, NamedTuple

import zmq

from tacit.errors import BadMessage
from tacit.messages import Message, unpack_frames
from tacit.runtime.curve import Keys, guard_receiver

MESSAGE, GOODBYE, FAREWELL = range(3)
"""Why somebody writes. A goodbye is the last a peer says; it leaves when everybody has answered with a farewell."""
_STAMP: Final = struct.Struct("<16siB")
_QUEUE_MESSAGES: Final = 16
"""Messages of one sender that zmq reads ahead; then the sender is pushed back."""
_log = logging.getLogger(__name__)


class Stamped(NamedTuple):
    """What came: from whom, why, and the message where it is one."""

    source: int
    purpose: int
    message: Message | None


def stamp(token: bytes, source: int, purpose: int = MESSAGE) -> bytes:
    """Return what stands before the message's first frame: token · source i32 · purpose u8."""
    return _STAMP.pack(token, source, purpose)


class Intake:
    """A bound PULL socket: whoever connects can hear nothing, and is not heard without the token. Used by one thread at a time."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], host: str, token: bytes, peers: Collection[int], keys: Keys
    ) -> None:
        self._token, self._peers = token, peers
        self.bad_messages = 0
        self._socket = context.socket(zmq.PULL)
        self._socket.rcvhwm = _QUEUE_MESSAGES
        self._wait_ms = self._socket.rcvtimeo = 0
        guard_receiver(self._socket, keys)
        self._socket.bind(f"tcp://{host}:*")
        self.url = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def read(self, wait_s: float) -> Stamped | None:
        """Return the next message, None if none comes within ``wait_s`` or what comes is not to be believed."""
        if (wait_ms := int(wait_s * 1e3)) != self._wait_ms:
            self._wait_ms = self._socket.rcvtimeo = wait_ms
        try:
            frames = [self._socket.recv(copy=False)]
        except zmq.Again:
            return None
        while frames[-1].more:
            frames.append(self._socket.recv(copy=False))
        frames.insert(0, frames.pop())  # the message's first frame, with the stamp, comes last
        try:
            return self._open([frame.buffer for frame in frames])
        except BadMessage as error:
            self._drop(str(error))
            return None

    def _open(self, frames: list[memoryview]) -> Stamped:
        head = frames[0]
        if len(head) < _STAMP.size:
            raise BadMessage(f"{len(head)} bytes are shorter than a stamp of {_STAMP.size}.")
        token, source, purpose = _STAMP.unpack_from(head)
        if not hmac.compare_digest(token, self._token):
            raise BadMessage("it does not carry this run's token.")
        if source not in self._peers or purpose > FAREWELL:
            raise BadMessage(f"source {source} and purpose {purpose} are nobody's.")
        if purpose != MESSAGE:
            return Stamped(source, purpose, None)
        frames[0] = head[_STAMP.size :]
        return Stamped(source, purpose, unpack_frames(frames))

    def _drop(self, why: str) -> None:
        self.bad_messages += 1
        if self.bad_messages == 1:
            _log.warning("dropped bytes that came to %s: %s Further ones are only counted.", self.url, why)
