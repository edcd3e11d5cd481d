"""Processor time that communication takes from the computation of a rank on the same core."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

SpeedAt = Callable[[float], tuple[float, float]]
"""Returns the speed of the computation at a time, and when it changes next."""


class _Transfer(NamedTuple):
    begin_s: float
    end_s: float
    share: float  # of the core


class Processor:
    """The core of one rank. Transfers come first, and the computation gets what they leave.

    A transfer takes its seconds of the core evenly while it lasts, and no more than it lasts. What several transfers
    together take beyond the core is owed, and is done before the computation goes on.
    """

    def __init__(self, speed_at: SpeedAt | None = None) -> None:
        self._speed_at = speed_at  # None: always 1
        self._transfers: list[_Transfer] = []
        self._as_of_s = self._owed_s = 0.0
        self._left_s = math.inf  # of the work in progress; without one the core only serves transfers

    def add(self, begin_s: float, end_s: float, seconds: float) -> None:
        """Let a transfer that begins now take ``seconds`` of the core until ``end_s``."""
        if end_s <= begin_s or seconds <= 0:
            return
        self._pass_until(begin_s)
        self._transfers = [one for one in self._transfers if one.end_s > begin_s]
        self._transfers.append(_Transfer(begin_s, end_s, min(1.0, seconds / (end_s - begin_s))))

    def begin(self, start_s: float, work_s: float) -> None:
        """Begin to compute what takes ``work_s`` on a core of its own, at speed 1."""
        self._left_s = math.inf
        self._pass_until(start_s)
        self._left_s = work_s

    def end_s(self) -> float:
        """Return when the work in progress ends if no other transfer begins."""
        return self._run(math.inf)[0]

    def _pass_until(self, time_s: float) -> None:
        while time_s > self._as_of_s:
            self._as_of_s, self._owed_s, self._left_s = self._run(time_s)
            if self._as_of_s < time_s:  # the work has ended before
                self._left_s = math.inf

    def _run(self, until_s: float) -> tuple[float, float, float]:
        """Return time, owed seconds and work left at ``until_s``, or at the end of the work if that is earlier."""
        now_s, owed_s, left_s = self._as_of_s, self._owed_s, self._left_s
        while now_s < until_s and left_s > 0.0:
            share, speed, change_s = self._at(now_s)
            change_s = min(change_s, until_s)
            if owed_s > 0.0 or share >= 1.0:
                paid_s = now_s + owed_s / (1.0 - share) if share < 1.0 else math.inf
                next_s = min(paid_s, change_s)
                owed_s = 0.0 if paid_s <= change_s else owed_s + (share - 1.0) * (next_s - now_s)
                now_s = next_s
                continue
            rate = (1.0 - share) * speed
            end_s = now_s + left_s / rate if rate > 0.0 else math.inf
            if end_s <= change_s:
                return end_s, owed_s, (math.inf if left_s == math.inf else 0.0)
            left_s -= (change_s - now_s) * rate
            now_s = change_s
        return now_s, owed_s, left_s

    def _at(self, time_s: float) -> tuple[float, float, float]:
        """Return the share of the core that transfers take, the speed, and when one of them changes next."""
        share, speed, change_s = 0.0, 1.0, math.inf
        if self._speed_at is not None:
            speed, change_s = self._speed_at(time_s)
        for begin_s, end_s, taken in self._transfers:
            if begin_s <= time_s < end_s:
                share, change_s = share + taken, min(change_s, end_s)
            elif time_s < begin_s:
                change_s = min(change_s, begin_s)
        return share, speed, change_s
