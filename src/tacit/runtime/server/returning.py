"""A server in a process of its own that ``tacit launch`` starts again: its learners wait for it, and join it again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from tacit.core.network import SERVER
from tacit.runtime.launched import SERVER_SEAT, LaunchedLives

if TYPE_CHECKING:  # a run without messages does not import zmq
    from tacit.runtime.messaging.endpoint import MessageEndpoint

_MOMENT_S: Final = 2.0
"""How long the launcher may take to say that the server has ended, whose connection has broken."""
_LOOK_AGAIN_S: Final = 0.02


class ReturningServer:
    """What a learner knows of the lives of the server."""

    def __init__(self, lives: LaunchedLives, variables: Mapping[str, str] = os.environ) -> None:
        self._lives, self._seat = lives, int(variables[SERVER_SEAT])

    def wait(self, endpoint: MessageEndpoint, run_ends: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the next life of the server is connected; return False if none comes, or the run ends.

        A server whose process is there has gone on without this learner.
        """
        begun_s, life, seat = time.monotonic(), endpoint.life_of(SERVER), self._seat
        while not endpoint.reconnect(SERVER):
            waited_s = time.monotonic() - begun_s
            try:
                has_ended = self._lives.dead(seat, life) is not None
                if self._lives.is_gone(seat) or (waited_s > _MOMENT_S and not has_ended):
                    return False
            except RuntimeError:  # the store is gone
                return False
            if run_ends() or waited_s > timeout_s:
                return False
            time.sleep(_LOOK_AGAIN_S)
        return True

    def is_gone(self) -> bool:
        """Whether the server has ended and will not be started again."""
        try:
            return self._lives.is_gone(self._seat)
        except RuntimeError:
            return False
