"""Reading side of an endpoint: moves messages from the socket to the inbox and watches the peers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Final

from tacit.core.messages import Message
from tacit.errors import PeerLost, RunError, TimedOut
from tacit.runtime.messaging.inbox import Inbox, Received
from tacit.runtime.messaging.receiver import Purpose, Receiver
from tacit.runtime.messaging.senders import Sender, Senders

_INBOX_MESSAGES: Final = 1024
"""Messages and replies that may wait here. Then nothing is read from the socket, and zmq stops the senders."""
LOOK_S: Final = 0.05
"""Period of the check for lost peers, and longest wait for a message in one call."""
_QUEUED_S: Final = 1.0
"""How long a lost peer's last messages may wait to be read while others send."""
RETRY_S: Final = 0.001
"""Pause before an operation that could not be done at once is tried again."""


class Reader:
    """Reads for one endpoint; ``lock`` is held by the thread that reads, until what it has read is stored.

    address, peers: of the endpoint.
    """

    def __init__(
        self,
        address: int,
        peers: Sequence[int],
        receiver: Receiver,
        senders: Senders,
        inbox: Inbox,
        timeout_s: float,
    ) -> None:
        self._address, self._peers = address, peers
        self._receiver, self._senders, self._inbox = receiver, senders, inbox
        self._timeout_s = timeout_s
        self.lock = Lock()
        self.awaits_large = False  # the reply to a large message takes longer than active waiting is worth
        self._begun_s = self._looked_s = time.monotonic()
        self._unreported = [peer for peer in peers if peer != address] if address < 0 else []
        self.arrived: Counter[int] = Counter()  # messages read, by sender
        self.arrived_s = 0.0  # when the last one was read, by ``time.perf_counter``
        self._gone: list[int] = []  # unreported peers whose connection has broken, or who sent a goodbye
        self._replaced: dict[int, list[Message]] = {}  # new lives, with their messages; the loss is reported first

    @property
    def lost(self) -> list[int]:
        """The peers whose loss ``raise_if_lost`` has reported."""
        return [peer for peer in self._peers if peer != self._address and peer not in self._unreported]

    @property
    def now_s(self) -> float:
        """The time since the endpoint was made."""
        return time.monotonic() - self._begun_s

    def read(self, now_s: float, kind: type[Message] | None = None, source: int | None = None) -> Received | bool:
        """Read one message if one arrives soon, and check the peers from time to time.

        Return the message if it is of ``kind`` and from ``source``. Otherwise store it, and return whether one came.
        """
        inbox, queued = self._inbox, self._senders.window.queued
        if queued or now_s - self._looked_s > LOOK_S:
            self._check_peers(now_s)
        if len(inbox.waiting) + len(inbox.due) + queued >= _INBOX_MESSAGES:
            time.sleep(RETRY_S)
            return False
        is_eager = kind is not None and not self.awaits_large
        came = self._receiver.read(RETRY_S if queued or inbox.due else LOOK_S, eagerly=is_eager)
        if came is None:
            return False
        sender, message = came
        if not self._is_of_latest_life(sender):
            return True
        if isinstance(message, Purpose):
            self._take_purpose(sender, message)
            return True
        self.arrived[sender] += 1
        self.arrived_s = time.perf_counter()
        if sender in self._replaced:
            self._replaced[sender].append(message)
        elif kind is not None and inbox.is_for(came, kind, source):
            return came
        else:
            inbox.add((sender, message))
        return True

    def _is_of_latest_life(self, sender: int) -> bool:
        """Whether the message read last is not of an earlier life, nor of one that this end has lost."""
        life, known = self._receiver.life, self._senders.life_of(sender)
        if life > known:
            try:
                return self._take_new_life(sender, life, is_first=not known)
            except RuntimeError:  # the store is gone
                return False
        if life == known and sender in self._senders.open and self._senders.open[sender].is_lost:
            with suppress(RuntimeError):
                if self._senders.open[sender].was_stopped and min(sender, self._address) >= 0:
                    self._senders.renew(sender, life, self.now_s)  # a peer that goes on; a server has dropped it
                else:
                    self._senders.tell_lost(sender)
        return life == known

    def connect_to_new_life(self, peer: int) -> Sender:
        """Connect to a new life of a lost peer if there is one; return the connection."""
        with suppress(RuntimeError), self.lock:  # RuntimeError: the store is gone
            life = self._senders.published_life(peer)
            if life > self._senders.life_of(peer):  # the thread that reads may have connected to it already
                self._take_new_life(peer, life, is_first=False)
        return self._senders.open[peer]

    def _take_new_life(self, sender: int, life: int, *, is_first: bool) -> bool:
        if not self._senders.renew(sender, life, self.now_s):
            return False
        if is_first:
            return True
        self.arrived[sender] = 0
        self._gone = [rank for rank in self._gone if rank != sender]
        if self._address < 0 and sender in self._unreported:
            self._replaced[sender] = []
        elif self._address < 0:
            self._unreported.append(sender)
        return True

    def _check_peers(self, now_s: float) -> None:
        self._looked_s = now_s
        self._senders.check(self.now_s)
        senders = self._senders.open
        self._gone = [p for p in self._unreported if p in senders and senders[p].gone_s is not None]

    def _take_purpose(self, sender: int, purpose: Purpose) -> None:
        """Acknowledge a peer's goodbye, note that it has acknowledged ours, or that it has gone on without this end."""
        with suppress(RuntimeError):  # the store is gone
            peer = self._senders.to(sender)
            if peer is None:
                return
            if purpose is Purpose.GOODBYE:
                peer.depart(self.now_s)
            elif purpose is Purpose.GOODBYE_ACK:
                peer.goodbye_ack = True
            else:
                peer.lose(self.now_s)

    def awaits(self, sent: Mapping[int, int]) -> bool:
        """Whether messages of living peers are missing, of which each has sent as many as ``sent`` says."""
        if len(self._inbox) >= _INBOX_MESSAGES or self._receiver.bad_messages:  # some are not read, or not counted
            return False
        gone = {rank for rank, peer in self._senders.open.items() if peer.gone_s is not None}
        return any(self.arrived[rank] < count for rank, count in sent.items() if rank not in gone)

    def report_replaced(self, lives: Mapping[int, int]) -> None:
        """Let ``raise_if_lost`` report those ``lives`` of peers that a later one has replaced."""
        with self.lock:
            for peer, life in lives.items():
                if self._senders.life_of(peer) > life:
                    self._replaced.setdefault(peer, [])

    def raise_if_lost(self, kind: type[Message]) -> None:
        """On a server: raise ``PeerLost`` once for each lost life, between its messages and those of the next life."""
        need = "may need a message from it"
        for rank in [*self._replaced]:
            for message in self._replaced.pop(rank):
                self._inbox.add((rank, message))
            raise PeerLost(rank, self.now_s, f"receive({kind.__name__})", need=need)
        for rank in self._gone:
            peer = self._senders.open[rank]
            if peer.is_silent(self.now_s):
                self._unreported.remove(rank)
                self._gone = [other for other in self._gone if other != rank]
                raise PeerLost(rank, peer.gone_s or 0.0, f"receive({kind.__name__})", need=need)

    def raise_if_in_vain(
        self, kind: type[Message], source: int | None, waited_s: float, timeout_s: float | None, *, is_idle: bool
    ) -> None:
        """Raise if the message cannot come any more, or has not come within the time-out.

        is_idle: nothing has arrived for ``LOOK_S``. Otherwise it may be behind the messages of others.
        """
        what = f"receive({kind.__name__}" + (")" if source is None else f", source={source})")
        if len(self._inbox) >= _INBOX_MESSAGES:
            raise RunError(f"{what} cannot be reached: {len(self._inbox)} messages wait before it; receive them first.")
        silent_s = self.now_s - (0.0 if is_idle else _QUEUED_S)
        silent = {rank: peer for rank, peer in self._senders.open.items() if peer.is_silent(silent_s)}
        awaited = self._peers if source is None else [source]
        is_to_report = source is None and any(rank in self._unreported for rank in silent)  # by raise_if_lost
        if awaited and not is_to_report and all(rank in silent for rank in awaited):
            last = max(awaited, key=lambda rank: silent[rank].gone_s or 0.0)
            why = "it had closed its session." if silent[last].sent_goodbye else "its own output says why."
            need = "needs a message and no peer is left" if source is None else "needs a message from it"
            raise PeerLost(last, silent[last].gone_s or 0.0, what, why, need=need)
        limit_s = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        if waited_s > limit_s:
            raise TimedOut(what, () if source is None else (source,), limit_s)
