"""Outgoing messages: one socket to each peer, and what waits before them all."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Final
from weakref import ref

import zmq
from zmq.utils.monitor import recv_monitor_message

from tacit.core.message_fields import Bytes
from tacit.runtime.messaging.address_book import Address, AddressBook
from tacit.runtime.messaging.security import Keys, guard_sender

_WINDOW_MESSAGES: Final = 64
"""Messages to one peer that may wait before ``send`` from a hook blocks."""
_WINDOW_BYTES: Final = 256 * 2**20
"""Bytes of one sender's large messages that may wait before ``send`` from a hook blocks, and before the next handler
starts.
"""
_COPY_BYTES: Final = 2**19
"""Frames up to this size are copied by zmq, which is cheaper than to be told when they are sent."""
_SETTLE_S: Final = 0.1
"""A lost peer's last messages may still be on their way through zmq when its connection has already broken."""
_CONNECT_ATTEMPTS: Final = 20
"""A peer binds before it publishes its address: one that refuses this often (100 ms apart) died before we met."""

_LAST: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)

Frames = Sequence[Bytes]


class Window:
    """What one sender's outlets hold together: large frames that the kernel has not taken yet, and replies in line."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._under_way: list[tuple[ref[memoryview], int]] = []
        self._most_bytes = 0  # of those under way: some of them may have been sent
        self.in_line = 0

    def add(self, frame: memoryview) -> None:
        """Count a frame, of which only zmq keeps a reference, until zmq lets go of it."""
        with self._lock:
            self._under_way.append((ref(frame), len(frame)))
            self._most_bytes += len(frame)

    def line_up(self, replies: int) -> None:
        """Count so many replies more, or fewer."""
        with self._lock:
            self.in_line += replies

    @property
    def is_full(self) -> bool:
        return self._most_bytes >= _WINDOW_BYTES and self._count() >= _WINDOW_BYTES

    def _count(self) -> int:
        with self._lock:
            self._under_way = [(frame, size) for frame, size in self._under_way if frame() is not None]
            self._most_bytes = sum(size for _, size in self._under_way)
            return self._most_bytes


class Sender:
    """The way to one peer. Sends go straight from the calling thread to the socket, under its lock."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], entry: Address, mine: Keys, window: Window) -> None:
        self._lock, self._window = Lock(), window
        self._line: deque[Frames] = deque()  # of handlers, which may not block
        self._refusals = 0
        self.gone_s: float | None = None  # since when; None: it is there
        self.said_goodbye = self.answered_goodbye = False  # to us; ours
        self._socket = context.socket(zmq.PUSH)
        self._socket.linger = 0
        self._socket.sndhwm = _WINDOW_MESSAGES
        # A host that vanishes says nothing; the kernel asks. zmq's own heartbeats would take a peer that reads nothing
        # for dead.
        self._socket.tcp_keepalive, self._socket.tcp_keepalive_idle = 1, 10
        self._socket.tcp_keepalive_intvl, self._socket.tcp_keepalive_cnt = 5, 3
        guard_sender(self._socket, mine, entry.public_key)
        self._events = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED)
        self._socket.connect(entry.url)
        self._put = super(zmq.Socket, self._socket).send  # past pyzmq's wrapper for options that PUSH has not

    def offer(self, frames: Frames, *, may_queue: bool) -> bool:
        """Send ``frames`` if there is room, else put them in line or return False.

        For a peer that is gone they are dropped.
        """
        with self._lock:
            if self.gone_s is not None:
                return True
            if self._line:
                self._send_line()
            if not self._line and (may_queue or not self._window.is_full) and self._send(frames):
                return True
            if may_queue:
                self._line_up(frames)
            return may_queue

    def send_line(self) -> None:
        """Send what handlers left behind, as far as there is room."""
        with self._lock:
            self._send_line()

    def depart(self, farewell: Frames, now_s: float) -> None:
        """The peer said goodbye: it reads nothing any more but the answer to that."""
        with self._lock:
            self.said_goodbye, self.gone_s = True, self.gone_s or now_s
            if not self._socket.closed:
                self._clear_line()
                if not self._send(farewell):
                    self._line_up(farewell)

    def look(self, now_s: float) -> None:
        """Notice whether the peer is lost: a connection that broke may have swallowed messages, so it is not taken up
        again.
        """
        while not self._events.closed and self._events.poll(0):
            event = recv_monitor_message(self._events)["event"]
            self._refusals += event == zmq.EVENT_CONNECT_RETRIED
            if event == zmq.EVENT_DISCONNECTED or self._refusals >= _CONNECT_ATTEMPTS:
                with self._lock:
                    self.gone_s = self.gone_s or now_s
                    self._clear_line()
                    self._socket.disable_monitor()
                    self._events.close(linger=0)
                    self._socket.close(linger=0)

    def is_silent(self, now_s: float) -> bool:
        """Whether nothing more can come from this peer."""
        return self.gone_s is not None and (self.said_goodbye or now_s - self.gone_s > _SETTLE_S)

    def _line_up(self, frames: Frames) -> None:
        self._line.append(frames)
        self._window.line_up(1)

    def _send_line(self) -> None:
        while self._line and self._send(self._line[0]):
            self._line.popleft()
            self._window.line_up(-1)

    def _clear_line(self) -> None:
        self._window.line_up(-len(self._line))
        self._line.clear()

    def _send(self, frames: Frames) -> bool:
        more = len(frames)
        try:
            for frame in frames:  # only the first can find the queue full
                more -= 1
                if len(frame) <= _COPY_BYTES:
                    self._put(frame, _MORE if more else _LAST)
                else:
                    held = frame if isinstance(frame, memoryview) else memoryview(frame)
                    self._put(held, _MORE if more else _LAST, False)
                    self._window.add(held)
        except zmq.Again:
            return False
        return True


class Senders:
    """The ways to all peers, opened when they are first needed."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], directory: AddressBook, peers: Sequence[int], mine: Keys
    ) -> None:
        self._context, self._directory, self._peers, self._mine = context, directory, tuple(peers), mine
        self._lock, self.window, self.is_complete = Lock(), Window(), False
        self.open: dict[int, Sender] = {}  # never changed in place: others iterate over it

    def open_all(self, timeout_s: float) -> None:
        """Connect to everybody, waiting for those that have not published their address yet."""
        self._connect(self._directory.wait_for(self._peers, timeout_s))
        self.is_complete = True

    def open_published(self) -> None:
        """Connect to those whose address is known."""
        self._connect({peer: entry for peer in self._peers if (entry := self._directory.find(peer))})

    def to(self, peer: int) -> Sender | None:
        """Return the way to ``peer``; None if it is not open, and the peer not to be found."""
        if peer not in self.open and (entry := self._directory.find(peer)) is not None:
            self._connect({peer: entry})
        return self.open.get(peer)

    def look_after(self, now_s: float) -> None:
        """Send what waits in line, and notice who is lost."""
        for outlet in self.open.values():
            outlet.send_line()
            outlet.look(now_s)

    def _connect(self, entries: dict[int, Address]) -> None:
        with self._lock:
            new = entries.keys() - self.open.keys()
            made = {p: Sender(self._context, entries[p], self._mine, self.window) for p in sorted(new)}
            self.open = {**self.open, **made}
