"""Channels separate the sessions of a simulated script: messages, collectives, servers and trace.

A run of a workload has one channel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tacit.core.network import shard_at
from tacit.record.trace import Trace
from tacit.simulation.collectives import Collectives

if TYPE_CHECKING:
    from tacit.simulation.endpoints import Endpoint


@dataclass
class Channel:
    """The communication of one session. All channels share links and clocks."""

    session: int  # counted from 0, in the order of ``attach``
    trace: Trace
    collectives: Collectives
    servers: list[Endpoint] = field(default_factory=list)  # by shard
    published: dict[str, dict[int, Any]] = field(default_factory=dict)  # values that sessions publish, by name and rank

    def has_shard_at(self, address: int) -> bool:
        """Whether ``address`` is that of a server or of a shard of one."""
        return 0 <= shard_at(address) < len(self.servers)
