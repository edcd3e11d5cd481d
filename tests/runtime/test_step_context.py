"""The step in progress on a real process: hook lock, compute events, abandoned gradients."""

from __future__ import annotations

from collections import deque
from threading import Thread

import pytest

from tacit.record.trace import CANCELLED, COMPUTE, RECEIVE, PlainEvent, Trace
from tacit.runtime.clock import RunClock
from tacit.runtime.messaging.hook_lock import HookLock
from tacit.runtime.step_context import ProcessStep


class Parts:
    """A step context with its collaborators."""

    def __init__(self) -> None:
        self.trace, self.lock, self.rows = Trace(), HookLock(), deque[PlainEvent]()
        self.failure: BaseException | None = None
        self.step = ProcessStep(3, RunClock(), self.trace, self.lock, [self.rows], self.raise_failure)

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    @property
    def is_locked(self) -> bool:
        """Whether a handler, which runs in another thread, has to wait."""
        found: list[bool] = []

        def try_to_handle() -> None:
            with self.lock.handling(0.0) as is_held:
                found.append(not is_held)

        thread = Thread(target=try_to_handle)
        thread.start()
        thread.join()
        return found[0]

    @property
    def kinds(self) -> list[tuple[str, int]]:
        return [(event.kind, event.step) for event in self.trace]


@pytest.fixture
def parts() -> Parts:
    return Parts()


def test_a_step_without_hooks_takes_no_lock_and_is_recorded_at_its_end(parts: Parts) -> None:
    parts.step.begin(1, in_hook=False)
    assert not parts.is_locked and parts.kinds == []
    assert parts.step.end() >= 0.0
    assert parts.kinds == [(COMPUTE, 1)] and parts.step.boundaries == 1


def test_the_first_hook_ends_the_computation(parts: Parts) -> None:
    parts.step.begin(1, in_hook=True)
    assert parts.is_locked and parts.kinds == [(COMPUTE, 1)]
    parts.step.leave_hook()
    assert not parts.is_locked
    parts.step.end()
    assert parts.kinds == [(COMPUTE, 1)]


def test_a_kept_lock_is_released_at_the_end_of_the_step(parts: Parts) -> None:
    parts.step.begin(1, in_hook=True)
    parts.step.leave_hook(keep_lock=True)
    assert parts.is_locked
    parts.step.enter_hook()
    parts.step.end()
    assert not parts.is_locked


def test_the_next_step_releases_a_lock_that_a_failed_update_kept(parts: Parts) -> None:
    parts.step.begin(1, in_hook=True)
    parts.step.leave_hook(keep_lock=True)
    parts.step.begin(1, in_hook=False)
    assert not parts.is_locked


def test_an_abandoned_gradient_is_recorded_as_cancelled_and_only_once(parts: Parts) -> None:
    parts.step.abandon()
    parts.step.begin(1, in_hook=True)
    assert parts.step.is_abandoned and parts.kinds == [(CANCELLED, 1)]
    parts.step.leave_hook()
    parts.step.end()
    assert not parts.step.is_abandoned


def test_abandoning_after_the_computation_has_no_effect(parts: Parts) -> None:
    parts.step.begin(1, in_hook=True)
    parts.step.abandon()
    assert not parts.step.is_abandoned
    parts.step.end()
    parts.step.abandon()
    assert parts.step.is_abandoned


def test_a_failure_is_raised_before_the_lock_is_taken(parts: Parts) -> None:
    parts.failure = OSError("lost")
    with pytest.raises(OSError, match="lost"):
        parts.step.begin(1, in_hook=True)
    assert not parts.is_locked and parts.kinds == []


def test_message_rows_of_other_threads_are_collected_at_the_end(parts: Parts) -> None:
    parts.rows.append((0.0, 3, RECEIVE, 0.0, 0, 0, 1, 10, 0.0, "m"))
    parts.step.begin(1, in_hook=False)
    parts.step.end()
    assert not parts.rows and len(parts.trace.of(RECEIVE)) == 1
