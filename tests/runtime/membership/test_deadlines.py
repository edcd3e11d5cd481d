"""Deadlines that are learned from what was observed."""

from __future__ import annotations

import pytest

from tacit.runtime.membership.deadlines import LearnedDeadline


def test_a_deadline_is_the_median_plus_a_multiple_of_the_spread():
    deadline = LearnedDeadline(initial_s=10.0, least_s=0.5)
    assert deadline.seconds == 10.0
    for seconds in (1.0, 1.0, 1.2, 1.1, 1.5):
        deadline.observe(seconds)
    assert deadline.seconds == pytest.approx(1.1 + 4 * 0.4)


def test_a_deadline_is_not_finer_than_a_busy_machine_is_punctual():
    deadline = LearnedDeadline(initial_s=10.0, least_s=0.5)
    for _ in range(9):
        deadline.observe(0.01)
    assert deadline.seconds == 0.5


def test_a_deadline_that_passed_for_nothing_doubles_until_something_ends():
    deadline = LearnedDeadline(initial_s=10.0, least_s=0.5)
    deadline.was_wrong()
    deadline.was_wrong()
    assert deadline.seconds == 40.0
    deadline.observe(1.0)
    assert deadline.seconds == 10.0


def test_a_slow_phase_is_forgotten():
    deadline = LearnedDeadline(initial_s=10.0, least_s=0.5)
    deadline.observe(60.0)
    for _ in range(64):
        deadline.observe(1.0)
    assert deadline.seconds == 1.0
