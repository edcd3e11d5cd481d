"""SIGTERM: what torchrun sends to everybody once a worker has died, and what a scheduler sends."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Final

_PATIENCE_S: Final = 10.0
"""How long after SIGTERM a step boundary without a collective is good enough: torchrun kills after 30 seconds."""

_ECHO_S: Final = 3.0
"""How long after SIGTERM another one is the same: a scheduler asks workers and torchrun alike, and torchrun passes it
on.
"""


class TerminationSignal:
    """Lets the step under way come to its end before the process does, unless the script has a handler of its own.

    waits_for_collective: whether a run has collectives, at which all survivors stand at one step.
    """

    def __init__(self, *, waits_for_collective: bool) -> None:
        self._waits_for_collective = waits_for_collective
        self.asked_s: float | None = None  # when SIGTERM came
        self._is_caught = (
            threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if self._is_caught:
            signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.asked_s is None:
            self.asked_s = now_s
        elif now_s - self.asked_s > _ECHO_S:  # asked again: at once
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)

    def is_due(self, *, at_collective: bool) -> bool:
        """Whether to end now: at the next collective, or at the next step boundary where none comes soon."""
        if self.asked_s is None:
            return False
        return at_collective or not self._waits_for_collective or self.is_overdue

    @property
    def is_overdue(self) -> bool:
        """Whether SIGTERM came so long ago that the process ends without a collective."""
        return self.asked_s is not None and time.monotonic() - self.asked_s >= _PATIENCE_S

    def put_back(self) -> None:
        """Let SIGTERM end the process again."""
        if self._is_caught:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
