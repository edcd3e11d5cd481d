"""Messages between real processes: one endpoint's sending, receiving and handling, over ZeroMQ.

Sends go straight from the calling thread to the peer's socket. Receiving has one reader at a time: the post's own
thread while the worker computes, and the worker itself while it blocks in ``receive``, so that no message has to be
handed from thread to thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Final, TypeVar

import torch
import zmq
from torch.distributed.distributed_c10d import Store

from tacit.core.messages import Message
from tacit.core.network import count_reply
from tacit.errors import MisplacedCall, PeerLost, RunError, TimedOut
from tacit.runtime.messaging import sent_buffers as collector
from tacit.runtime.messaging.address_book import Address, AddressBook
from tacit.runtime.messaging.hook_lock import HookLock
from tacit.runtime.messaging.inbox import Inbox, Letter
from tacit.runtime.messaging.memory import keep_memory
from tacit.runtime.messaging.receiver import Purpose, Receiver, stamp
from tacit.runtime.messaging.security import check_security, make_keys
from tacit.runtime.messaging.senders import Frames, Sender, Senders

MessageType = TypeVar("MessageType", bound=Message)

_INBOX_MESSAGES: Final = 1024
"""Messages and replies that may wait here; then nothing is read from the socket, and zmq pushes the senders back."""
_LOOK_S: Final = 0.05
"""How often somebody looks whether a peer is lost."""
_RETRY_S: Final = 0.001
"""How soon to try again what could not be done at once."""
_FAREWELL_S: Final = 5.0
"""How long ``close`` waits for peers to read what was sent to them."""


class MessageEndpoint:
    """One endpoint's way to its peers.

    Make all posts of a process before using one: the first call of ``send``, ``receive`` or ``start_handling`` waits
    for everybody's address. A server's post (one with a negative address) raises ``PeerLost`` from ``receive`` once for
    each lost peer, so that it can continue without. ``sent`` is told of every message, in whatever thread sends it, and
    ``received`` when one is handed over, the monitor taken: its calls come in the order in which messages take effect.
    Neither may block.
    """

    def __init__(
        self,
        address: int,
        peers: Sequence[int],
        store: Store,
        *,
        host: str = "127.0.0.1",
        security: str = "token",
        hook_lock: HookLock,
        handles: tuple[type[Message], ...] = (),
        handler: Callable[[int, Message], None],
        sent: Callable[[int, Message, int], None] | None = None,
        received: Callable[[int, Message], None] | None = None,
        timeout_s: float,
    ) -> None:
        check_security(security, host)
        self.address, self.peers = address, tuple(peers)
        self._hook_lock, self._handler, self._timeout_s = hook_lock, handler, timeout_s
        self._sent, self._received = sent, received
        collector.enter()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        directory, keys = AddressBook(store), make_keys(security)
        if keys.secret:
            keep_memory()
        self._receiver = Receiver(self._context, host, directory.token, self.peers, keys)
        self._senders = Senders(self._context, directory, self.peers, keys)
        self._stamps = {purpose: stamp(directory.token, address, purpose) for purpose in Purpose}
        self._stamp, self._large_stamp = self._stamps[Purpose.MESSAGE], self._stamps[Purpose.LARGE_MESSAGE]
        self._sent_large = False  # last: what answers it takes longer than it is worth staying awake for
        self._begun_s = self._looked_s = time.monotonic()

        self._unreported = [peer for peer in self.peers if peer != address] if address < 0 else []
        self._gone: list[int] = []  # of these, the ones whose connection has broken, or who said goodbye
        self._inbox = Inbox(handles)
        self._reading = Lock()  # held by whoever reads, until what came is in its place
        self._receiving_since_s: float | None = None
        self._received_s = 0.0  # when receive last returned
        self._replies_left = 0  # of the handler that runs
        self._failure: BaseException | None = None
        self._is_closing = False
        self._wake = Event()
        directory.publish(address, Address(self._receiver.url, keys.public))
        self._thread = Thread(target=self._read_in_background, name=f"tacit-post-{address}", daemon=True)
        self._thread.start()

    # What the worker calls.

    def send(self, to: int, message: Message) -> None:
        """Send a snapshot of ``message``; what a message owns is not copied. To a peer that is gone it is dropped."""
        if self._failure is not None:
            raise self._failure
        outlet = self._senders.open.get(to) or self._connect_to(to)
        is_reply = self._hook_lock.is_handling
        if is_reply:
            self._replies_left = count_reply(self._replies_left, to, message)
        frames = message.frames(self._stamp, self._large_stamp)
        self._sent_large = len(frames) > 1
        if self._sent is not None:  # before it goes: an answer may be here before ``offer`` returns
            stamp_bytes = len(self._large_stamp if self._sent_large else self._stamp)
            self._sent(to, message, sum(map(len, frames)) - stamp_bytes)
        if not outlet.offer(frames, may_queue=is_reply):
            with self._hook_lock.released():
                self._await_room(outlet, frames, to)

    def receive(self, kind: type[MessageType], source: int | None = None) -> tuple[int, MessageType]:
        """Return the oldest message of ``kind`` (from ``source``) and where it came from, waiting with the monitor
        released.
        """
        if self._hook_lock.is_handling:
            raise MisplacedCall(
                f"a handler may not block (it waited for {kind.__name__}); keep it in the state and let a hook wait."
            )
        if self._failure is not None:
            raise self._failure
        if not self._senders.is_complete:
            self._connect()
        found = self._inbox.take(kind, source) if self._inbox.waiting else None
        if found is None:
            depth = self._hook_lock.give_up()
            try:
                found = self._await(kind, source)
            finally:
                self._hook_lock.take_back(depth)
        if self._received is not None:
            self._received(*found)
        return found[0], found[1].received_as((kind,))  # type: ignore[return-value]

    def start_handling(self) -> None:
        """Deliver messages of the handled kinds from now on, those first that have come already."""
        self._connect()
        self._inbox.start_handling()
        self._wake.set()

    def fail(self, error: BaseException) -> None:
        """Let whoever uses this post, now or later, raise ``error``."""
        self._failure = error

    def raise_if_failed(self) -> None:
        """Raise what a handler raised."""
        if self._failure is not None:
            raise self._failure

    @property
    def lost(self) -> list[int]:
        """The peers whose loss ``receive`` has reported, where this is a server's post."""
        return [peer for peer in self.peers if peer != self.address and peer not in self._unreported]

    @property
    def waiting(self) -> int:
        """Messages that were read and not handed over yet."""
        return len(self._inbox)

    @property
    def bad_messages(self) -> int:
        """Messages that did not parse or did not carry the token."""
        return self._receiver.bad_messages

    def close(self) -> None:
        """Say goodbye, wait a bounded time until peers have read what was sent, and leave no thread and no socket
        behind.
        """
        if self._is_closing:
            return
        self._is_closing = True
        self._wake.set()
        with self._hook_lock.released():
            self._thread.join()
            with suppress(RuntimeError):  # a store that is gone
                self._senders.open_published()
            self._part()
        self._context.destroy(linger=0)
        collector.leave()

    # Sending.

    def _connect(self) -> None:
        """Connect to all peers when first needed."""
        if not self._senders.is_complete:
            with self._hook_lock.released():
                self._senders.open_all(self._timeout_s)

    def _connect_to(self, peer: int) -> Sender:
        if peer not in self.peers:
            raise ValueError(f"send to {peer}: the peers of {self.address} are {', '.join(map(str, self.peers))}.")
        self._connect()
        return self._senders.open[peer]

    def _await_room(self, outlet: Sender, frames: Frames, to: int) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        while not outlet.offer(frames, may_queue=False):
            self.raise_if_failed()
            if time.monotonic() > deadline_s:
                raise TimedOut(f"send to {to}, whose window is full,", [to], self._timeout_s)
            time.sleep(_RETRY_S)

    # Receiving.

    def _await(self, kind: type[Message], source: int | None) -> Letter:
        inbox = self._inbox
        self._receiving_since_s = begun_s = now_s = time.monotonic()
        try:
            while True:
                if self._reading.acquire(True, _LOOK_S):
                    try:
                        found: Letter | bool | None = inbox.take(kind, source) if inbox.waiting else None
                        if found is None:
                            if self._gone and source is None:
                                self._report_loss(kind)
                            found = self._read(now_s, kind, source)
                    finally:
                        self._reading.release()
                    if isinstance(found, tuple):
                        return found
                    if not found:
                        self._raise_if_in_vain(kind, source, time.monotonic() - begun_s)
                if inbox.due:
                    self._handle_due()
                self.raise_if_failed()
                now_s = time.monotonic()
        finally:
            self._receiving_since_s, self._received_s = None, time.monotonic()
            if self._received_s - begun_s > _LOOK_S:
                self._wake.set()

    def _report_loss(self, kind: type[Message]) -> None:
        """Raise if a peer is lost that this server has not been told of.

        All that came from it before is received by then.
        """
        for peer in self._gone:
            outlet = self._senders.open[peer]
            if outlet.is_silent(self._now_s):
                self._unreported.remove(peer)
                self._gone = [other for other in self._gone if other != peer]
                raise PeerLost(
                    peer, outlet.gone_s or 0.0, f"receive({kind.__name__})", need="may need a message from it"
                )

    def _raise_if_in_vain(self, kind: type[Message], source: int | None, waited_s: float) -> None:
        what = f"receive({kind.__name__}" + (")" if source is None else f", source={source})")
        if len(self._inbox) >= _INBOX_MESSAGES:
            raise RunError(f"{what} cannot be reached: {len(self._inbox)} messages wait before it; receive them first.")
        silent = {peer: outlet for peer, outlet in self._senders.open.items() if outlet.is_silent(self._now_s)}
        awaited = self.peers if source is None else [source]
        if awaited and all(peer in silent for peer in awaited):
            last = max(awaited, key=lambda peer: silent[peer].gone_s or 0.0)
            why = "it had closed its session." if silent[last].said_goodbye else "its own output says why."
            need = "needs a message and no peer is left" if source is None else "needs a message from it"
            raise PeerLost(last, silent[last].gone_s or 0.0, what, why, need=need)
        if waited_s > self._timeout_s:
            raise TimedOut(what, () if source is None else (source,), self._timeout_s)

    @property
    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s

    # Reading, one thread at a time.

    def _read_in_background(self) -> None:
        pause_s = _RETRY_S
        try:
            while not self._is_closing:
                if self._worker_is_away and self._reading.acquire(blocking=False):
                    pause_s = _RETRY_S
                    try:
                        self._read(time.monotonic())
                    finally:
                        self._reading.release()
                else:  # ever longer: each waking takes the interpreter from a worker that is busy receiving
                    self._wake.wait(pause_s)
                    self._wake.clear()
                    pause_s = min(2 * pause_s, self._longest_pause_s)
                self._handle_due()
        except BaseException as error:  # noqa: BLE001 - the worker raises it
            self._failure = error

    @property
    def _worker_is_away(self) -> bool:
        """Whether the worker neither receives nor has just done so and may come back for the next message."""
        return self._receiving_since_s is None and time.monotonic() - self._received_s > _RETRY_S

    @property
    def _longest_pause_s(self) -> float:
        """How long to step aside: a worker that has been receiving for long will say when it is through, and without
        handlers nobody waits.
        """
        since_s = self._receiving_since_s
        is_long = since_s is not None and time.monotonic() - since_s > _LOOK_S
        return _LOOK_S if is_long or not self._inbox.is_handling else 8 * _RETRY_S

    def _read(self, now_s: float, kind: type[Message] | None = None, source: int | None = None) -> Letter | bool:
        """As the reader: take in one message if one comes soon, and look after the peers now and then.

        Return the message if it is of ``kind`` and from ``source``; else put it in its place, and return whether one
        came.
        """
        inbox, in_line = self._inbox, self._senders.window.in_line
        if in_line or now_s - self._looked_s > _LOOK_S:
            self._looked_s = now_s
            self._senders.look_after(self._now_s)
            senders = self._senders.open
            self._gone = [p for p in self._unreported if p in senders and senders[p].gone_s is not None]
        if len(inbox.waiting) + len(inbox.due) + in_line >= _INBOX_MESSAGES:
            time.sleep(_RETRY_S)
            return False
        is_eager = kind is not None and not self._sent_large
        came = self._receiver.read(_RETRY_S if in_line or inbox.due else _LOOK_S, eagerly=is_eager)
        if came is None:
            return False
        if kind is not None and inbox.is_for(came, kind, source):
            return came
        sender, message = came
        if isinstance(message, Purpose):
            self._note(sender, message)
        else:
            inbox.add((sender, message))
        return True

    def _note(self, sender: int, purpose: Purpose) -> None:
        """Answer a goodbye, or take note of the answer to ours."""
        with suppress(RuntimeError):  # a store that is gone
            outlet = self._senders.to(sender)
            if outlet is not None and purpose is Purpose.GOODBYE:
                outlet.depart((self._stamps[Purpose.FAREWELL],), self._now_s)
            elif outlet is not None:
                outlet.answered_goodbye = True

    def _handle_due(self) -> None:
        """Give messages to the handler, oldest first.

        None starts while the window is full, so replies need not wait.
        """
        while self._inbox.due and self._failure is None and not (self._is_closing or self._senders.window.is_full):
            with self._hook_lock.handling(_LOOK_S) as is_mine, torch.no_grad():
                if not is_mine:
                    return
                if self._inbox.due:
                    self._handle(*self._inbox.due.popleft())

    def _handle(self, source: int, message: Message) -> None:
        self._replies_left = 1
        if self._received is not None:
            self._received(source, message)
        try:
            self._handler(source, message.received_as(self._inbox.handles))
        except BaseException as error:  # noqa: BLE001 - whichever thread this is, the worker raises it
            self._failure = error

    # The end.

    def _part(self) -> None:
        """Say goodbye to everybody and read until all have answered, left or been lost."""
        senders = self._senders.open.values()
        for outlet in senders:
            outlet.offer((self._stamps[Purpose.GOODBYE],), may_queue=True)
        deadline_s = time.monotonic() + min(_FAREWELL_S, self._timeout_s)
        while time.monotonic() < deadline_s and not all(o.answered_goodbye or o.gone_s is not None for o in senders):
            self._inbox.clear()
            self._read(time.monotonic())
