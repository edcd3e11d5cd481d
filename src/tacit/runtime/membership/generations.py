"""Generations: which lives of which seats take part in collectives, decided one after the other in the store.

A seat is a rank, a life one process of it. Keys, with the prefix of the session:

    generation/G         its members, [[seat, life], …]; set once, by ``compare_set``
    door/G/SEAT          [life, at a step boundary]: a member of generation G − 1 that waits for generation G
    joining/SEAT         [life, G]: one that is no member and waits to be taken in, with generation G or later
    over                 the run has ended, nobody is taken in any more

Only members of generation G − 1 that hold the model decide G, once all of them stand at the door, are known to have
ended, or are silent. One that finds itself left out is a joiner. Joiners decide nothing. Generation 0 needs all seats.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

from torch._C._distributed_c10d import Store

from tacit.errors import LeftOut, RunError, TimedOut

_PAUSE_S: Final = (0.001, 0.005)  # between two looks at the store: soon at first, then less often


class Member(NamedTuple):
    """One life of one seat."""

    seat: int
    life: int


class Generation(NamedTuple):
    """The members from one change to the next."""

    number: int
    members: tuple[Member, ...]  # in the order of seats

    @property
    def seats(self) -> tuple[int, ...]:
        return tuple(member.seat for member in self.members)


NOBODY: Final = Generation(-1, ())
"""The generation before the first."""


class RunIsOver(SystemExit):
    """The run has ended while this process waited to join it: there is nothing left to do, and nothing has failed."""

    def __init__(self) -> None:
        super().__init__(0)


class NobodyLeft(RunError):
    """All workers that hold the model of the run have ended: ``seats``."""

    def __init__(self, seat: int, seats: tuple[int, ...]) -> None:
        self.seats = seats
        super().__init__(
            f"worker {seat} cannot join the run: all workers that hold its model have ended; start the run again, it "
            f"resumes from its checkpoint if it has one."
        )


class Lives(Protocol):
    """What is known about the lives of seats: see ``LaunchedLives``."""

    def current_life(self, seat: int) -> int: ...

    def dead(self, seat: int, life: int) -> object | None: ...

    def is_gone(self, seat: int) -> bool: ...


class Door:
    """One process's place at the doors of generations.

    store: of the session. is_silent: whether a seat, which has not ended, gives no sign of life. check: called while
    this process waits; it raises if the run ends.
    """

    def __init__(
        self,
        store: Store,
        lives: Lives,
        me: Member,
        size: int,
        *,
        is_silent: Callable[[int], bool],
        check: Callable[[], None],
    ) -> None:
        self._store, self._lives, self._me, self._size = store, lives, me, size
        self._is_silent, self._check = is_silent, check

    def generation(self, number: int) -> Generation | None:
        """Return a generation; None if it is not decided."""
        found = self._find(f"generation/{number}")
        return None if found is None else Generation(number, tuple(Member(*member) for member in found))

    def latest(self) -> Generation:
        """Return the last generation that is decided."""
        latest = NOBODY
        while (following := self.generation(latest.number + 1)) is not None:
            latest = following
        return latest

    def first(self, timeout_s: float) -> Generation:
        """Return generation 0, which every seat waits for."""
        self._store.set(f"door/0/{self._me.seat}", json.dumps([self._me.life, True]))
        until_s = time.monotonic() + timeout_s
        for _ in self._looks():
            if (found := self.generation(0)) is not None:
                return found
            missing = [seat for seat in range(self._size) if not self._store.check([f"door/0/{seat}"])]
            if not missing:
                self._decide(0, [Member(seat, self._find(f"door/0/{seat}")[0]) for seat in range(self._size)])
            elif gone := [seat for seat in missing if self._lives.is_gone(seat)]:
                raise RunError(f"worker {gone[0]} ended before the run began; all workers must attach once.")
            elif time.monotonic() > until_s:
                raise TimedOut("tacit.attach", missing, timeout_s)
        raise AssertionError

    def following(self, before: Generation, *, is_at_boundary: bool) -> Generation:
        """Return the generation after ``before``, of which this process is a member that holds the model.

        Raise ``LeftOut`` if the others have decided it without this process. Joiners are taken in if all members are
        at a step boundary, where their states are complete.
        """
        number = before.number + 1
        self._store.set(f"door/{number}/{self._me.seat}", json.dumps([self._me.life, is_at_boundary]))
        for _ in self._looks():
            if (found := self.generation(number)) is not None:
                if self._me not in found.members:
                    raise LeftOut(self._me.seat, found.seats)
                return found
            if (members := self._proposed(before, number)) is not None:
                self._decide(number, members)
        raise AssertionError

    def _proposed(self, before: Generation, number: int) -> list[Member] | None:
        """Return the members that this process would decide on; None while it waits for others."""
        came, are_at_boundary = [], True
        for member in before.members:
            at_door = self._find(f"door/{number}/{member.seat}")
            if at_door is not None and at_door[0] == member.life:
                if not self.has_ended(member):
                    came.append(member)
                    are_at_boundary = are_at_boundary and at_door[1]
            elif not (self.has_ended(member) or self._joins_anew(member, number) or self._is_silent(member.seat)):
                return None
        if not are_at_boundary:
            return came
        # One that was taken in, and has neither come nor queued again, has stopped on its way.
        has_stopped = {member for member in before.members if not self._joins_anew(member, number)}
        return came + [joiner for joiner in self.joiners(came) if joiner not in has_stopped]

    def joiners(self, members: Iterable[Member]) -> list[Member]:
        """Return the lives that wait to be taken in, of seats that are not among ``members``."""
        taken = {member.seat for member in members}
        waiting = []
        for seat in range(self._size):
            found = None if seat in taken else self._find(f"joining/{seat}")
            if found is not None:
                member = Member(seat, found[0])
                if found[0] == self._lives.current_life(seat) and not self.has_ended(member):
                    waiting.append(member)
        return waiting

    def has_ended(self, member: Member) -> bool:
        """Whether the process of ``member`` has ended, as the launcher or a later life of its seat says."""
        ended = self._lives.dead(*member) is not None
        return ended or self._lives.current_life(member.seat) > member.life

    def _joins_anew(self, member: Member, number: int) -> bool:
        """Whether a member of the latest generation holds no model: it was taken in, and did not get everything."""
        found = self._find(f"joining/{member.seat}")
        return found is not None and found[0] == member.life and found[1] >= number

    def is_at(self, number: int, member: Member, *, in_step: bool = False) -> bool:
        """Whether ``member`` stands at the door of generation ``number``; in_step: not at a step boundary."""
        at_door = self._find(f"door/{number}/{member.seat}")
        return at_door is not None and at_door[0] == member.life and not (in_step and at_door[1])

    # Joiners.

    def taken_in(self, after: Generation) -> Generation:
        """Wait to be taken in with a generation after ``after``, and return it."""
        latest = self.latest() if after is NOBODY else after
        while True:
            self._store.set(f"joining/{self._me.seat}", json.dumps([self._me.life, latest.number + 1]))
            latest = self._after(latest)
            if self._me in latest.members:
                return latest

    def _after(self, latest: Generation) -> Generation:
        """Wait for the generation after ``latest``; raise if the run is over, or nobody is left who could decide it."""
        for _ in self._looks():
            if (found := self.generation(latest.number + 1)) is not None:
                return found
            others = [member for member in latest.members if member != self._me]
            if all(self.has_ended(member) for member in others):
                if self.run_is_over:
                    raise RunIsOver
                raise NobodyLeft(self._me.seat, tuple(member.seat for member in others))
        raise AssertionError

    def leave_queue(self) -> None:
        """Take back what ``taken_in`` has published: this process holds the model."""
        self._store.delete_key(f"joining/{self._me.seat}")

    def close_run(self) -> None:
        """Say that the run is over."""
        self._store.set("over", "1")

    @property
    def run_is_over(self) -> bool:
        return bool(self._store.check(["over"]))

    # The store.

    def _looks(self) -> Iterable[int]:
        """Yield before each look at the store, again and again; call ``check`` in between."""
        pause_s, looks = _PAUSE_S[0], 0
        while True:
            yield looks
            self._check()
            time.sleep(pause_s)
            pause_s, looks = min(1.5 * pause_s, _PAUSE_S[1]), looks + 1

    def _decide(self, number: int, members: list[Member]) -> None:
        self._store.compare_set(f"generation/{number}", "", json.dumps(sorted(members)))

    def _find(self, key: str) -> Any:
        return json.loads(self._store.get(key)) if self._store.check([key]) else None
