"""The step in progress on a real process: hook lock, compute events, step boundaries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from tacit.record.trace import CANCELLED, COMPUTE, PlainEvent, Trace
from tacit.runtime.clock import RunClock
from tacit.runtime.messaging.hook_lock import HookLock
from tacit.runtime.network import Mean

_STEPS_BETWEEN_PACKING: Final = 256


class ProcessStep:
    """The ``StepContext`` of one process.

    ``rows``: trace rows of messages, which other threads append. ``raise_failure`` raises what has ended the run.
    """

    def __init__(
        self,
        rank: int,
        clock: RunClock,
        trace: Trace,
        hook_lock: HookLock,
        rows: Sequence[deque[PlainEvent]],
        raise_failure: Callable[[], None],
    ) -> None:
        self._rank, self._clock, self._trace, self._lock = rank, clock, trace, hook_lock
        self._rows, self._raise_failure = rows, raise_failure
        self._step: int | None = None  # whose computation the trace does not hold yet
        self._is_computing = True  # whether a gradient is being computed
        self._hooks = 0  # entered and not left
        self._keeps_lock = False
        self.boundaries = 0  # completed steps: collectives become ready only when this changes
        self.means_in_progress: list[Mean] = []
        self.total_weight, self.is_abandoned = 0.0, False

    def begin(self, step: int, *, in_hook: bool) -> None:
        self.release()
        self._raise_failure()
        self._step = step
        if in_hook:
            self.enter_hook()

    def enter_hook(self) -> None:
        self._lock.__enter__()
        self._hooks += 1
        if self._step is not None:
            self._end_computation(self._step)

    def leave_hook(self, *, keep_lock: bool = False) -> None:
        self._clock.computing_since_s = self._clock.now_s()
        self._hooks -= 1
        if keep_lock:
            self._keeps_lock = True
        else:
            self._lock.__exit__()

    def _end_computation(self, step: int) -> None:
        self._step, self._is_computing = None, False
        now_s = self._clock.stamp_s()
        kind = CANCELLED if self.is_abandoned else COMPUTE
        since_s = self._clock.computing_since_s
        self._trace.rows.append((now_s, self._rank, kind, since_s, step, 0, -2, 0, 0.0, ""))
        self._clock.computing_since_s = now_s

    def end(self) -> float:
        if self._step is None:
            self._clock.computing_since_s = self._clock.now_s()
        else:
            self._end_computation(self._step)
        self.boundaries += 1
        for mean in self.means_in_progress:
            mean.look()
        self.collect_rows()
        if self.boundaries % _STEPS_BETWEEN_PACKING == 0:
            self._trace.pack_if_long()
        self.is_abandoned, self._is_computing = False, True
        if self._hooks:
            self.leave_hook()
        self.release()
        return self._clock.now_s()

    def collect_rows(self) -> None:
        """Move the trace rows of messages into the trace."""
        for rows in self._rows:
            while rows:
                self._trace.rows.append(rows.popleft())

    def abandon(self) -> None:
        """The backward pass continues to its end. The session then drops its gradient."""
        if self._is_computing:
            self.is_abandoned = True

    def release(self) -> None:
        if self._keeps_lock:
            self._keeps_lock = False
            self._lock.__exit__()
