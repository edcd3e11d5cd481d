"""Senders of messages: one socket to each peer, with a queue and a common window."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Final
from weakref import ref

import zmq
from zmq.utils.monitor import recv_monitor_message

from tacit.core.message_fields import Bytes
from tacit.runtime.messaging.address_book import AddressBook
from tacit.runtime.messaging.receiver import Stamps
from tacit.runtime.messaging.security import Address, Credentials, Keys, guard_sender

_WINDOW_MESSAGES: Final = 64
"""Messages to one peer that may wait before ``send`` from a hook blocks."""
_WINDOW_BYTES: Final = 256 * 2**20
"""Bytes of one sender's large messages that may wait before ``send`` from a hook blocks, and before the next handler
starts.
"""
_COPY_BYTES: Final = 2**19
"""Frames up to this size are copied by zmq, which is cheaper than a notification when they are sent."""
_LAST_MESSAGES_S: Final = 0.1
"""How long a lost peer's last messages may still be on their way through zmq after its connection has broken."""
_UNACKNOWLEDGED_MS: Final = 30_000
"""How long the network may take to acknowledge data before the connection counts as broken: a cut is noticed then, as
it is by probes where nothing is sent.
"""
_CONNECT_ATTEMPTS: Final = 20
"""Refused connections, 100 ms apart, after which a peer is lost: it binds before it publishes its address."""

_LAST: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)

Frames = Sequence[Bytes]


class Window:
    """What all senders of an endpoint hold: large frames that the kernel has not taken yet, and queued replies."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._under_way: list[tuple[ref[memoryview], int]] = []
        self._most_bytes = 0  # upper bound: some of the frames under way may have been sent
        self.queued = 0

    def add(self, frame: memoryview) -> None:
        """Count a frame, to which only zmq keeps a reference, until zmq releases it."""
        with self._lock:
            self._under_way.append((ref(frame), len(frame)))
            self._most_bytes += len(frame)

    def add_queued(self, replies: int) -> None:
        """Add ``replies``, which may be negative, to the number of queued replies."""
        with self._lock:
            self.queued += replies

    @property
    def is_full(self) -> bool:
        return self._most_bytes >= _WINDOW_BYTES and self._count() >= _WINDOW_BYTES

    def _count(self) -> int:
        with self._lock:
            self._under_way = [(frame, size) for frame, size in self._under_way if frame() is not None]
            self._most_bytes = sum(size for _, size in self._under_way)
            return self._most_bytes


class Sender:
    """Connection to one peer. The calling thread sends to the socket, under the lock. stamps: for messages to it."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], entry: Address, mine: Keys, window: Window, stamps: Stamps
    ) -> None:
        self._lock, self._window, self.life, self.stamps = Lock(), window, entry.life, stamps
        self._queue: deque[Frames] = deque()  # replies of handlers, which may not block
        self._alone: list[ref[memoryview]] = []  # large frames of the last message that others wait for
        self._refusals = 0
        self.gone_s: float | None = None  # since when the peer is gone; None: it is there
        self.sent_goodbye = self.goodbye_ack = False  # by the peer: its goodbye, and its acknowledgement of ours
        self.sent, self.was_stopped = 0, False  # messages; whether the peer was lost because its process had stopped
        self._socket = context.socket(zmq.PUSH)
        self._socket.linger = 0
        self._socket.sndhwm = _WINDOW_MESSAGES
        # A host that fails sends nothing, so the kernel probes the connection. zmq's own heartbeats would count a peer
        # that reads nothing as dead.
        self._socket.tcp_keepalive, self._socket.tcp_keepalive_idle = 1, 10
        self._socket.tcp_keepalive_intvl, self._socket.tcp_keepalive_cnt = 5, 3
        self._socket.tcp_maxrt = _UNACKNOWLEDGED_MS
        guard_sender(self._socket, mine, entry.public_key)
        self._events = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED)
        self._socket.connect(entry.url)
        self._put = super(zmq.Socket, self._socket).send  # without pyzmq's wrapper, whose options PUSH does not have

    def offer(self, frames: Frames, *, may_queue: bool, alone: bool = False) -> bool:
        """Send ``frames`` if there is room; otherwise queue them or return False.

        Frames to a peer that is gone are dropped. alone: there is no room before the kernel has taken the large frames
        of the last message that was sent with ``alone``.
        """
        with self._lock:
            if self.gone_s is not None:
                return True
            if alone and any(frame() is not None for frame in self._alone):
                return False
            if self._queue:
                self._send_queue()
            if not self._queue and (may_queue or not self._window.is_full) and self._send(frames, alone=alone):
                return True
            if may_queue:
                self._enqueue(frames)
            return may_queue

    def send_queue(self) -> None:
        """Send queued replies as far as there is room."""
        with self._lock:
            self._send_queue()

    def depart(self, now_s: float) -> None:
        """Note the peer's goodbye and acknowledge it; the peer reads nothing else any more."""
        with self._lock:
            self.sent_goodbye, self.gone_s = True, self.gone_s or now_s
            if not self._socket.closed:
                self._clear_queue()
                if not self._send((self.stamps.goodbye_ack,)):
                    self._enqueue((self.stamps.goodbye_ack,))

    def check(self, now_s: float) -> None:
        """Check whether the peer is lost. A broken connection may have lost messages, so it is not opened again."""
        while not self._events.closed and self._events.poll(0):
            event = recv_monitor_message(self._events)["event"]
            self._refusals += event == zmq.EVENT_CONNECT_RETRIED
            if event == zmq.EVENT_DISCONNECTED or self._refusals >= _CONNECT_ATTEMPTS:
                self.lose(now_s)

    def lose(self, now_s: float) -> None:
        """Close the connection: the peer is lost, or a new life has taken its place."""
        with self._lock:
            self.gone_s = self.gone_s or now_s
            self._clear_queue()
            if not self._events.closed:
                self._socket.disable_monitor()
                self._events.close(linger=0)
                self._socket.close(linger=0)

    @property
    def is_lost(self) -> bool:
        """Whether the peer is gone without a goodbye."""
        return self.gone_s is not None and not self.sent_goodbye

    def is_silent(self, now_s: float) -> bool:
        """Whether nothing more can arrive from this peer."""
        return self.gone_s is not None and (self.sent_goodbye or now_s - self.gone_s > _LAST_MESSAGES_S)

    def _enqueue(self, frames: Frames) -> None:
        self._queue.append(frames)
        self._window.add_queued(1)

    def _send_queue(self) -> None:
        while self._queue and self._send(self._queue[0]):
            self._queue.popleft()
            self._window.add_queued(-1)

    def _clear_queue(self) -> None:
        self._window.add_queued(-len(self._queue))
        self._queue.clear()

    def _send(self, frames: Frames, *, alone: bool = False) -> bool:
        more = len(frames)
        if alone:
            self._alone.clear()
        try:
            for frame in frames:  # only the first can fail because zmq's queue is full
                more -= 1
                if len(frame) <= _COPY_BYTES:
                    self._put(frame, _MORE if more else _LAST)
                else:
                    held = frame if isinstance(frame, memoryview) else memoryview(frame)
                    self._put(held, _MORE if more else _LAST, False)
                    self._window.add(held)
                    if alone:
                        self._alone.append(ref(held))
        except zmq.Again:
            return False
        return True


class Senders:
    """Senders to all peers, opened when they are first needed."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: int,
        address_book: AddressBook,
        peers: Sequence[int],
        credentials: Credentials,
    ) -> None:
        self._context, self._address, self._address_book = context, address, address_book
        self._peers, self._credentials = tuple(peers), credentials
        self._lock, self.window, self.is_complete = Lock(), Window(), False
        self.open: dict[int, Sender] = {}  # never changed in place: other threads iterate over it
        self._lives: dict[int, int] = {}  # of peers that have sent a message before this end has connected to them
        self._notices: dict[tuple[int, int], Sender | None] = {}  # to lives that are lost

    def open_all(self, timeout_s: float) -> None:
        """Connect to all peers; wait for those that have not published their address yet."""
        self._connect(self._address_book.wait_for(self._peers, timeout_s))
        self.is_complete = True

    def open_published(self) -> None:
        """Connect to the peers that have published their address."""
        self._connect({peer: entry for peer in self._peers if (entry := self._address_book.find(peer))})

    def to(self, peer: int) -> Sender | None:
        """Return the sender to ``peer``, opened if needed; None if the peer has not published its address."""
        if peer not in self.open and (entry := self._address_book.find(peer)) is not None:
            self._connect({peer: entry})
        return self.open.get(peer)

    def life_of(self, peer: int) -> int:
        """Return the latest known life of ``peer``; 0 if none is known."""
        return self.open[peer].life if peer in self.open else self._lives.get(peer, 0)

    def published_life(self, peer: int) -> int:
        """Return the life of ``peer`` that has published its address last."""
        entry = self._address_book.find(peer)
        return 0 if entry is None else entry.life

    def renew(self, peer: int, life: int, now_s: float) -> bool:
        """Connect anew: ``life`` of ``peer`` has sent a message. Return False if it has not published its address."""
        with self._lock:
            if peer not in self.open:
                self._lives[peer] = life
                return True
            entry, earlier = self._address_book.find(peer), self.open[peer]
            if entry is None or entry.life != life:
                return False
            self.open = {**self.open, peer: self._made(peer, entry)}
        earlier.lose(now_s)
        return True

    def tell_lost(self, peer: int) -> None:
        """Tell a peer whose connection has broken that it is lost to this end, once."""
        life = self.open[peer].life
        if (peer, life) in self._notices:
            return
        self._notices[peer, life] = None
        entry = self._address_book.find(peer)
        if entry is not None and entry.life == life:
            self._notices[peer, life] = sender = self._made(peer, entry)
            sender.offer((sender.stamps.lost,), may_queue=True)

    def check(self, now_s: float) -> None:
        """Send queued replies, and check which peers are lost."""
        for sender in self.open.values():
            sender.send_queue()
            sender.check(now_s)

    def _connect(self, entries: dict[int, Address]) -> None:
        with self._lock:
            new = {peer: entries[peer] for peer in sorted(entries.keys() - self.open.keys())}
            for peer, entry in new.items():
                if entry.life < self._lives.get(peer, 0):  # a later life has published its address meanwhile
                    new[peer] = self._address_book.find(peer) or entry
            self.open = {**self.open, **{peer: self._made(peer, entry) for peer, entry in new.items()}}

    def _made(self, peer: int, entry: Address) -> Sender:
        stamps = Stamps.to(peer, entry.life, self._address, self._credentials)
        return Sender(self._context, entry, self._credentials.keys, self.window, stamps)
