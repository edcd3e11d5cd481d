"""The last learners: who takes part in the exchanges at the end of a run with a server.

The first server decides it once, when it waits for no learner any more, and writes it to the store. All go by this list
alone: a life that is not in it takes no part, and nobody waits for it. So a learner that comes back too late learns
from the store that the run is over, also if all messages were sent before it came.

    last learners     [[rank, life], …]
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tacit.core.network import SERVER
from tacit.errors import PeerLost, TimedOut
from tacit.runtime.environment import Environment

if TYPE_CHECKING:  # a run without messages does not import zmq
    from tacit.runtime.messaging.endpoint import MessageEndpoint

_DECIDED: Final = "last learners"
_LOOK_AGAIN_S: Final = (0.001, 0.02)  # soon at first, then less often
_WAY_OUT: Final = "start the run again; the server resumes from its checkpoint if it wrote one."


class LastLearners:
    """One process's view of the decision."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    @property
    def are_decided(self) -> bool:
        return self._environment.has(_DECIDED)

    def decide(self, endpoint: MessageEndpoint) -> dict[int, int]:
        """Decide on the learners that ``endpoint``, the first server's, has not lost; return their lives, by rank.

        Raise ``PeerLost`` if it has lost all: a server that is started again then serves their next lives.
        """
        found = [[rank, endpoint.life_of(rank)] for rank in endpoint.peers if rank >= 0 and rank not in endpoint.lost]
        if not found:
            raise PeerLost(endpoint.lost[-1], 0.0, "the last model", _WAY_OUT, need="has no learner left")
        return _lives(self._environment.decide(_DECIDED, json.dumps(found)) or json.dumps(found))

    def wait(self, endpoint: MessageEndpoint, timeout_s: float, is_stopped: Callable[[], bool]) -> dict[int, int]:
        """Wait for the decision; return the last learners' lives, by rank.

        endpoint: of this worker, which hears of the loss of the server. is_stopped: whether the server's process is.
        """
        begun_s, pause_s = time.monotonic(), _LOOK_AGAIN_S[0]
        while True:
            is_lost = endpoint.has_gone(SERVER) or is_stopped()  # before the look at what it has decided
            if (text := self._environment.find(_DECIDED)) is not None:
                return _lives(text)
            endpoint.raise_if_failed()
            if is_lost or self._environment.store_is_gone:
                lost, waited_s = SERVER if is_lost else 0, time.monotonic() - begun_s
                raise PeerLost(lost, waited_s, "the last model", _WAY_OUT, need="comes from it")
            if time.monotonic() - begun_s > timeout_s:
                raise TimedOut("the server's last update", [SERVER], timeout_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOK_AGAIN_S[1])


def _lives(text: str) -> dict[int, int]:
    return dict(json.loads(text))
