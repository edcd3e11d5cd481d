"""SwarmSGD's non-blocking exchange: a request, and a response from the partner's message handler.

    i sends the request    Q(X_i)                                          at most one is outstanding
    j sends the response   Q(X_j) and w;  X_j ← X_j + w (Q(X_i) − Q(X_j))  j keeps both until i acknowledges
    i acknowledges         X_i ← X_i + w (Q(X_j) − Q(X_i))

w = 1/2 is the paper's average. If j has an outstanding request of its own, a part of X_j will be replaced again when
that response arrives. With w = 1/2 both times nothing of X_j would remain, so that models are swapped instead of
averaged. j therefore chooses a smaller w (``theory.overlaps``): 1/4 if its request is to i, 1/3 if it is to another.

A lattice vector that cannot be decoded changes nothing; its sender sends the same points with more bits. Requests
without response and responses without acknowledgement are reconciled at the end of the run (``reconcile``). Σ X is
therefore conserved.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tacit.core.messages import Message
from tacit.core.worker import Worker
from tacit.errors import BadMessage, LatticeOverflow
from tacit.strategies.swarm.codec import ModelCodec, bits_and_side, decode, distance
from tacit.strategies.swarm.messages import (
    SwarmAcknowledgement,
    SwarmDecline,
    SwarmJoinRequest,
    SwarmJoinResponse,
    SwarmMessage,
    SwarmRequest,
    SwarmResend,
    SwarmResponse,
)
from tacit.strategies.swarm.state import SwarmState
from tacit.theory.overlaps import CROSSING_WEIGHT, OVERLAPPING_WEIGHT


class Exchanges(NamedTuple):
    """The non-blocking exchanges of one node."""

    worker: Worker
    state: SwarmState
    codec: ModelCodec

    def request(self, partner: int) -> None:
        """Start an exchange with ``partner``."""
        state, worker = self.state, self.worker
        if self.codec.lattice is not None and not state.memory:  # no distance measured: use this node's own progress
            self.codec.observe(distance(worker.parameters, state.base))
        encoded = self.codec.encode(state.buffer, state.base)
        number = state.in_flight = state.started * worker.size + worker.rank
        state.started, state.requested_at = state.started + 1, state.exchanges
        state.requested[number], state.points[number] = partner, encoded.points
        worker.network.send(partner, SwarmRequest(number, encoded.body, encoded.outdated).owned())

    def handle(self, source: int, message: Message) -> None:
        """Handle one message; send at most one message back."""
        state, worker = self.state, self.worker
        self._check(source, message)
        if source in state.unresponsive:
            state.unresponsive.remove(source)
        match message:
            case SwarmRequest():
                self._respond(source, message)
            case SwarmResponse():
                self._apply(source, message)
            case SwarmResend():
                self._send_again(source, message)
            case SwarmAcknowledgement(number=number) if number in state.applied:
                del state.applied[number], state.weights[number], state.points[number]
            case SwarmDecline(number=number) if number in state.requested:
                self._close(number)
            case SwarmJoinRequest():
                has_trained = state.is_ready and worker.step > 0
                worker.network.send(source, SwarmJoinResponse(state.buffer if has_trained else state.buffer[:0]))

    def _check(self, source: int, message: Message) -> None:
        """Raise ``BadMessage`` if ``message`` belongs to an exchange of others than this node and ``source``."""
        state, size, is_theirs = self.state, self.worker.size, True
        if not isinstance(message, SwarmJoinRequest):
            number = message.number  # type: ignore[attr-defined]
            if number in state.requested:
                is_theirs = state.requested[number] == source and not isinstance(message, SwarmRequest)
            elif isinstance(message, SwarmRequest) or number in state.points:
                is_repeated = isinstance(message, SwarmRequest) and number in state.points
                is_theirs = number >= 0 and number % size == source and not is_repeated  # they have started it
        if not is_theirs or not 0 <= source < size or source == self.worker.rank:
            raise BadMessage(f"a {type(message).__name__} of {source} belongs to no exchange with it.")

    def _respond(self, source: int, request: SwarmRequest) -> None:
        """X_j ← X_j + w (Q(X_i) − Q(X_j)); send Q(X_j) and w."""
        state, worker, number = self.state, self.worker, request.number
        if not state.is_ready:
            worker.network.send(source, SwarmDecline(number))
            return
        theirs = self._decode(source, request, state.base if self.codec.two_stage else state.buffer)
        if theirs is None:
            return
        encoded = self.codec.encode(state.buffer, state.base, theirs)
        weight = self._weight(source)
        change = (theirs - encoded.points).mul_(weight)
        state.buffer.add_(change)
        state.applied[number], state.weights[number], state.points[number] = change, weight, encoded.points
        worker.note("met", source)
        worker.note("staleness", worker.step - state.published)
        worker.network.send(source, SwarmResponse(number, encoded.body, encoded.outdated, weight).owned())

    def _weight(self, source: int) -> float:
        """Return w for a request from ``source``: less than 1/2 while this node's own request is outstanding."""
        state = self.state
        if state.in_flight < 0:
            return 1 / 2
        return CROSSING_WEIGHT if state.requested[state.in_flight] == source else OVERLAPPING_WEIGHT

    def _apply(self, source: int, response: SwarmResponse) -> None:
        """X_i ← X_i + w (Q(X_j) − Q(X_i)); send an acknowledgement."""
        state, number = self.state, response.number
        if number not in state.requested:
            return
        own = state.points[number]
        theirs = self._decode(source, response, own)
        if theirs is None:
            return
        state.buffer.add_((theirs - own).mul_(response.weight))
        state.has_response |= number == state.in_flight
        self._close(number)
        self.worker.note("met", source)
        self.worker.network.send(source, SwarmAcknowledgement(number))

    def _decode(self, source: int, message: SwarmMessage, reference: Tensor) -> Tensor | None:
        """Return the decoded model; if it cannot be decoded, request it with more bits and return None."""
        try:
            model = decode(message, reference)
        except LatticeOverflow as overflow:
            bits, side = bits_and_side(message.body)
            self.worker.note("overflow", bits)
            self.codec.observe(2 * overflow.radius)
            self.worker.network.send(source, SwarmResend(message.number, bits, side))
            return None
        if self.codec.lattice is not None and self.state.published:  # before that the distance is only rounding
            self.codec.observe(distance(model, reference))
        return model

    def _send_again(self, source: int, resend: SwarmResend) -> None:
        state, number = self.state, resend.number
        if number not in state.points:
            return
        try:
            body, outdated, _ = self.codec.encode_again(state.points[number], resend.bits, resend.side)
        except ValueError as error:  # no lattice has these bits and this side
            raise BadMessage(f"received a request for other points: {error}") from error
        message: SwarmMessage = SwarmRequest(number, body, outdated)
        if number not in state.requested:
            message = SwarmResponse(number, body, outdated, state.weights[number])
        self.worker.network.send(source, message.owned())

    def _close(self, number: int) -> None:
        state = self.state
        if number == state.in_flight:
            state.in_flight = -1
        del state.requested[number], state.points[number]
