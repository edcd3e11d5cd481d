"""What SwarmSGD's nodes say to each other: models as they are or as lattice points, and the few words around them.

Every exchange has a ``number`` that is nobody else's; modulo the number of workers it is the initiator's rank.

A node that speaks in lattice points keeps the points it spoke of (*points*: Q(X)), so that it can say the very same
ones again with more bits. The side of a request follows the distances measured so far; that of an answer is exact,
since the answerer knows what its answer is decoded against.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from torch import Tensor

from tacit.compression import Lattice
from tacit.compression.compressor import Memory
from tacit.compression.lattice import LatticeVector
from tacit.core.messages import Message
from tacit.errors import BadMessage, require

_MOST_BITS: Final = 16
_MARGIN: Final = 1.01
"""By how much a side is wider than a known distance asks for: its own rounding must not matter."""


@dataclass(frozen=True)
class SwarmMessage(Message, wire="swarm"):
    """A model: its numbers, or a lattice vector to be decoded against ``outdated``, where that is not None."""

    number: int
    body: Tensor | LatticeVector
    outdated: LatticeVector | None


@dataclass(frozen=True)
class SwarmAsk(SwarmMessage, wire="swask"):
    """The initiator's Q(X_i)."""


@dataclass(frozen=True)
class SwarmAnswer(SwarmMessage, wire="swans"):
    """The partner's Q(X_j) as it was before it added its part, and ``weight``: which part of the difference both sides
    add.
    """

    weight: float

    def __post_init__(self) -> None:
        require(0 < self.weight <= 1 / 2, f"weight={self.weight} must be above 0 and at most 1/2.")


@dataclass(frozen=True)
class SwarmModel(SwarmMessage, wire="swmod"):
    """Blocking: a partner's Q(x); its number is that of the meeting."""


@dataclass(frozen=True)
class SwarmVerdict(Message, wire="swok"):
    """Blocking: whether the partner's lattice points could be decoded."""

    is_understood: bool


@dataclass(frozen=True)
class SwarmAgain(Message, wire="swmore"):
    """The words of that number, in so many ``bits`` on a lattice of ``side``, could not be decoded and changed nothing:
    say it with more bits.
    """

    number: int
    bits: int
    side: float


@dataclass(frozen=True)
class SwarmDone(Message, wire="swdone"):
    """The answer has been taken in: its snapshot is not needed any more."""

    number: int


@dataclass(frozen=True)
class SwarmDecline(Message, wire="swno"):
    """Nothing was changed and nothing will be: this node has no trained model yet."""

    number: int


@dataclass(frozen=True)
class SwarmHello(Message, wire="swjoin"):
    """I have come in the middle of a run: what is your model?"""


@dataclass(frozen=True)
class SwarmWelcome(Message, wire="swinit"):
    """The model of a node that has trained; empty from one that has not."""

    model: Tensor


@dataclass(frozen=True)
class SwarmUnsettled(Message, wire="swopen"):
    """At the end: the numbers of exchanges that this node began and never took an answer of."""

    numbers: Tensor


class Encoded(NamedTuple):
    """A model as it travels, and the very numbers its receiver will read."""

    body: Tensor | LatticeVector
    outdated: LatticeVector | None
    points: Tensor


class ModelCodec(NamedTuple):
    """How a node speaks of models: as they are, or as lattice points, in one stage or two."""

    lattice: Lattice | None
    two_stage: bool
    random: np.random.Generator
    memory: Memory  # the lattice's measured distance

    def say(self, model: Tensor, outdated: Tensor, reference: Tensor | None = None) -> Encoded:
        """Put ``model`` into words; ``reference`` is what they will be decoded against, where that is known.

        In two stages the node's ``outdated`` model goes before, which is nearer to the receiver's, and ``model`` is
        decoded against that.
        """
        if self.lattice is None:
            points = model.clone()
            return Encoded(points, None, points)
        if not self.two_stage:
            words, points = self._encoded(model, reference)
            return Encoded(words, None, points)
        first, stage = self._encoded(outdated, reference)
        words, points = self._encoded(model, stage)
        return Encoded(words, first, points)

    def say_again(self, points: Tensor, bits: int, side: float) -> Encoded:
        """Put the same lattice points into words of more bits; in the end as they are."""
        if self.lattice is None or bits >= _MOST_BITS:
            return Encoded(points, None, points)
        finer = replace(self.lattice, bits=min(_MOST_BITS, 2 * bits), side=side, stochastic=False)
        return Encoded(finer.compress(points, self.random), None, points)

    def observe(self, distance: float) -> None:
        """Remember how far apart two models were."""
        if self.lattice is not None:
            self.lattice.observe(self.memory, distance)

    def _encoded(self, x: Tensor, reference: Tensor | None) -> tuple[LatticeVector, Tensor]:
        """Return x as a lattice vector and its points; within reach of ``reference`` where that is known and no side
        was fixed.
        """
        assert self.lattice is not None
        far = None if reference is None else _MARGIN * distance(x, reference)
        return self.lattice.compress_with_points(x, self.random, self.memory, far)


def heard(words: SwarmMessage, reference: Tensor) -> Tensor:
    """Return the model that was said, decoded against ``reference``; raise ``LatticeOverflow`` where that is too far
    away.
    """
    if isinstance(words.body, Tensor):
        if words.body.shape != reference.shape:
            raise BadMessage(f"a model of {words.body.numel()} numbers came for {reference.numel()} parameters.")
        return words.body.to(reference)
    if words.outdated is not None:
        reference = _lattice(words.outdated).of_length(reference.numel()).dense(reference)
    return _lattice(words.body).of_length(reference.numel()).dense(reference)


def bits_and_side(body: Tensor | LatticeVector) -> tuple[int, float]:
    """Return the bits and the side of the lattice that a ``body`` uses."""
    vector = _lattice(body)
    return vector.bits, vector.side


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest difference in any coordinate."""
    return float((one - other).abs_().max())


def _lattice(body: object) -> LatticeVector:
    if not isinstance(body, LatticeVector):
        raise BadMessage(f"a {type(body).__name__} came where a lattice vector was expected.")
    return body
