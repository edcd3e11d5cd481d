"""Liveness from what the launcher says: it sees processes end, so no socket to each of them is needed."""

from __future__ import annotations

import secrets

from tacit.runtime.environment import Environment
from tacit.runtime.launched import LaunchedLives


class LaunchedLiveness:
    """The same questions as to ``failures.liveness.Liveness``."""

    def __init__(self, environment: Environment, lives: LaunchedLives) -> None:
        self._environment, self._lives = environment, lives
        self.run_name = environment.decide("run name", secrets.token_hex(4)) or "lost"

    def is_gone(self, rank: int) -> bool:
        """Whether the process of the latest life of ``rank`` has ended."""
        if self._environment.store_is_gone:
            return False
        try:
            return self._lives.dead(rank, self._lives.current_life(rank)) is not None
        except RuntimeError:
            self._environment.store_is_gone = True
            return False

    def close(self) -> None:
        """There is nothing to close."""
