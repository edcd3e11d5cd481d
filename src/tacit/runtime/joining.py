"""Joining: how a new life gets what a worker needs besides the trained model, which the strategy fetches itself.

Any worker gives it, in its message handler: frozen parameters and buffers, its step, and the time of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Request of a worker that joins a run."""


@dataclass(frozen=True)
class StateReply(Message, wire="start"):
    """What a worker needs that joins a run. exchanges: of all workers so far."""

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
        self.offered: Callable[[], Start] | None = None
        self._missed = 0

    @property
    def is_due(self) -> bool:
        return self._participants.joins

    def offer(self, start: Callable[[], Start]) -> None:
        self.offered = start

    def fetch(self) -> Start:
        assert self.endpoint is not None
        reply = self._ask(self.endpoint, [peer for peer in self.endpoint.peers if peer >= 0])
        self._missed = reply.exchanges
        return Start(reply.step, reply.time_s, [one.tensor for one in reply.tensors])

    def end(self) -> None:
        self._set_exchanges(self._participants.join(self._missed))

    def answer(self, source: int) -> None:
        """Give a joiner what it needs; nothing if this worker is joining itself."""
        if self.offered is None or self.is_due or self.endpoint is None:
            return
        start = self.offered()
        tensors = tuple(TensorMessage(tensor) for tensor in start.tensors)
        self.endpoint.send(source, StateReply(start.step, self._now_s(), self._exchanges(), tensors))

    def _ask(self, endpoint: MessageEndpoint, donors: Sequence[int]) -> StateReply:
        for number in range(_ROUNDS):
            for donor in donors:
                if donor == endpoint.address:
                    continue
                try:
                    endpoint.send(donor, StateRequest())
                    return endpoint.receive(StateReply, donor, timeout_s=_FIRST_WAIT_S * 2**number)[1]
                except (PeerLost, TimedOut):
                    continue
        raise RunError("no worker of this run has answered; it may have ended.")
