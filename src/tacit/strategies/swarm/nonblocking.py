"""SwarmSGD's exchanges without waiting: one side asks, the other answers from its handler, and both add a part w of the
difference.

    i asks     Q(X_i)                                       one at a time
    j answers  Q(X_j) and w; X_j ← X_j + w (Q(X_i) − Q(X_j))  and keeps both in mind until i is done
    i is done  X_i ← X_i + w (Q(X_j) − Q(X_i))

w = 1/2 is the paper's average. A node that answers while its own request is unanswered will still replace a part of the
model it answers with; two halves at once would replace all of it, so that models swap instead of meeting. It therefore
chooses a smaller w (``theory.overlaps``): 1/4 if it has asked i too, 1/3 if it has asked another node.

Words that cannot be decoded change nothing and are said again with more bits, the same lattice points. What is asked
and never answered, and what is given and never acknowledged, is set right at the end of the run (``endings``): Σ X
stays, whatever happens on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from tacit.compression.compressor import Memory
from tacit.core.messages import Message
from tacit.core.worker import Worker
from tacit.errors import LatticeOverflow
from tacit.strategies.swarm.messages import (
    ModelCodec,
    SwarmAgain,
    SwarmAnswer,
    SwarmAsk,
    SwarmDecline,
    SwarmDone,
    SwarmHello,
    SwarmMessage,
    SwarmWelcome,
    bits_and_side,
    distance,
    heard,
)
from tacit.theory.overlaps import CROSSING_WEIGHT, OVERLAPPING_WEIGHT

HANDLED: tuple[type[Message], ...] = (SwarmAsk, SwarmAnswer, SwarmAgain, SwarmDone, SwarmDecline, SwarmHello)


@dataclass
class SwarmState:
    """The buffer and what is under way, by number of the exchange."""

    buffer: Tensor  # X
    base: Tensor  # X when the working model took it over: x = base − η h
    due: int = 0  # the step whose end is the next meeting
    meetings: int = 0  # so far, those that were skipped included
    published: int = 0  # the step whose progress the buffer holds
    begun: int = 0  # exchanges, which makes their numbers
    in_flight: int = -1  # the exchange whose answer is expected at every step boundary; −1: none
    asked_at: int = 0  # the meeting at which it was begun
    has_answer: bool = False  # for the working model to follow
    asked: dict[int, int] = field(default_factory=dict)  # begun and not answered: whom
    points: dict[int, Tensor] = field(default_factory=dict)  # Q(X) as this node said it, to be said again
    given: dict[int, Tensor] = field(
        default_factory=dict
    )  # answered and not acknowledged: what was added to the buffer
    weights: dict[int, float] = field(default_factory=dict)  # w of these answers
    silent: list[int] = field(default_factory=list)  # peers that are taken for gone
    memory: Memory = field(default_factory=dict)  # the lattice's
    is_member: bool = True  # has a model worth averaging
    is_closed: bool = False  # the run is over: whatever still arrives comes too late


class Exchanges(NamedTuple):
    """One node's part in them."""

    worker: Worker
    state: SwarmState
    tongue: ModelCodec

    def ask(self, partner: int) -> None:
        """Begin an exchange."""
        state, worker = self.state, self.worker
        spoken = self.tongue.say(state.buffer, state.base)
        number = state.in_flight = state.begun * worker.size + worker.rank
        state.begun, state.asked_at = state.begun + 1, state.meetings
        state.asked[number], state.points[number] = partner, spoken.points
        worker.network.send(partner, SwarmAsk(number, spoken.body, spoken.outdated).owned())

    def handle(self, source: int, message: Message) -> None:
        """Do what a message asks for; at most one word goes back."""
        state, worker = self.state, self.worker
        match message:
            case SwarmAsk():
                self._answer(source, message)
            case SwarmAnswer():
                self._take(source, message)
            case SwarmAgain():
                self._say_again(source, message)
            case SwarmDone(number=number) if number in state.given:
                del state.given[number], state.weights[number], state.points[number]
            case SwarmDecline(number=number) if number in state.asked:
                self._forget(number)
            case SwarmHello():
                has_trained = state.is_member and worker.step > 0
                worker.network.send(source, SwarmWelcome(state.buffer if has_trained else state.buffer[:0]))

    def _answer(self, source: int, asked: SwarmAsk) -> None:
        state, worker, number = self.state, self.worker, asked.number
        if not state.is_member:
            worker.network.send(source, SwarmDecline(number))
            return
        theirs = self._heard(source, asked, state.base if self.tongue.two_stage else state.buffer)
        if theirs is None:
            return
        spoken = self.tongue.say(state.buffer, state.base, theirs)
        weight = self._weight(source)
        change = (theirs - spoken.points).mul_(weight)
        state.buffer.add_(change)
        state.given[number], state.weights[number], state.points[number] = change, weight, spoken.points
        worker.note("met", source)
        worker.note("staleness", worker.step - state.published)
        worker.network.send(source, SwarmAnswer(number, spoken.body, spoken.outdated, weight).owned())

    def _weight(self, source: int) -> float:
        """Return which part of the difference to ``source`` this node and ``source`` add, from what this node has in
        flight itself.
        """
        state = self.state
        if state.in_flight < 0:
            return 1 / 2
        return CROSSING_WEIGHT if state.asked[state.in_flight] == source else OVERLAPPING_WEIGHT

    def _take(self, source: int, answer: SwarmAnswer) -> None:
        state, number = self.state, answer.number
        if number not in state.asked:
            return
        own = state.points[number]
        theirs = self._heard(source, answer, own)
        if theirs is None:
            return
        state.buffer.add_((theirs - own).mul_(answer.weight))
        state.has_answer |= number == state.in_flight
        self._forget(number)
        self.worker.note("met", source)
        self.worker.network.send(source, SwarmDone(number))

    def _heard(self, source: int, words: SwarmMessage, reference: Tensor) -> Tensor | None:
        """Return the model that was said; where it cannot be decoded ask for it again."""
        try:
            model = heard(words, reference)
        except LatticeOverflow as overflow:
            bits, side = bits_and_side(words.body)
            self.worker.note("overflow", bits)
            self.tongue.observe(2 * overflow.radius)
            self.worker.network.send(source, SwarmAgain(words.number, bits, side))
            return None
        if self.tongue.lattice is not None and self.state.published:  # until then only rounding would be measured
            self.tongue.observe(distance(model, reference))
        return model

    def _say_again(self, source: int, again: SwarmAgain) -> None:
        state, number = self.state, again.number
        if number not in state.points:
            return
        spoken = self.tongue.say_again(state.points[number], again.bits, again.side)
        words: SwarmMessage
        if number in state.asked:
            words = SwarmAsk(number, spoken.body, spoken.outdated)
        else:
            words = SwarmAnswer(number, spoken.body, spoken.outdated, state.weights[number])
        self.worker.network.send(source, words.owned())

    def _forget(self, number: int) -> None:
        state = self.state
        if number == state.in_flight:
            state.in_flight = -1
        del state.asked[number], state.points[number]
