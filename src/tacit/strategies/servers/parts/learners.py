"""The learners of a server: which are present, the model version of each, and how many gradients to wait for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tacit.core.worker import Server
from tacit.strategies.servers.parts.server_state import ServerState

if TYPE_CHECKING:
    from tacit.strategies.servers.strategy import ParameterServerStrategy

AWAY: Final = -1
"""The version of a learner that does not compute."""
LOST_MODEL: Final = 100
"""Late pushes in a row after which the last model counts as lost. Fewer may be in transit together with the model."""

_log = logging.getLogger(__name__)


class Learners:
    """The server's list of its learners. The first shard also reports changes, in the trace and in the log."""

    def __init__(self, strategy: ParameterServerStrategy, server: Server, state: ServerState) -> None:
        self._strategy, self._server, self._state = strategy, server, state
        self.is_present = [not left for left in state.has_left]
        self.count = sum(self.is_present)
        self.held = [state.version] * server.size  # by learner: the version it computes at, or ``AWAY``
        self._late = [0] * server.size  # by learner: late pushes since it was sent a model
        self._recorded_k: int | None = None  # K in the trace
        self._has_warned = False  # that fewer than K learners are left

    def __iter__(self) -> Iterator[int]:
        """Yield the ranks of the learners that are present."""
        return (rank for rank, is_present in enumerate(self.is_present) if is_present)

    @property
    def k(self) -> int:
        """Number of gradients of an update: K, or the number of learners if each pushes one and fewer are present."""
        k = self._state.k
        return min(k, max(1, self.count)) if self._strategy.waits_for_update else k

    def add(self, rank: int) -> None:
        """Add a learner that joins or returns."""
        self.count += not self.is_present[rank]
        self.is_present[rank], self._state.has_left[rank] = True, False

    def remove(self, rank: int) -> None:
        """Remove a learner that has left or was lost."""
        self.count -= self.is_present[rank]
        self.is_present[rank], self._state.has_left[rank], self.held[rank] = False, True, AWAY

    def record_k(self) -> None:
        """Put K into the trace if it has changed."""
        if self._server.shard == 0 and self.k != self._recorded_k:
            self._recorded_k = self.k
            self._server.note("k", self._recorded_k)

    def report_lost(self, rank: int, k_before: int) -> None:
        """Report a lost learner: in the trace, and once in the log if updates now use fewer gradients."""
        if self._server.shard != 0:
            return
        self._server.note("lost", self.count, about=rank)
        self.record_k()
        if self.k < k_before and self.count and not self._has_warned:
            self._has_warned = True
            _log.warning("worker %d is missing; %s continues with k=%d.", rank, self._strategy, self.k)

    def record_late(self, rank: int) -> None:
        """Count a push that arrived after its step was cancelled."""
        if self._server.shard == 0:
            self._server.note("late", 1.0, about=rank)
            self._late[rank] += 1

    def has_lost_model(self, rank: int) -> bool:
        """Whether a learner pushed so many late gradients that its last model must have been lost."""
        return self._late[rank] >= LOST_MODEL

    def set_version(self, rank: int, version: int) -> None:
        """Record that ``rank`` was sent a model and computes at it."""
        self.held[rank], self._late[rank] = version, 0
