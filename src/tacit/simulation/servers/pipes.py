"""The NICs of a server and its learners, without one event per message. Times equal those of ``simulation/flights.py``.

A server's NIC is shared by messages of all learners. A learner's NIC has messages of this learner alone, so that their
ends follow from the times at which they enter, and are computed when they are needed.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import Generic, TypeVar

Group = TypeVar("Group")


class Tie(Exception):
    """Raised where two events coincide, so that the order of the agenda decides."""


class SharedPipe(Generic[Group]):
    """One direction of the server's NIC: messages that enter together, with equal sizes, are one group."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate, self.is_instant = bytes_per_s, bytes_per_s == math.inf
        self.end_s = math.inf  # the next end
        self._inside: list[tuple[float, int, int, Group]] = []  # served bytes at the end, number, messages, group
        self._served, self._as_of_s = 0.0, 0.0
        self._groups, self._messages = 0, 0

    def enter(self, now_s: float, size_bytes: int, messages: int, group: Group) -> None:
        """Begin the transfer of a group; each of its messages has ``size_bytes``."""
        if self._messages:
            self._served += (now_s - self._as_of_s) * self._rate / self._messages
        self._as_of_s = now_s
        self._groups += 1
        self._messages += messages
        heapq.heappush(self._inside, (self._served + size_bytes, self._groups, messages, group))
        self._plan()

    def pass_alone(self, at_s: float, size_bytes: int, messages: int = 1) -> float:
        """Transfer messages through the empty pipe, into which nothing else comes before their end; return the end."""
        if self.is_instant:
            return at_s
        end = self._served + size_bytes
        left, self._served = end - self._served, end
        return at_s + left * messages / self._rate

    def leave(self) -> list[Group]:
        """At ``end_s``: end the transfer of the first group and of those that end with it."""
        self._as_of_s, inside = self.end_s, self._inside
        self._served, _, messages, group = heapq.heappop(inside)
        left = [group]
        while inside and inside[0][0] <= self._served:
            messages += inside[0][2]
            left.append(heapq.heappop(inside)[3])
        self._messages -= messages
        self._plan()
        return left

    def _plan(self) -> None:
        if not self._inside:
            self.end_s = math.inf
            return
        left = self._inside[0][0] - self._served
        self.end_s = self._as_of_s + left * self._messages / self._rate if left > 0.0 else self._as_of_s


class OwnPipe:
    """One direction of a learner's NIC. Messages enter in the order of time and leave in the order of entering."""

    __slots__ = ("_as_of_s", "_ends_s", "_entered", "_inside", "_left", "_served", "bytes_per_s", "end_s")

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._inside: deque[float] = deque()  # served bytes at the end of each message
        self._served, self._as_of_s = 0.0, 0.0
        self._entered, self._left = 0, 0  # messages so far
        self._ends_s: dict[int, float] = {}  # of messages that have left, by number, until they are asked for
        self.end_s = math.inf  # the next end, if nothing enters before

    def enter(self, at_s: float, size_bytes: int) -> int:
        """Begin a transfer at ``at_s``, which may lie ahead; return its number."""
        number = self._entered
        self._entered += 1
        if self.bytes_per_s == math.inf:
            self._ends_s[number] = at_s
            return number
        inside, served = self._inside, self._served
        if inside:
            served = self._share_until(at_s, size_bytes)
        elif at_s == self._as_of_s > 0.0:
            raise Tie
        end = served + size_bytes
        inside.append(end)
        self._as_of_s = at_s
        left = inside[0] - served
        self.end_s = at_s + left * len(inside) / self.bytes_per_s if left > 0.0 else at_s
        return number

    def pass_alone(self, at_s: float, size_bytes: int) -> float:
        """Transfer one message through the empty pipe, into which nothing comes before its end; return the end."""
        end = self._served + size_bytes
        left, self._served = end - self._served, end
        return at_s + left / self.bytes_per_s

    def end_of(self, number: int, until_s: float) -> float | None:
        """Return the end of a transfer, or None if it ends after ``until_s``. All that enter by then have entered."""
        while self.end_s <= until_s:
            if number == self._left:  # no earlier one was asked for so far
                end_s = self.end_s
                self._turn()
                return end_s
            self._ends_s[self._left] = self.end_s
            self._turn()
        return self._ends_s.pop(number, None)

    def _turn(self) -> None:
        """End the first transfer."""
        self._left += 1
        self._as_of_s, self._served = self.end_s, self._inside.popleft()
        if not self._inside:
            self.end_s = math.inf
            return
        left = self._inside[0] - self._served
        self.end_s = self._as_of_s + left * len(self._inside) / self.bytes_per_s if left > 0.0 else self._as_of_s

    def _share_until(self, at_s: float, size_bytes: int) -> float:
        """End the transfers that end before ``at_s``; return the bytes served by then."""
        inside = self._inside
        while self.end_s < at_s:
            self._ends_s[self._left] = self.end_s
            self._turn()
        if self.end_s == at_s:
            raise Tie
        if inside:
            self._served += (at_s - self._as_of_s) * self.bytes_per_s / len(inside)
            if self._served + size_bytes < inside[-1]:
                raise Tie  # it would overtake a larger one
        return self._served
