"""The step in progress on a real process: hook lock, compute events, step boundaries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from tacit.record.trace import CANCELLED, COMPUTE, EXCHANGE, HOOK, SEND, WAIT, PlainEvent, Trace
from tacit.runtime.clock import RunClock
from tacit.runtime.membership.means import Mean
from tacit.runtime.messaging.hook_lock import HookLock

_STEPS_BETWEEN_PACKING: Final = 256
_UPDATE: Final = "update"
_OTHER: Final = "other"
_SHORT_S: Final = 20e-6  # other work that is shorter belongs to the event that follows


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
        self.computed, self.compute_s, self.hook_s = 0, 0.0, 0.0  # steps, and seconds that events cover, so far
        self.sent_bytes = 0  # in collectives and messages
        self.means_in_progress: list[Mean] = []
        self.total_weight, self.is_abandoned = 0.0, False

    def drain_means(self) -> None:
        """Wait for overlapped means while the clock is stopped."""
        for mean in self.means_in_progress:
            mean.drain()

    def forget_means(self) -> None:
        """Forget overlapped means: this worker continues from the state of another one."""
        self.means_in_progress.clear()

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
        else:
            self.spend(_OTHER if self._is_computing or self._hooks > 1 else _UPDATE)

    def leave_hook(self, *, keep_lock: bool = False) -> None:
        self.spend(_OTHER)
        self._hooks -= 1
        if keep_lock:
            self._keeps_lock = True
        else:
            self._lock.__exit__()

    def _end_computation(self, step: int) -> None:
        self._step, self._is_computing = None, False
        now_s = self._clock.stamp_s()
        kind = CANCELLED if self.is_abandoned else COMPUTE
        since_s = self._clock.recorded_until_s
        self._trace.rows.append((now_s, self._rank, kind, since_s, step, 0, -2, 0, 0.0, ""))
        self._clock.recorded_until_s = now_s
        self.computed, self.compute_s = self.computed + 1, self.compute_s + now_s - since_s

    def spend(self, what: str, numbers: int = 0) -> None:
        """Record the time since the last event as ``what``. Handlers are not recorded."""
        if not self._lock.is_handling:
            self._record_hook(self._clock.now_s(), what, numbers)

    def _record_hook(self, until_s: float, what: str, numbers: int = 0) -> None:
        since_s = self._clock.recorded_until_s
        if until_s - since_s > (_SHORT_S if what == _OTHER else 0.0):
            self._trace.rows.append((until_s, self._rank, HOOK, since_s, 0, 0, -2, 0, float(numbers), what))
            self._clock.recorded_until_s = until_s
            self.hook_s += until_s - since_s

    def exchanged(
        self, start_s: float, end_s: float, label: str, round: int, size_bytes: int, *, is_overlapped: bool = False
    ) -> None:
        """Record this rank's part in a collective; the hook was blocked in it unless it ``is_overlapped``."""
        if not is_overlapped:
            self._block(start_s, end_s)
        self.sent_bytes += size_bytes
        value = float(is_overlapped)
        self._trace.rows.append((end_s, self._rank, EXCHANGE, start_s, 0, round, -2, size_bytes, value, label))

    def waited(self, start_s: float, end_s: float, label: str, round: int = 0) -> None:
        """Record that the hook was blocked."""
        self._block(start_s, end_s)
        self._trace.rows.append((end_s, self._rank, WAIT, start_s, 0, round, -2, 0, 0.0, label))

    def _block(self, start_s: float, end_s: float) -> None:
        self._record_hook(start_s, _OTHER)
        self._clock.recorded_until_s = max(self._clock.recorded_until_s, end_s)

    def end(self) -> float:
        if self._step is None:
            self.spend(_OTHER if self._hooks else _UPDATE)
        else:
            self._end_computation(self._step)
        self.boundaries += 1
        for mean in self.means_in_progress:
            mean.look_now()
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
                row = rows.popleft()
                self._trace.rows.append(row)
                if row[2] == SEND:
                    self.sent_bytes += row[7]

    def abandon(self) -> None:
        """The backward pass continues to its end. The session then drops its gradient."""
        if self._is_computing:
            self.is_abandoned = True

    def release(self) -> None:
        if self._keeps_lock:
            self._keeps_lock = False
            self._lock.__exit__()
