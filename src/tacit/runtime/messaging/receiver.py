"""Incoming messages: the socket that anybody can connect to, and what is believed of the bytes that come."""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Collection, Iterator
from enum import IntEnum
from hmac import compare_digest
from time import perf_counter
from typing import Final

import zmq

from tacit.core.message_reading import unpack_frames
from tacit.core.messages import Message
from tacit.errors import BadMessage
from tacit.runtime.messaging.security import Keys, guard_receiver


class Purpose(IntEnum):
    """Why somebody writes. A goodbye is the last a peer says; it leaves when everybody has answered with a farewell."""

    MESSAGE = 0
    LARGE_MESSAGE = 1  # of several frames
    GOODBYE = 2
    FAREWELL = 3


Came = tuple[int, Message | Purpose]
"""From whom, and the message; a goodbye and a farewell are all that is not one."""

_STAMP: Final = struct.Struct("<16siB")
_LARGE_STAMP: Final = struct.Struct("<16siB107x")
"""zmq hands the first 8 KB to the kernel by themselves, and then what is left of a large tensor. Behind a first frame
of 54 to 68 bytes that begins up to 15 bytes before a page, and to copy it takes twice as long (4 KB aliasing), so the
stamp makes that frame longer."""
_PURPOSES: Final = tuple(Purpose)
_LARGE: Final = int(Purpose.LARGE_MESSAGE)
_AWAKE_S: Final = 200e-6
"""How long one who waits for a message stays awake: to fall asleep and be woken takes longer than a small message is
under way.
"""
_NOW: Final = int(zmq.NOBLOCK)
_give_way: Final = getattr(os, "sched_yield", lambda: None)
_QUEUE_MESSAGES: Final = 16
"""Messages of one sender that zmq reads ahead; then the sender is pushed back."""
_log = logging.getLogger(__name__)


def stamp(token: bytes, source: int, purpose: Purpose = Purpose.MESSAGE) -> bytes:
    """Return what stands at the head of a message's first frame: token · source i32 · purpose u8."""
    return (_LARGE_STAMP if purpose == Purpose.LARGE_MESSAGE else _STAMP).pack(token, source, purpose)


class Receiver:
    """A bound PULL socket: whoever connects can hear nothing, and is not heard without the token.

    Used by one thread at a time.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], host: str, token: bytes, peers: Collection[int], keys: Keys
    ) -> None:
        self._token, self._peers = token, frozenset(peers)
        self.bad_messages = 0
        self._socket = context.socket(zmq.PULL)
        self._socket.rcvhwm = _QUEUE_MESSAGES
        self._wait_s, self._is_more = -1.0, False  # there are frames that belong to the one read last
        guard_receiver(self._socket, keys)
        self._socket.bind(f"tcp://{host}:*")
        self.url = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def read(self, wait_s: float, *, eagerly: bool = False) -> Came | None:
        """Return the next message, None if none comes within ``wait_s`` or what comes is not to be believed.

        ``eagerly`` is for one who has nothing else to do: it stays awake for a moment, giving way to everybody else.
        """
        if wait_s != self._wait_s:
            self._wait_s, self._socket.rcvtimeo = wait_s, int(wait_s * 1e3)
        head = self._receive_soon() if eagerly else None
        try:
            if head is None:
                head = self._socket.recv(copy=False)
            self._is_more = head.more  # sooner than to ask the socket
            return self._open(head.bytes)
        except zmq.Again:
            return None
        except BadMessage as error:
            for _ in self:  # what belongs to it
                pass
            self._drop(str(error))
            return None

    def _receive_soon(self) -> zmq.Frame | None:
        """Return a first frame if one comes soon."""
        receive, end_s = self._socket.recv, perf_counter() + _AWAKE_S
        while True:
            try:
                return receive(_NOW, copy=False)
            except zmq.Again:
                if perf_counter() > end_s:
                    return None
                _give_way()

    def _open(self, head: bytes) -> Came:
        try:
            token, source, code = _STAMP.unpack_from(head)
        except struct.error:
            raise BadMessage(f"{len(head)} bytes are shorter than a stamp of {_STAMP.size}.") from None
        if not compare_digest(token, self._token):
            raise BadMessage("it does not carry this run's token.")
        if source not in self._peers or code >= len(_PURPOSES):
            raise BadMessage(f"source {source} and purpose {code} are nobody's.")
        if not code:
            return source, unpack_frames(head, _STAMP.size)
        if code == _LARGE:
            return source, unpack_frames(head, _LARGE_STAMP.size, self)
        return source, _PURPOSES[code]

    def __iter__(self) -> Iterator[memoryview]:
        return self

    def __next__(self) -> memoryview:
        """Return the next of the frames that belong to the one read last."""
        if not self._is_more:
            raise StopIteration
        frame = self._socket.recv(copy=False)
        self._is_more = frame.more
        return frame.buffer

    def _drop(self, why: str) -> None:
        self.bad_messages += 1
        if self.bad_messages == 1:
            _log.warning("dropped bytes that came to %s: %s Further ones are only counted.", self.url, why)
