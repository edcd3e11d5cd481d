"""Handling of SIGTERM, which torchrun sends to all workers once one has died, and which schedulers send."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Final

_OVERDUE_S: Final = 10.0
"""Time after SIGTERM at which a worker no longer waits for a collective to end at: torchrun kills after 30 s."""

_ECHO_S: Final = 3.0
"""Time after SIGTERM in which a second one counts as the same: a scheduler signals both workers and torchrun, which
passes the signal on.
"""


class TerminationSignal:
    """Handler of SIGTERM that lets the current step end first; not installed if the script has its own handler.

    waits_for_collective: whether the run has collectives, at which all workers have completed the same step.
    """

    def __init__(self, *, waits_for_collective: bool) -> None:
        self._waits_for_collective = waits_for_collective
        self.asked_s: float | None = None  # when SIGTERM arrived
        self._is_installed = (
            threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if self._is_installed:
            signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.asked_s is None:
            self.asked_s = now_s
        elif now_s - self.asked_s > _ECHO_S:  # asked again: end at once
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)

    def is_due(self, *, at_collective: bool) -> bool:
        """Whether to end now: at a collective, or at a step boundary if no collective comes soon."""
        if self.asked_s is None:
            return False
        return at_collective or not self._waits_for_collective or self.is_overdue

    @property
    def is_overdue(self) -> bool:
        """Whether SIGTERM arrived so long ago that the process ends without a collective."""
        return self.asked_s is not None and time.monotonic() - self.asked_s >= _OVERDUE_S

    def restore(self) -> None:
        """Restore the default action of SIGTERM."""
        if self._is_installed:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
