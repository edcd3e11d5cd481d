"""Joining: how a new life gets what a worker needs besides the trained model, which the strategy fetches itself.

Any worker gives it, when its next step ends: frozen parameters and buffers, its step, and the time of the run. The
joiner then makes the calls of a script that follow that step, as the donor does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tacit.core.messages import Message, TensorMessage
from tacit.errors import PeerLost, RunError, TimedOut
from tacit.runtime.participants import Participants
from tacit.session.backend import Start

if TYPE_CHECKING:  # a run without messages does not import zmq
    from tacit.runtime.messaging.endpoint import MessageEndpoint

_FIRST_WAIT_S: Final = 5.0
_ROUNDS: Final = 5
"""How often each worker is asked, for twice as long in each round."""


@dataclass(frozen=True)
class StateRequest(Message, wire="stask"):
    """Request of a worker that joins a run. life: of its seat."""

    life: int


@dataclass(frozen=True)
class StateReply(Message, wire="start"):
    """What a worker needs that joins a run. step: −1: the sender joins, too. exchanges: of all workers so far."""

    step: int
    time_s: float
    exchanges: int
    tensors: tuple[TensorMessage, ...]


class ProcessStartExchange:
    """One process's part: it joins, or gives to those who do.

    exchanges: returns and sets the number of exchanges of all workers so far.
    """

    def __init__(
        self,
        participants: Participants,
        now_s: Callable[[], float],
        exchanges: Callable[[], int],
        set_exchanges: Callable[[int], None],
    ) -> None:
        self._participants, self._now_s = participants, now_s
        self._exchanges, self._set_exchanges = exchanges, set_exchanges
        self.endpoint: MessageEndpoint | None = None
        self.requests: deque[tuple[int, int]] = deque()  # rank and life of joiners that wait

    @property
    def is_due(self) -> bool:
        return self._participants.joins

    def fetch(self) -> Start:
        assert self.endpoint is not None
        self._participants.prepare_to_join()
        reply = self._ask(self.endpoint)
        self._set_exchanges(reply.exchanges)
        return Start(reply.step, reply.time_s, [one.tensor for one in reply.tensors])

    def end(self) -> None:
        self._participants.joins = False

    def take_request(self, rank: int, life: int) -> None:
        """Note that ``life`` of ``rank`` waits; refuse at once while this worker joins itself. Runs in a handler."""
        assert self.endpoint is not None
        if self._participants.joins:
            self.endpoint.send(rank, StateReply(-1, 0.0, 0, ()))
        else:
            self.requests.append((rank, life))

    def give(self, start: Callable[[], Start]) -> None:
        assert self.endpoint is not None
        while self.requests:
            rank, life = self.requests.popleft()
            given = start()
            self._participants.admit(rank, life, self._exchanges())
            tensors = tuple(TensorMessage(tensor) for tensor in given.tensors)
            self.endpoint.send(rank, StateReply(given.step, self._now_s(), self._exchanges(), tensors))

    def _ask(self, endpoint: MessageEndpoint) -> StateReply:
        others = (peer for peer in endpoint.peers if 0 <= peer != endpoint.address)
        donors = sorted(others, key=self._participants.is_gone)
        for number in range(_ROUNDS):
            for donor in donors:
                try:
                    endpoint.send(donor, StateRequest(self._participants.life))
                    reply = endpoint.receive(StateReply, donor, timeout_s=_FIRST_WAIT_S * 2**number)[1]
                    if reply.step >= 0:
                        return reply
                except (PeerLost, TimedOut):
                    pass
                self._participants.raise_if_over()
        raise RunError("no worker of this run has answered; it may have ended.")
