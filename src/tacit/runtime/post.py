"""Messages between real processes: one endpoint's sending, receiving and handling, over ZeroMQ.

Sends go straight from the calling thread to the peer's socket. Receiving has one reader at a time: the post's own thread while the worker computes,
and the worker itself while it blocks in ``receive``, so that no message has to be handed from thread to thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, Event, Lock, Thread
from typing import Final, TypeVar

import torch
import zmq
from torch.distributed.distributed_c10d import Store

from tacit.errors import MisplacedCall, PeerLost, RunError, TimedOut
from tacit.messages import Message
from tacit.network import Envelope
from tacit.runtime import collector
from tacit.runtime.curve import check_security, make_keys
from tacit.runtime.directory import Directory, Entry
from tacit.runtime.intake import FAREWELL, GOODBYE, Intake, Stamped, stamp
from tacit.runtime.monitor import Monitor
from tacit.runtime.outlets import Frames, Outlet, Window

MessageType = TypeVar("MessageType", bound=Message)

_INBOX_MESSAGES: Final = 1024
"""Messages and replies that may wait here; then nothing is read from the socket, and zmq pushes the senders back."""
_LOOK_S: Final = 0.05
"""How often somebody looks whether a peer is lost."""
_RETRY_S: Final = 0.001
"""How soon to try again what could not be done at once."""
_SETTLE_S: Final = 0.1
"""A lost peer's last messages may still be on their way through zmq when its connection has already broken."""
_FAREWELL_S: Final = 5.0
"""How long ``close`` waits for peers to read what was sent to them."""


class Post:
    """One endpoint's way to its peers.

    Make all posts of a process before using one: the first call of ``send``, ``receive`` or ``start_handling`` waits for everybody's address.
    ``sent`` and ``received`` are told of every message, in whatever thread sends or reads it; neither may block.
    """

    def __init__(
        self,
        address: int,
        peers: Sequence[int],
        store: Store,
        *,
        host: str = "127.0.0.1",
        security: str = "token",
        monitor: Monitor,
        handles: tuple[type[Message], ...] = (),
        handler: Callable[[int, Message], None],
        sent: Callable[[int, Message, int], None] | None = None,
        received: Callable[[int, Message], None] | None = None,
        timeout_s: float,
    ) -> None:
        check_security(security, host)
        self.address, self.peers = address, tuple(peers)
        self._monitor, self._handles, self._handler, self._timeout_s = monitor, handles, handler, timeout_s
        self._sent, self._received = sent, received
        self._keys, self._window, self._directory = make_keys(security), Window(), Directory(store)
        collector.enter()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._intake = Intake(self._context, host, self._directory.token, self.peers, self._keys)
        self._stamp = stamp(self._directory.token, address)
        self._outlets: dict[int, Outlet] = {}
        self._connecting = Lock()
        self._begun_s = self._looked_s = time.monotonic()

        self._turn = Condition()  # guards the next five; a receiver that is not the reader waits on it
        self._inbox: deque[Envelope] = deque()
        self._due: deque[Envelope] = deque()  # for the handler
        self._is_handling_kinds = self._is_reading = False
        self._receiving_since_s: float | None = None
        self._received_s = 0.0  # when receive last returned
        self._replies_left = 0  # of the handler that runs
        self._failure: BaseException | None = None
        self._is_closing = False
        self._wake = Event()
        self._directory.publish(address, Entry(self._intake.url, self._keys.public))
        self._thread = Thread(target=self._read_in_background, name=f"tacit-post-{address}", daemon=True)
        self._thread.start()

    # What the worker calls.

    def send(self, to: int, message: Message) -> None:
        """Send a snapshot of ``message``; what a message owns is not copied. To a peer that is gone it is dropped."""
        self.raise_if_failed()
        if to not in self.peers:
            raise ValueError(f"send to {to}: the peers of {self.address} are {', '.join(map(str, self.peers))}.")
        is_reply = self._monitor.is_handling
        if is_reply:
            self._count_reply(to, message)
        outlet = self._outlets.get(to) or self._connect()[to]
        first, *rest = message.frames()
        # Large frames first: behind a small one they cost zmq half as much again.
        frames = (*rest, b"".join((self._stamp, first)))
        if self._sent is not None:  # before it goes: an answer may be here before ``offer`` returns
            self._sent(to, message, sum(map(len, frames)) - len(self._stamp))
        if not outlet.offer(frames, may_queue=is_reply):
            with self._monitor.released():
                self._await_room(outlet, frames, to)

    def receive(self, kind: type[MessageType], source: int | None = None) -> tuple[int, MessageType]:
        """Return the oldest message of ``kind`` (from ``source``) and where it came from, waiting with the monitor released."""
        if self._monitor.is_handling:
            raise MisplacedCall(
                f"a handler may not block (it waited for {kind.__name__}); keep it in the state and let a hook wait."
            )
        self.raise_if_failed()
        self._connect()
        with self._turn:
            found = self._take(kind, source)
        if found is None:
            with self._monitor.released():
                found = self._await(kind, source)
        return found.source, found.message  # type: ignore[return-value]

    def start_handling(self) -> None:
        """Deliver messages of the handled kinds from now on, those first that have come already."""
        self._connect()
        with self._turn:
            self._is_handling_kinds = True
            early, self._inbox = self._inbox, deque()
            for envelope in early:
                self._place(envelope)
        self._wake.set()

    def raise_if_failed(self) -> None:
        """Raise what a handler raised."""
        if self._failure is not None:
            raise self._failure

    @property
    def bad_messages(self) -> int:
        """Messages that did not parse or did not carry the token."""
        return self._intake.bad_messages

    def close(self) -> None:
        """Say goodbye, wait a bounded time until peers have read what was sent, and leave no thread and no socket behind."""
        if self._is_closing:
            return
        self._is_closing = True
        self._wake.set()
        with self._monitor.released():
            self._thread.join()
            with suppress(RuntimeError):  # a store that is gone
                self._connect_to({peer: entry for peer in self.peers if (entry := self._directory.find(peer))})
            self._part()
        self._context.destroy(linger=0)
        collector.leave()

    # Sending.

    def _connect(self) -> dict[int, Outlet]:
        """Connect to all peers when first needed, waiting for those that have not published their address yet."""
        if len(self._outlets) < len(self.peers):
            with self._monitor.released():
                self._connect_to(self._directory.wait_for(self.peers, self._timeout_s))
        return self._outlets

    def _connect_to(self, entries: dict[int, Entry]) -> None:
        with self._connecting:
            new = entries.keys() - self._outlets.keys()
            made = {p: Outlet(self._context, entries[p], self._keys, self._window) for p in sorted(new)}
            self._outlets = {**self._outlets, **made}  # never changed in place: others iterate over it

    def _count_reply(self, to: int, message: Message) -> None:
        if not self._replies_left:
            raise MisplacedCall(
                f"a handler sends at most one reply per message received, and {message.kind} to {to} is its second; "
                f"keep it in the state and let a hook send it."
            )
        self._replies_left -= 1

    def _await_room(self, outlet: Outlet, frames: Frames, to: int) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        while not outlet.offer(frames, may_queue=False):
            self.raise_if_failed()
            if time.monotonic() > deadline_s:
                raise TimedOut(f"send to {to}, whose window is full,", [to], self._timeout_s)
            time.sleep(_RETRY_S)

    # Receiving.

    def _await(self, kind: type[Message], source: int | None) -> Envelope:
        self._receiving_since_s = begun_s = time.monotonic()
        try:
            while True:
                with self._turn:
                    if self._is_reading:
                        self._turn.wait(_LOOK_S)
                    if (found := self._take(kind, source)) is not None:
                        return found
                    is_mine = not self._is_reading
                    self._is_reading = True
                if is_mine and not self._read():
                    self._raise_if_in_vain(kind, source, time.monotonic() - begun_s)
                if self._due:
                    self._handle_due()
                self.raise_if_failed()
        finally:
            self._receiving_since_s, self._received_s = None, time.monotonic()
            if self._received_s - begun_s > _LOOK_S:
                self._wake.set()

    def _take(self, kind: type[Message], source: int | None) -> Envelope | None:
        for place, envelope in enumerate(self._inbox):
            if isinstance(envelope.message, kind) and source in (None, envelope.source):
                del self._inbox[place]
                return envelope
        return None

    def _raise_if_in_vain(self, kind: type[Message], source: int | None, waited_s: float) -> None:
        what = f"receive({kind.__name__}" + (")" if source is None else f", source={source})")
        if len(self._inbox) >= _INBOX_MESSAGES:
            raise RunError(f"{what} cannot be reached: {len(self._inbox)} messages wait before it; receive them first.")
        silent = {peer: outlet for peer, outlet in self._outlets.items() if self._is_silent(outlet)}
        awaited = self.peers if source is None else [source]
        if awaited and all(peer in silent for peer in awaited):
            last = max(awaited, key=lambda peer: silent[peer].gone_s or 0.0)
            why = "it had closed its session." if silent[last].said_goodbye else "its own output says why."
            raise PeerLost(last, silent[last].gone_s or 0.0, what, why)
        if waited_s > self._timeout_s:
            raise TimedOut(what, () if source is None else (source,), self._timeout_s)

    def _is_silent(self, outlet: Outlet) -> bool:
        """Whether nothing more can come from this peer."""
        return outlet.gone_s is not None and (outlet.said_goodbye or self._now_s - outlet.gone_s > _SETTLE_S)

    @property
    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s

    # Reading, one thread at a time.

    def _read_in_background(self) -> None:
        pause_s = _RETRY_S
        try:
            while not self._is_closing:
                with self._turn:
                    is_mine = not self._is_reading and self._worker_is_away
                    self._is_reading = self._is_reading or is_mine
                if is_mine:
                    pause_s = _RETRY_S
                    self._read()
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
        """How long to step aside: a worker that has been receiving for long will say when it is through."""
        since_s = self._receiving_since_s
        return _LOOK_S if since_s is not None and time.monotonic() - since_s > _LOOK_S else 8 * _RETRY_S

    def _read(self) -> bool:
        """As the reader: take in one message if one comes soon, and look after the peers now and then. Return whether one came."""
        came = None
        try:
            in_line = sum(outlet.in_line for outlet in self._outlets.values())
            if len(self._inbox) + len(self._due) + in_line >= _INBOX_MESSAGES:
                time.sleep(_RETRY_S)
            else:
                came = self._intake.read(_RETRY_S if in_line or self._due else _LOOK_S)
            if in_line or time.monotonic() - self._looked_s > _LOOK_S:
                self._look_after_peers()
            if came is not None and came.message is not None and self._received is not None:
                self._received(came.source, came.message)
        finally:
            with self._turn:
                self._is_reading = False
                if came is not None:
                    self._accept(came)
                self._turn.notify()
        return came is not None

    def _accept(self, came: Stamped) -> None:
        if came.message is not None:
            self._place(Envelope(came.source, came.message))
        elif came.purpose == GOODBYE:
            with suppress(RuntimeError):
                self._answer_goodbye(came.source)
        elif came.source in self._outlets:
            self._outlets[came.source].answered_goodbye = True

    def _place(self, envelope: Envelope) -> None:
        is_due = self._is_handling_kinds and isinstance(envelope.message, self._handles)
        (self._due if is_due else self._inbox).append(envelope)

    def _answer_goodbye(self, source: int) -> None:
        if source not in self._outlets and (entry := self._directory.find(source)) is not None:
            self._connect_to({source: entry})
        if source in self._outlets:
            self._outlets[source].depart((stamp(self._directory.token, self.address, FAREWELL),), self._now_s)

    def _look_after_peers(self) -> None:
        self._looked_s = time.monotonic()
        for outlet in self._outlets.values():
            outlet.send_line()
            outlet.look(self._now_s)

    def _handle_due(self) -> None:
        """Give messages to the handler, oldest first. None starts while the window is full, so replies need not wait."""
        while self._due and self._failure is None and not (self._is_closing or self._window.is_full):
            with self._monitor.handling(_LOOK_S) as is_mine, torch.no_grad():
                if not is_mine:
                    return
                if self._due:
                    self._handle(self._due.popleft())

    def _handle(self, envelope: Envelope) -> None:
        self._replies_left = 1
        try:
            self._handler(envelope.source, envelope.message)
        except BaseException as error:  # noqa: BLE001 - whichever thread this is, the worker raises it
            self._failure = error

    # The end.

    def _part(self) -> None:
        """Say goodbye to everybody and read until all have answered, left or been lost."""
        for outlet in self._outlets.values():
            outlet.offer((stamp(self._directory.token, self.address, GOODBYE),), may_queue=True)
        deadline_s = time.monotonic() + min(_FAREWELL_S, self._timeout_s)
        while time.monotonic() < deadline_s and not all(
            outlet.answered_goodbye or outlet.gone_s is not None for outlet in self._outlets.values()
        ):
            self._inbox.clear()
            self._due.clear()
            self._read()
