"""The probe of a script: which strategy takes the place of the script's own, and how the script ends.

``tacit probe`` sets the probe of its process before it runs a script. The first ``tacit.attach`` takes it. The session
then writes no checkpoints and no logs, and ends with an exception: from ``optimizer.step()`` when the probe is
complete, or from ``session.close()`` if the script ends before that. However it ends, rank 0 gets the records of all
ranks that published theirs in time, through the launcher's store, because groups may be closed by then.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tacit.core.strategy import Strategy
from tacit.record.run import Run
from tacit.session.backend import SessionBackend

_COLLECT_S: Final = 10.0
"""How long rank 0 waits for the records of the others once its own session has ended."""
_LOOK_S: Final = 0.02
_ENDED, _RECORD = "probe/ended", "probe/record"


class ProbeEnd(BaseException):
    """The end of a probed script. Not an ``Exception``, so that scripts do not catch it."""


class ProbeComplete(ProbeEnd):
    """Everything is measured."""


class ScriptEnded(ProbeEnd):
    """The script closed its session, or ended, before everything was measured."""


class Reason(NamedTuple):
    """Why a session ended: the name of the error's class, and its text."""

    kind: str
    text: str


class Probe:
    """The probe of one process. strategy: what takes the place of the script's own strategy."""

    keeps_losses = False  # whether the losses of the script matter; one that is not finite ends the run then

    def __init__(self, strategy: Strategy[Any]) -> None:
        self.strategy = strategy
        self.own_strategy: str | None = None  # of the script; None before it attaches
        self.own_steps: int | None = None
        self.sessions = 0  # that the script has attached; the first is probed, others keep their own strategies
        self.run: Run | None = None  # on rank 0: what all ranks recorded, once the session has ended
        self.reasons: dict[int, Reason] = {}  # by rank: why its session ended before the probe was complete
        self.on_end: Callable[[], None] = lambda: None  # called once, when the session begins to end
        self.end: Callable[[BaseException], None] = lambda error: None  # ends the session, if it is still open

    def begin(self, own: Strategy[Any], steps: int | None) -> Strategy[Any]:
        """Take note of the script's strategy and number of steps; return the strategy to run instead."""
        self.own_strategy, self.own_steps = str(own), steps
        return self.strategy

    def end_step(self, step: int) -> None:
        """Called after each step; raises ``ProbeComplete`` to end the script."""

    def collect(self, backend: SessionBackend, record: bytes, error: BaseException) -> list[bytes]:
        """Publish the record of this rank; on rank 0 return the records of all ranks that publish theirs in time."""
        reason = None if isinstance(error, ProbeComplete) else (type(error).__name__, str(error))
        backend.publish(_RECORD, base64.b64encode(record).decode())
        backend.publish(_ENDED, [backend.rank, reason])
        if backend.rank:
            return [record]
        until_s = time.monotonic() + _COLLECT_S
        while len(ended := backend.published(_ENDED)) < backend.size and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        self.reasons = {rank: Reason(*found) for rank, found in ended if found}
        return [base64.b64decode(text) for text in backend.published(_RECORD)]


_current: Probe | None = None


def set_probe(probe: Probe | None) -> None:
    """Set the probe of the script that runs from now on in this process."""
    global _current
    _current = probe


def current_probe() -> Probe | None:
    """Return the probe of the script that runs in this process; None if it is not probed."""
    return _current


def take_probe() -> Probe | None:
    """Return the probe for the first session of the script; None for later sessions, and without a probe."""
    if _current is None:
        return None
    _current.sessions += 1
    return _current if _current.sessions == 1 else None
