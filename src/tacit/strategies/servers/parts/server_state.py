"""The state of a server that checkpoints store."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class ServerState:
    """A server's counters and measurements. Pushes in transit are not part of it: learners compute them again."""

    k: int  # K, the number of gradients of an update
    version: int = 0  # number of updates
    has_left: list[bool] = field(default_factory=list)  # by learner: it has left or was lost
    memory: dict[str, float] = field(default_factory=dict)  # of the rules that adapt K and learning rates
    outer: dict[str, Tensor] = field(default_factory=dict)  # of the outer optimizer, where learners push changes
