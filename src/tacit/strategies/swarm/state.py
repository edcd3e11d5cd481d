"""State of a SwarmSGD node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from tacit.compression.compressor import Memory


@dataclass
class SwarmState:
    """The communication buffer of a node, and its exchanges in progress by number."""

    buffer: Tensor  # X
    base: Tensor  # X when it was last copied to the working model: x = base − η h
    due: int = 0  # the step after which the next exchange starts
    exchanges: int = 0  # number of exchanges so far, including skipped ones
    published: int = 0  # the last step whose progress is in the buffer
    started: int = 0  # number of requests sent; determines the numbers of exchanges
    in_flight: int = -1  # the exchange whose response is outstanding; −1: none
    requested_at: int = 0  # ``exchanges`` when that request was sent
    has_response: bool = False  # a response has changed the buffer; the working model has not adopted it yet
    requested: dict[int, int] = field(default_factory=dict)  # unanswered requests: the partner
    points: dict[int, Tensor] = field(default_factory=dict)  # Q(X) as sent, kept to send it again
    applied: dict[int, Tensor] = field(default_factory=dict)  # unacknowledged responses: the change of the buffer
    weights: dict[int, float] = field(default_factory=dict)  # unacknowledged responses: w
    unresponsive: list[int] = field(default_factory=list)  # peers that get no requests until they send a message
    memory: Memory = field(default_factory=dict)  # the distance that the lattice has measured
    is_ready: bool = True  # False while a joining node has no trained model
    is_finished: bool = False  # the run has ended; messages that arrive now are ignored

    earlier_names: ClassVar = {  # in checkpoints of version 0.1
        "exchanges": "meetings",
        "started": "begun",
        "requested_at": "asked_at",
        "has_response": "has_answer",
        "requested": "asked",
        "applied": "given",
        "unresponsive": "silent",
        "is_ready": "is_member",
        "is_finished": "is_closed",
    }
