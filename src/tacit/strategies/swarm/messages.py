"""Messages of SwarmSGD.

Each exchange has a unique ``number``; modulo the number of workers it is the rank of the node that started it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tacit.compression.lattice import LatticeVector
from tacit.core.messages import Message
from tacit.errors import require


@dataclass(frozen=True)
class SwarmMessage(Message, wire="swarm"):
    """A model: a tensor, or a lattice vector. If ``outdated`` is not None, the receiver decodes ``body`` against it."""

    number: int
    body: Tensor | LatticeVector
    outdated: LatticeVector | None


@dataclass(frozen=True)
class SwarmRequest(SwarmMessage, wire="swask"):
    """The initiator's Q(X_i)."""


@dataclass(frozen=True)
class SwarmResponse(SwarmMessage, wire="swans"):
    """The partner's Q(X_j) before its own change, and ``weight``: the part of the difference that both sides add."""

    weight: float

    def __post_init__(self) -> None:
        require(0 < self.weight <= 1 / 2, f"weight={self.weight} must be above 0 and at most 1/2.")


@dataclass(frozen=True)
class SwarmModel(SwarmMessage, wire="swmod"):
    """Blocking form: a partner's Q(x). ``number`` counts the matchings."""


@dataclass(frozen=True)
class SwarmDecoded(Message, wire="swok"):
    """Blocking form: whether the sender has decoded the receiver's lattice vector."""

    is_decoded: bool


@dataclass(frozen=True)
class SwarmResend(Message, wire="swmore"):
    """Request to send exchange ``number`` with more bits: its lattice vector could not be decoded and changed nothing.

    ``bits`` and ``side`` are those of the lattice vector.
    """

    number: int
    bits: int
    side: float


@dataclass(frozen=True)
class SwarmAcknowledgement(Message, wire="swdone"):
    """The initiator has applied the response; the partner can drop its copy."""

    number: int


@dataclass(frozen=True)
class SwarmDecline(Message, wire="swno"):
    """The partner has no trained model yet. It has changed nothing and will not."""

    number: int


@dataclass(frozen=True)
class SwarmJoinRequest(Message, wire="swjoin"):
    """Request of a node that joins a running swarm for the receiver's model."""


@dataclass(frozen=True)
class SwarmJoinResponse(Message, wire="swinit"):
    """The sender's model; empty if the sender has not trained."""

    model: Tensor


@dataclass(frozen=True)
class SwarmUnanswered(Message, wire="swopen"):
    """At the end of a run: the numbers of exchanges that the sender started and applied no response of."""

    numbers: Tensor


HANDLED: tuple[type[Message], ...] = (
    SwarmRequest,
    SwarmResponse,
    SwarmResend,
    SwarmAcknowledgement,
    SwarmDecline,
    SwarmJoinRequest,
)
"""Messages of the non-blocking form that its message handler receives."""
