"""Outgoing messages: one socket to each peer, and the window of what the kernel has not taken yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from tacit.messages import Bytes
from tacit.runtime.curve import Keys, guard_sender
from tacit.runtime.directory import Entry

_WINDOW_MESSAGES: Final = 64
"""Messages to one peer that may wait before ``send`` from a hook blocks."""
_WINDOW_BYTES: Final = 256 * 2**20
"""Bytes of one sender's large messages that may wait before ``send`` from a hook blocks, and before the next handler starts."""
_COPY_BYTES: Final = 2**16
"""Frames up to this size are copied by zmq, which is cheaper than to be told when they are sent."""
_CONNECT_ATTEMPTS: Final = 20
"""A peer binds before it publishes its address: one that refuses this often (100 ms apart) died before we met."""

Frames = Sequence[Bytes]


class Window:
    """The large frames of one sender that the kernel has not taken yet."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._under_way: list[tuple[zmq.MessageTracker, int]] = []

    def add(self, tracker: zmq.MessageTracker, size_bytes: int) -> None:
        with self._lock:
            self._under_way.append((tracker, size_bytes))

    @property
    def is_full(self) -> bool:
        if not self._under_way:
            return False
        with self._lock:
            self._under_way = [(tracker, size) for tracker, size in self._under_way if not tracker.done]
            return sum(size for _, size in self._under_way) >= _WINDOW_BYTES


class Outlet:
    """The way to one peer. Sends go straight from the calling thread to the socket, under its lock."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], entry: Entry, mine: Keys, window: Window) -> None:
        self._lock, self._window = Lock(), window
        self._line: deque[Frames] = deque()  # of handlers, which may not block
        self._refusals = 0
        self.gone_s: float | None = None  # since when; None: it is there
        self.said_goodbye = self.answered_goodbye = False  # to us; ours
        self._socket = context.socket(zmq.PUSH)
        self._socket.linger = 0
        self._socket.sndhwm = _WINDOW_MESSAGES
        self._socket.copy_threshold = _COPY_BYTES
        # A host that vanishes says nothing; the kernel asks. zmq's own heartbeats would take a peer that reads nothing for dead.
        self._socket.tcp_keepalive, self._socket.tcp_keepalive_idle = 1, 10
        self._socket.tcp_keepalive_intvl, self._socket.tcp_keepalive_cnt = 5, 3
        guard_sender(self._socket, mine, entry.public_key)
        self._events = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED)
        self._socket.connect(entry.url)

    def offer(self, frames: Frames, *, may_queue: bool) -> bool:
        """Send ``frames`` if there is room, else put them in line or return False. For a peer that is gone they are dropped."""
        with self._lock:
            if self.gone_s is not None:
                return True
            self._send_line()
            if not self._line and (may_queue or not self._window.is_full) and self._send(frames):
                return True
            if may_queue:
                self._line.append(frames)
            return may_queue

    @property
    def in_line(self) -> int:
        """Replies of handlers that wait for room."""
        return len(self._line)

    def send_line(self) -> None:
        """Send what handlers left behind, as far as there is room."""
        with self._lock:
            self._send_line()

    def depart(self, farewell: Frames, now_s: float) -> None:
        """The peer said goodbye: it reads nothing any more but the answer to that."""
        with self._lock:
            self.said_goodbye, self.gone_s = True, self.gone_s or now_s
            if not self._socket.closed:
                self._line.clear()
                if not self._send(farewell):
                    self._line.append(farewell)

    def look(self, now_s: float) -> None:
        """Notice whether the peer is lost: a connection that broke may have swallowed messages, so it is not taken up again."""
        while not self._events.closed and self._events.poll(0):
            event = recv_monitor_message(self._events)["event"]
            self._refusals += event == zmq.EVENT_CONNECT_RETRIED
            if event == zmq.EVENT_DISCONNECTED or self._refusals >= _CONNECT_ATTEMPTS:
                with self._lock:
                    self.gone_s = self.gone_s or now_s
                    self._line.clear()
                    self._socket.disable_monitor()
                    self._events.close(linger=0)
                    self._socket.close(linger=0)

    def _send_line(self) -> None:
        while self._line and self._send(self._line[0]):
            self._line.popleft()

    def _send(self, frames: Frames) -> bool:
        try:
            for place, frame in enumerate(frames, 1):  # only the first can find the queue full
                flags = zmq.NOBLOCK | (zmq.SNDMORE if place < len(frames) else 0)
                if len(frame) <= _COPY_BYTES:
                    self._socket.send(frame, flags)
                else:
                    self._window.add(self._socket.send(frame, flags, copy=False, track=True), len(frame))
        except zmq.Again:
            return False
        return True
