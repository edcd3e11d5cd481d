"""Rules of the launcher: which seats are started again, and when a run is over.

A seat whose process fails is started again as a new life, while the others go on. Once fewer than ``min_workers`` seats
live, this attempt is over: what is left of it ends, and if every seat has restarts left, all start again, from their
checkpoint. Once a worker has finished, nothing is started again: the others are about to finish too. A server in a
process of its own has a seat after those of the workers; an attempt is over without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

_FIRST_DELAY_S: Final = 0.5
_LONGEST_DELAY_S: Final = 30.0
_SHORT_S: Final = 20.0
"""A life that ends earlier than this doubles the delay before the next one."""


class State(Enum):
    """State of a seat."""

    RUNNING = "running"
    WAITING = "waiting"  # to be started
    FINISHED = "finished"  # ended with exit code 0
    LOST = "lost"  # will not be started again


_LIVING: Final = (State.RUNNING, State.FINISHED)


@dataclass
class Seat:
    """A seat of this machine or of another one. life: 0 before the first one."""

    number: int
    state: State = State.WAITING
    life: int = 0
    short_lives: int = 0  # the last ones, in a row
    started_s: float = 0.0
    due_s: float = 0.0

    @property
    def restarts(self) -> int:
        return max(0, self.life - 1)

    @property
    def delay_s(self) -> float:
        """How long to wait before its next life."""
        return float(min(_FIRST_DELAY_S * 2 ** max(0, self.short_lives - 1), _LONGEST_DELAY_S))


class Seats:
    """All seats of a run, of which this launcher starts ``own``, and the server if ``has_server``.

    all: seats of workers. own: seats that this launcher starts.
    """

    def __init__(
        self, own: Iterable[int], size: int, min_workers: int, max_restarts: int, *, has_server: bool = False
    ) -> None:
        self.all = [Seat(number) for number in range(size)]
        self.server = Seat(size) if has_server else None
        self.own = [self.all[number] for number in own] + ([] if self.server is None else [self.server])
        self.min_workers, self.max_restarts = min_workers, max_restarts
        self.attempt = 0
        self.is_ending = False  # this attempt is over: what is left of it is told to end
        self.is_stopped = False  # nothing is started any more
        for seat in self.all:
            if seat not in self.own:
                seat.state = State.RUNNING  # until its launcher says otherwise

    # What happens.

    def started(self, seat: Seat, now_s: float) -> None:
        """Note that the next life of ``seat`` starts."""
        seat.life, seat.state, seat.started_s = seat.life + 1, State.RUNNING, now_s

    def ended(self, seat: Seat, exit_code: int, now_s: float) -> None:
        """Note that the process of ``seat`` has ended, and decide what becomes of the seat and of the attempt."""
        if exit_code == 0:
            seat.state = State.FINISHED
        elif self._may_restart(seat):
            seat.short_lives = seat.short_lives + 1 if now_s - seat.started_s < _SHORT_S else 1
            seat.state, seat.due_s = State.WAITING, now_s + seat.delay_s
        else:
            seat.state = State.LOST
        self._decide()

    def seat(self, number: int) -> Seat:
        return self.all[number] if self.server is None or number < len(self.all) else self.server

    def observe(self, number: int, state: State) -> None:
        """Note the state of a seat of another machine."""
        self.all[number].state = state
        self._decide()

    def stop(self) -> None:
        """Start nothing any more."""
        self.is_stopped = True
        for seat in self._own_in(State.WAITING):
            seat.state = State.LOST

    # What to do.

    def due(self, now_s: float) -> list[Seat]:
        """Return the seats to start now."""
        return [] if self.is_ending else [seat for seat in self._own_in(State.WAITING) if seat.due_s <= now_s]

    def next_due_s(self) -> float | None:
        """Return when the next seat is to be started; None if none is."""
        return None if self.is_ending else min((seat.due_s for seat in self._own_in(State.WAITING)), default=None)

    @property
    def is_over(self) -> bool:
        """Whether no process of this machine runs or will be started."""
        return not self._own_in(State.RUNNING, State.WAITING)

    def have_succeeded(self, unattached: Collection[int] = ()) -> bool:
        """Whether as many seats have finished as the run needs.

        unattached: seats that have not taken part; they do not count, unless nobody has.
        """
        finished = [seat.number for seat in self.all if seat.state is State.FINISHED]
        if len(unattached) < len(self.all):
            finished = [number for number in finished if number not in unattached]
        return len(finished) >= self.min_workers

    def _decide(self) -> None:
        if self._count(State.FINISHED):
            for seat in self._own_in(State.WAITING):
                seat.state = State.LOST
        has_no_server = self.server is not None and self.server.state is State.LOST
        if not self.is_stopped and (self._count(*_LIVING) < self.min_workers or has_no_server):
            self.is_ending = True
        if self.is_ending and not self._count(State.RUNNING) and not self._own_in(State.RUNNING):
            if self._count(State.LOST, State.FINISHED) or has_no_server or any(one not in self.own for one in self.all):
                self.stop()
            else:
                self.attempt, self.is_ending = self.attempt + 1, False
                due_s = max(seat.due_s for seat in self.own)  # all at once: none begins the attempt without the others
                for seat in self.own:
                    seat.due_s = due_s

    def _may_restart(self, seat: Seat) -> bool:
        return not self.is_stopped and not self._count(State.FINISHED) and seat.restarts < self.max_restarts

    def _own_in(self, *states: State) -> list[Seat]:
        return [seat for seat in self.own if seat.state in states]

    def _count(self, *states: State) -> int:
        return sum(seat.state in states for seat in self.all)
