"""Message endpoint on real processes: sending, receiving and handling over ZeroMQ.

Sends go from the calling thread to the peer's socket. One thread at a time receives: the endpoint's own thread while
the worker computes, and the worker itself while it blocks in ``receive``. So no message passes between threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Final, TypeVar

import torch
import zmq
from torch.distributed.distributed_c10d import Store

from tacit.core.host_memory import keep_memory
from tacit.core.messages import Message
from tacit.core.network import count_reply
from tacit.errors import BadMessage, MisplacedCall, PeerLost, TimedOut
from tacit.runtime.messaging import sent_buffers
from tacit.runtime.messaging.address_book import AddressBook
from tacit.runtime.messaging.hook_lock import HookLock
from tacit.runtime.messaging.inbox import Inbox, Received
from tacit.runtime.messaging.limits import check_frames
from tacit.runtime.messaging.reader import LOOK_S, RETRY_S, Reader
from tacit.runtime.messaging.receiver import Receiver
from tacit.runtime.messaging.security import Address, Credentials, check_security
from tacit.runtime.messaging.senders import Frames, Sender, Senders

MessageType = TypeVar("MessageType", bound=Message)

_GOODBYE_S: Final = 5.0
_LAST_WORD_S: Final = 1.0
"""How long ``close`` waits for peers to read what was sent to them; the second one after a failure."""
_STOPPED_S: Final = 1.0
"""How long to wait before looking whether others are stopped."""
_ITS_OUTPUT: Final = "its own output says why."


class MessageEndpoint:
    """One endpoint's connections to its peers.

    Make all endpoints of a process before using one: the first ``send``, ``receive`` or ``start_handling`` waits for
    the addresses of all peers. On a server's endpoint (negative address), ``receive`` raises ``PeerLost`` once for each
    lost peer, so that the server can continue without it.

    secret: of the run; None: tokens and public keys are in the store.
    life: of this process; messages of a peer's earlier lives are dropped, and a new life of a peer is connected to.
    peers_return: whether ``send`` looks for a new life of a lost peer.
    is_stopped: whether a peer's process is stopped or cut off; such a peer is lost once it is waited for.
    largest_bytes: of a frame; larger ones are refused unread. sent: called for every message, in the thread that sends
    it. received: called when a message is delivered, with the hook lock held, so its calls come in the order in which
    messages take effect. Neither may block.
    """

    def __init__(
        self,
        address: int,
        peers: Sequence[int],
        store: Store,
        *,
        host: str = "127.0.0.1",
        security: str = "token",
        secret: bytes | None = None,
        hook_lock: HookLock,
        handles: tuple[type[Message], ...] = (),
        handler: Callable[[int, Message], None],
        sent: Callable[[int, Message, int], None] | None = None,
        received: Callable[[int, Message], None] | None = None,
        timeout_s: float,
        largest_bytes: int,
        life: int = 1,
        peers_return: bool = False,
        is_stopped: Callable[[int], bool] | None = None,
    ) -> None:
        check_security(security, host)
        self.address, self.peers, self._peers_return = address, tuple(peers), peers_return
        self._hook_lock, self._handler, self._timeout_s = hook_lock, handler, timeout_s
        self._sent, self._received = sent, received
        sent_buffers.add_endpoint()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._credentials = Credentials(address, life, security, store, secret)
        address_book, keys = AddressBook(store, self._credentials), self._credentials.keys
        if keys.secret:
            keep_memory()
        self._receiver = Receiver(self._context, host, self.peers, self._credentials, largest_bytes)
        self._largest_bytes = largest_bytes
        self._senders = Senders(self._context, address, address_book, self.peers, self._credentials)
        self._inbox = Inbox(handles)
        self._reader = Reader(
            address,
            self.peers,
            self._receiver,
            self._senders,
            self._inbox,
            timeout_s=timeout_s,
        )
        self._is_stopped, self._looked_for_stopped_s = is_stopped, 0.0
        self._asked: dict[int, Sender] = {}  # by peer: the connection of the last message of a hook to it
        self._receiving_since_s: float | None = None
        self._received_s = 0.0  # when receive last returned
        self._replies_left = 0  # of the handler that runs
        self._failure: BaseException | None = None
        self.check_wait: Callable[[int | None, float], None] | None = None
        """Called from time to time while the worker waits for a peer, with the peer (None: any) and the seconds."""
        self._is_closing = False
        self._wake = Event()
        address_book.publish(address, Address(self._receiver.url, keys.public, life))
        self._thread = Thread(target=self._read_in_background, name=f"tacit-endpoint-{address}", daemon=True)
        self._thread.start()

    # What the worker calls.

    def send(self, to: int, message: Message) -> None:
        """Send a snapshot of ``message``; tensors that it owns are not copied.

        If the peer is gone, drop it; if the peer is a server, which nothing can replace, raise ``PeerLost``.
        """
        if self._failure is not None:
            raise self._failure
        peer = self._senders.open.get(to) or self._connect_to(to)
        if self._peers_return and peer.is_lost and self.address >= 0:  # a server hears of the loss first
            peer = self._reader.connect_to_new_life(to)
        is_new = to < 0 and self._is_new(to, peer)
        if is_new or (to < 0 and peer.is_lost):
            raise PeerLost(to, self._reader.now_s, f"send({type(message).__name__})", _ITS_OUTPUT, need="needs it")
        is_reply = self._hook_lock.is_handling
        if is_reply:
            self._replies_left = count_reply(self._replies_left, to, message)
        stamps = peer.stamps
        frames = message.frames(stamps.message, stamps.large_message)
        check_frames(message, frames, self._largest_bytes)
        self._reader.awaits_large = is_large = len(frames) > 1
        if self._sent is not None:  # before it is sent: the reply may arrive before ``offer`` returns
            stamp_bytes = len(stamps.large_message if is_large else stamps.message)
            self._sent(to, message, sum(map(len, frames)) - stamp_bytes)
        peer.sent += 1
        if not is_reply:  # a hook may wait for the answer to what it has sent before
            self._asked[to] = peer
        alone = message.one_under_way and not is_reply
        if not peer.offer(frames, may_queue=is_reply, alone=alone):
            with self._hook_lock.released():
                self._wait_for_room(peer, frames, to, alone)

    def receive(
        self, kind: type[MessageType], source: int | None = None, *, timeout_s: float | None = None
    ) -> tuple[int, MessageType]:
        """Return the oldest message of ``kind`` (from ``source``) and its source; wait with the hook lock released."""
        if self._hook_lock.is_handling:
            raise MisplacedCall(
                f"a handler may not block (it waited for {kind.__name__}); keep it in the state and let a hook wait."
            )
        if self._failure is not None:
            raise self._failure
        if not self._senders.is_complete:
            self._connect()
        found = self._inbox.take(kind, source) if self._inbox.waiting else None
        if found is None or self._inbox.due:
            depth = self._hook_lock.give_up()
            try:
                found = found or self._wait_for(kind, source, timeout_s)
                for _ in range(len(self._inbox.due)):  # what has arrived before it takes effect before it
                    while self._can_handle and not self._handle_next():
                        pass
            finally:
                self._hook_lock.take_back(depth)
        if self._received is not None:
            self._received(*found)
        return found[0], found[1].received_as((kind,))  # type: ignore[return-value]

    def wait_for_arrival(self, sent: Mapping[int, int], timeout_s: float | None = None) -> float:
        """Wait until as many messages have arrived as peers have ``sent``; return when the last one arrived.

        The time is that of ``time.perf_counter``. A message may arrive and wait for its ``receive`` or handler.
        """
        deadline_s = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        with self._hook_lock.released():
            while self._reader.awaits(sent) and time.monotonic() < deadline_s:
                self.raise_if_failed()
                self._wake.set()
                time.sleep(RETRY_S)
        return self._reader.arrived_s

    def follow(self, lives: Mapping[int, int]) -> None:
        """Connect to these lives of peers where they are new, or were lost and are back, as after a cut.

        No message of an earlier life is awaited any more.
        """
        self._asked.clear()
        for peer, life in lives.items():
            if peer not in self._senders.open:
                continue
            if self._senders.open[peer].life < life:
                self._reader.connect_to_new_life(peer)
            elif self._senders.open[peer].is_lost and self._senders.open[peer].life == life:
                self._senders.renew(peer, life, self._reader.now_s)

    def forget_received(self) -> None:
        """Drop messages that have arrived and wait to be received."""
        self._inbox.clear()

    def start_handling(self) -> None:
        """Deliver messages of the handled kinds from now on, first those that have arrived already."""
        self._connect()
        self._inbox.start_handling()
        self._wake.set()

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` from all current and later calls of this endpoint."""
        self._failure = error

    def raise_if_failed(self) -> None:
        """Raise the error of a handler, or of ``fail``."""
        if self._failure is not None:
            raise self._failure

    @property
    def lost(self) -> list[int]:
        """The peers whose loss ``receive`` has reported, on a server's endpoint, and that have no new life."""
        return self._reader.lost

    @property
    def sent(self) -> dict[tuple[int, int], int]:
        """Number of messages sent to each peer and life that this end is connected to."""
        return {(rank, peer.life): peer.sent for rank, peer in self._senders.open.items()}

    @property
    def waiting(self) -> int:
        """Number of messages that were read and not delivered yet."""
        return len(self._inbox)

    @property
    def bad_messages(self) -> int:
        """Number of messages that did not parse, did not carry the token, or did not fit their handler.

        Addresses in the store that are not their owner's count too.
        """
        return self._receiver.bad_messages + self._credentials.refusals

    def close(self, *, after_failure: bool = False) -> None:
        """Send goodbye, wait a bounded time until peers have read all messages, and end the thread and the sockets.

        after_failure: a peer may never answer, as it is cut off or stopped.
        """
        if self._is_closing:
            return
        self._is_closing = True
        self._wake.set()
        with self._hook_lock.released():
            self._thread.join()
            with suppress(RuntimeError):  # the store is gone
                self._senders.open_published()
            self._send_goodbye(_LAST_WORD_S if after_failure else _GOODBYE_S)
        self._context.destroy(linger=0)
        sent_buffers.remove_endpoint()

    # Sending.

    def _connect(self) -> None:
        """Connect to all peers if that is not done yet."""
        if not self._senders.is_complete:
            with self._hook_lock.released():
                self._senders.open_all(self._timeout_s)

    def _connect_to(self, peer: int) -> Sender:
        if peer not in self.peers:
            raise ValueError(f"send to {peer}: the peers of {self.address} are {', '.join(map(str, self.peers))}.")
        self._connect()
        return self._senders.open[peer]

    def _wait_for_room(self, peer: Sender, frames: Frames, to: int, alone: bool) -> None:
        begun_s = time.monotonic()
        while not peer.offer(frames, may_queue=False, alone=alone):
            self.raise_if_failed()
            waited_s = time.monotonic() - begun_s
            if self.check_wait is not None:
                self.check_wait(to, waited_s)
            if self._is_stopped is not None and waited_s > _STOPPED_S:
                self._lose_stopped(self._is_stopped, (to,), time.monotonic())
            if waited_s > self._timeout_s:
                raise TimedOut(f"send to {to}, whose window is full,", [to], self._timeout_s)
            time.sleep(RETRY_S)

    # Receiving.

    def _wait_for(self, kind: type[Message], source: int | None, timeout_s: float | None) -> Received:
        inbox, reader = self._inbox, self._reader
        self._receiving_since_s = begun_s = now_s = looked_s = time.monotonic()
        try:
            while True:
                if reader.lock.acquire(True, LOOK_S):
                    try:
                        found: Received | bool | None = inbox.take(kind, source) if inbox.waiting else None
                        if found is None:
                            if source is None:
                                reader.raise_if_lost(kind)
                            found = reader.read(now_s, kind, source)
                    finally:
                        reader.lock.release()
                    if isinstance(found, tuple):
                        return found
                    if not found or now_s - looked_s > LOOK_S:  # other messages may arrive all the time
                        looked_s = now_s
                        self._raise_if_replaced(kind, source)
                        waited_s = time.monotonic() - begun_s
                        if self.check_wait is not None:
                            self.check_wait(source, waited_s)
                        if self._is_stopped is not None and waited_s > _STOPPED_S:
                            self._lose_stopped(self._is_stopped, self.peers if source is None else (source,), now_s)
                        reader.raise_if_in_vain(kind, source, waited_s, timeout_s, is_idle=not found)
                if inbox.due:
                    self._handle_due()
                self.raise_if_failed()
                now_s = time.monotonic()
        finally:
            self._receiving_since_s, self._received_s = None, time.monotonic()
            if self._received_s - begun_s > LOOK_S:
                self._wake.set()

    def _lose_stopped(self, is_stopped: Callable[[int], bool], awaited: Sequence[int], now_s: float) -> None:
        """Lose peers that are waited for and whose processes are stopped or cut off."""
        if now_s - self._looked_for_stopped_s < _STOPPED_S / 2:
            return
        self._looked_for_stopped_s = now_s
        for address in awaited:
            peer = self._senders.open.get(address)
            if address != self.address and peer is not None and peer.gone_s is None and is_stopped(address):
                peer.was_stopped = True
                peer.lose(self._reader.now_s)

    def _raise_if_replaced(self, kind: type[Message], source: int | None) -> None:
        """Raise if the last message to ``source`` is lost: to an earlier life, or while it counted as lost."""
        peer = None if source is None else self._senders.open.get(source)
        if peer is not None and source is not None and self._is_new(source, peer):
            what = f"receive({kind.__name__}, source={source})"
            raise PeerLost(source, self._reader.now_s, what, _ITS_OUTPUT, need="needs a message from it")

    def _is_new(self, to: int, peer: Sender) -> bool:
        """Whether the connection is another one than that of the last message to this peer; true once."""
        is_new = self._asked.get(to, peer) is not peer
        if is_new:
            self._asked[to] = peer
        return is_new

    def reconnect(self, peer: int) -> bool:
        """Connect to a new life of a lost peer; return whether there is a connection.

        What a server has sent is dropped: a new life knows nothing of this end before it joins.
        """
        sender = self._reader.connect_to_new_life(peer)
        if sender.gone_s is not None:
            return False
        self._asked[peer] = sender
        if peer < 0:
            self._inbox.forget(peer)
        return True

    def report_replaced(self, lives: Mapping[int, int]) -> None:
        """On a server's endpoint: let ``receive`` report the loss of those ``lives`` that a later one has replaced.

        A server that is started again has heard of none of them.
        """
        self._connect()
        self._reader.report_replaced(lives)

    def has_gone(self, peer: int) -> bool:
        """Whether ``peer`` has left or was lost, so that nothing more can arrive from it."""
        sender = self._senders.open.get(peer)
        return sender is not None and sender.is_silent(self._reader.now_s)

    def life_of(self, peer: int) -> int:
        """Return the latest known life of ``peer``."""
        return max(1, self._senders.life_of(peer))

    # Reading and handling while the worker computes.

    def _read_in_background(self) -> None:
        pause_s, reader = RETRY_S, self._reader
        try:
            while not self._is_closing:
                if self._worker_is_busy and reader.lock.acquire(blocking=False):
                    pause_s = RETRY_S
                    try:
                        reader.read(time.monotonic())
                    finally:
                        reader.lock.release()
                else:  # longer each time: every wake-up takes the interpreter from a worker that receives
                    self._wake.wait(pause_s)
                    self._wake.clear()
                    pause_s = min(2 * pause_s, self._longest_pause_s)
                self._handle_due()
        except BaseException as error:  # noqa: BLE001 - the worker raises it
            self._failure = error

    @property
    def _worker_is_busy(self) -> bool:
        """Whether the worker neither receives nor has just received and may call ``receive`` again at once."""
        return self._receiving_since_s is None and time.monotonic() - self._received_s > RETRY_S

    @property
    def _longest_pause_s(self) -> float:
        """Longest pause of the background thread.

        A worker that has been receiving for long wakes the thread when it returns. Without handlers nothing is urgent.
        """
        since_s = self._receiving_since_s
        is_long = since_s is not None and time.monotonic() - since_s > LOOK_S
        return LOOK_S if is_long or not self._inbox.is_handling else 8 * RETRY_S

    @property
    def _can_handle(self) -> bool:
        """Whether a message is due and may be handled: none while the window is full, so that replies need not wait."""
        return (
            bool(self._inbox.due) and self._failure is None and not (self._is_closing or self._senders.window.is_full)
        )

    def _handle_due(self) -> None:
        """Pass messages to the handler, oldest first."""
        while self._can_handle and self._handle_next():
            pass

    def _handle_next(self) -> bool:
        """Pass the oldest message to the handler; return False if another thread held the hook lock for too long."""
        with self._hook_lock.handling(LOOK_S) as is_held, torch.no_grad():
            if is_held and self._inbox.due:
                self._handle(*self._inbox.due.popleft())
        return is_held

    def _handle(self, source: int, message: Message) -> None:
        self._replies_left = 1
        if self._received is not None:
            self._received(source, message)
        try:
            self._handler(source, message.received_as(self._inbox.handles))
        except BadMessage as error:  # content that does not fit: the handler has changed nothing
            self._receiver.drop(f"a message of {source}: {error}")
        except BaseException as error:  # noqa: BLE001 - in any thread: the worker raises it
            self._failure = error

    # The end.

    def _send_goodbye(self, wait_s: float) -> None:
        """Send goodbye to all peers and read until each has acknowledged it, left or been lost."""
        peers = self._senders.open.values()
        for peer in peers:
            peer.offer((peer.stamps.goodbye,), may_queue=True)
        deadline_s = time.monotonic() + min(wait_s, self._timeout_s)
        while time.monotonic() < deadline_s and not all(p.goodbye_ack or p.gone_s is not None for p in peers):
            self._inbox.clear()
            self._reader.read(time.monotonic())
