"""Messages in flight, and the pipes they pass: the NIC of a host has one for each direction.

Transfers in a pipe share its bandwidth evenly, as TCP flows do. A message arrives when it has passed the sender's and
the receiver's pipe and, if its link is slower than these, the link.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tacit.simulation.agenda import Agenda


class Pipe:
    """One direction of a NIC. Generalised processor sharing: everything inside advances at rate / occupancy.

    Ends of transfers are computed when they are asked for. They are events only while a flight waits for one. Each
    transfer that enters delays the next end, so the agenda keeps an earlier entry, which makes way for the current one.
    """

    def __init__(self, agenda: Agenda, bytes_per_s: float) -> None:
        self._agenda, self.bytes_per_s, self.is_instant = agenda, bytes_per_s, bytes_per_s == math.inf
        self.end_s = math.inf  # the next end, if nothing enters before
        self._inside: list[tuple[float, int]] = []  # a heap: served bytes at the end, number
        self._served, self._as_of_s = 0.0, 0.0  # bytes that a transfer would have got since the start of the pipe
        self._transfers = 0
        self._ends_s: dict[int, float] = {}  # by number, until they are asked for
        self._waiting: dict[int, Callable[[], None]] = {}  # by number: called at the end
        self._due: list[Callable[[], None]] = []  # of transfers that have ended
        self._entered: list[float] = []  # a heap of the times of the entries in the agenda

    def enter(self, size_bytes: int) -> int:
        """Begin the transfer of ``size_bytes``; return its number."""
        number, now_s, inside = self._transfers, self._agenda.now_s, self._inside
        self._transfers += 1
        if self.is_instant:
            self._ends_s[number] = now_s
            return number
        if self.end_s <= now_s:
            self._advance(now_s)
        if inside:
            self._served += (now_s - self._as_of_s) * self.bytes_per_s / len(inside)
        self._as_of_s = now_s
        heapq.heappush(inside, (self._served + size_bytes, number))
        self._plan()
        if self._waiting:
            self._enter_end()
        return number

    def end_of(self, number: int) -> float | None:
        """Return the end of a transfer, or None if it has not ended yet. It is asked for once after the end."""
        if self.end_s <= self._agenda.now_s:
            self._advance(self._agenda.now_s)
        return self._ends_s.pop(number, None)

    def wait(self, number: int, done: Callable[[], None]) -> None:
        """Call ``done`` when a transfer ends, which has not ended yet."""
        self._waiting[number] = done
        self._enter_end()

    def _plan(self) -> None:
        """Compute the next end from the state as of ``_as_of_s``."""
        left = self._inside[0][0] - self._served
        self.end_s = self._as_of_s + left * len(self._inside) / self.bytes_per_s if left > 0.0 else self._as_of_s

    def _advance(self, now_s: float) -> None:
        """End the transfers that end until ``now_s``."""
        inside = self._inside
        while self.end_s <= now_s:
            self._as_of_s = self.end_s
            self._served, number = heapq.heappop(inside)
            self._ends_s[number] = self.end_s
            if number in self._waiting:
                self._due.append(self._waiting.pop(number))
            if inside:
                self._plan()
            else:
                self.end_s = math.inf

    def _enter_end(self) -> None:
        """Enter the next end in the agenda, unless an earlier entry leads to it."""
        if not self._entered or self.end_s < self._entered[0]:
            heapq.heappush(self._entered, self.end_s)
            self._agenda.at(self.end_s, self._turn)

    def _turn(self) -> None:
        """Handle the first entry in the agenda: end transfers, and enter the next end if a flight waits."""
        heapq.heappop(self._entered)
        self._advance(self._agenda.now_s)
        due, self._due = self._due, []
        if self._waiting:
            self._enter_end()
        for done in due:
            done()


class Flight:
    """A message in flight, or one that has arrived but waits for an earlier message in flight.

    It passes both pipes at once. It enters the receiver's pipe one latency after it enters the sender's.
    """

    __slots__ = (
        "_agenda",
        "_arrival_s",
        "_number_out",
        "_parts",
        "_pipes",
        "_queue",
        "_size_bytes",
        "delivered",
        "is_here",
        "latency_s",
    )

    def __init__(
        self, agenda: Agenda, queue: deque[Flight], size_bytes: int, latency_s: float, delivered: Callable[[], None]
    ) -> None:
        self._agenda, self._queue, self._size_bytes, self.latency_s = agenda, queue, size_bytes, latency_s
        self.delivered, self.is_here = delivered, False
        queue.append(self)

    def depart(self, alone_s: float, pipes: tuple[Pipe, Pipe] | None) -> None:
        """Enter the pipes. alone_s: time that the message takes without other messages, in addition to the latency."""
        reached_s = self._agenda.now_s + self.latency_s
        if pipes is None:
            self._agenda.at(reached_s + alone_s, self.arrive)
            return
        self._pipes, self._arrival_s = pipes, reached_s + alone_s
        self._number_out = pipes[0].enter(self._size_bytes)
        self._agenda.at(reached_s, self._reach_receiver)

    def _reach_receiver(self) -> None:
        pipe_out, pipe_in = self._pipes
        sent = (pipe_out, self._number_out, self.latency_s)
        received = (pipe_in, pipe_in.enter(self._size_bytes), 0.0)
        self._parts = [sent, received] if pipe_out.end_s < pipe_in.end_s else [received, sent]
        self._leave_pipes()

    def _leave_pipes(self) -> None:
        """Wait for the ends in both pipes: first for the one that seems to be later, so that often no other follows."""
        parts = self._parts
        while parts:
            pipe, number, after_s = parts[-1]
            end_s = pipe.end_of(number)
            if end_s is None:
                pipe.wait(number, self._leave_pipes)
                return
            parts.pop()
            if end_s + after_s > self._arrival_s:
                self._arrival_s = end_s + after_s
        self._agenda.at(self._arrival_s, self.arrive)

    def arrive(self) -> None:
        """Deliver the message once all messages that were sent before it are delivered."""
        self.is_here, queue = True, self._queue
        while queue and queue[0].is_here:
            queue.popleft().delivered()


class Path(NamedTuple):
    """The way of messages from one node to another: pipes, unless none limits them, and flights in order of sending."""

    latency_s: float
    bandwidth: float
    pipes: tuple[Pipe, Pipe] | None
    queue: deque[Flight]
