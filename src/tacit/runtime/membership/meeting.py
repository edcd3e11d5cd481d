"""Forming a generation: members meet, open a group, and have the same results before they go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from torch._C._distributed_c10d import Store

from tacit.errors import LeftOut
from tacit.runtime.membership.announcements import Announcements
from tacit.runtime.membership.calls import CallRecord
from tacit.runtime.membership.deadlines import LearnedDeadline
from tacit.runtime.membership.generations import NOBODY, Door, Member, RunIsOver
from tacit.runtime.membership.heartbeats import Heartbeats, RecentBeats
from tacit.runtime.membership.message_changes import MessageChanges
from tacit.runtime.membership.progress import Progress, progress_of_all
from tacit.runtime.membership.sharing import share, share_result
from tacit.runtime.membership.world import MeansInProgress, NoMeans, World
from tacit.runtime.process_groups import Group, is_time_out

_ROUND_S: Final = 10.0
"""Deadline of a call before enough rounds are known. A process that beats is waited for much longer."""
LEAST_ROUND_S: Final = 0.5
_SHARE_S: Final = 5.0
"""Deadline of each call that gives a joiner everything, before one has been seen."""
_LEAST_SHARE_S: Final = 2.0
_OPEN_S: Final = 3.0
"""How long members connect to each other, all of which have just said that they are there."""


class Meeting:
    """One worker's part in forming generations, and what it knows of the others."""

    def __init__(self, store: Store, lives: Any, size: int, world: World) -> None:
        self.me, self.size = Member(lives.seat, lives.life), size
        self._store, self._lives, self._world = store, lives, world
        self.generation = NOBODY
        self.holds = False  # the model of the run
        self.joiner_waits = False  # as seen by this worker's heartbeat
        self._told = Announcements(size)
        self._messages: MessageChanges | None = None  # where the strategy sends messages
        self.means: MeansInProgress = NoMeans()
        self.record = CallRecord()
        self.deadline = LearnedDeadline(initial_s=_ROUND_S, least_s=LEAST_ROUND_S)
        self._sharing = LearnedDeadline(initial_s=_SHARE_S, least_s=_LEAST_SHARE_S)
        self._group: Group | None = None
        self._ended_s = self._waiting_since_s = self._began_s = 0.0
        self.changes: list[dict[str, Any]] = []  # what happened, for measurements
        self._is_sharing = False
        self._recent = RecentBeats()
        self._heartbeats = Heartbeats(store, self.me.seat, self._look)
        self._door = Door(store, lives, self.me, size, is_silent=self._is_absent, check=self._check)

    def _regroup(self, *, is_at_boundary: bool) -> None:
        """Form the next generation, with an open group, in which all have the results that one of them has."""
        self.close_group()
        before, self._began_s = self.generation, time.monotonic()
        self._ended_s = 0.0  # how long this takes is not how long rounds take
        while True:
            self._wait_begins()
            try:
                self.generation = self._door.following(self.generation, is_at_boundary=is_at_boundary)
            except LeftOut:
                self._leave()
                raise
            lost = self._end_if_too_few(is_at_boundary=is_at_boundary)
            if self._meet():
                self.joiner_waits = False  # until the next heartbeat sees one that still waits
                self._note("regrouped", lost=lost, admitted=len(set(self.generation.members) - set(before.members)))
                return

    def _leave(self) -> None:
        self.holds = False
        self.record.restart(0)

    def _end_if_too_few(self, *, is_at_boundary: bool) -> list[int]:
        """Raise if fewer members are left than the run needs, and no lost one will come back."""
        lost = [seat for seat in range(self.size) if seat not in self.generation.seats]
        if self.is_short and not self._may_come_back(lost):
            raise self._world.too_few(lost)
        return lost

    @property
    def is_short(self) -> bool:
        """Whether fewer members take part than the run needs."""
        return len(self.generation.members) < int(self._lives.min_workers)

    def _may_come_back(self, lost: Sequence[int]) -> bool:
        """Whether enough of the ``lost`` seats may have another life."""
        may = [seat for seat in lost if not self._lives.is_gone(seat)]
        return len(self.generation.members) + len(may) >= int(self._lives.min_workers)

    def _meet(self) -> bool:
        """Compare progress in the new generation, open its group, level out; return False if that has failed."""
        met = self._compare()
        if met is None:
            return False
        self._is_sharing, begun_s = True, time.monotonic()
        try:
            if self._messages is not None:
                self._messages.settle(met, self.me.seat, is_short=self.is_short)
            self._group = self._open(_OPEN_S, self._has_left)
            self._level(met)
            self._sharing.observe(time.monotonic() - begun_s)
        except RuntimeError as error:
            self.close_group()
            if is_time_out(error):
                self._sharing.was_wrong()
            self._note("failed to regroup", error=str(error))
            return False
        finally:
            self._is_sharing = False
        return True

    def _open(self, open_s: float, is_lost: Callable[[Member], bool]) -> Group | None:
        members = self.generation.members
        if len(members) == 1:
            return None
        others = [member for member in members if member != self.me]
        return self._world.open_group(self.generation, open_s, lambda: any(map(is_lost, others)))

    def _is_lost(self, member: Member) -> bool:
        return self._door.has_ended(member) or self._is_absent(member.seat)

    def _has_left(self, member: Member) -> bool:
        """Whether ``member`` opens no group of this generation: it is lost, or has gone on to the next."""
        return self._is_lost(member) or self._door.is_at(self.generation.number + 1, member)

    def _compare(self) -> dict[int, Progress] | None:
        """Return the progress of all members; None if one of them is lost meanwhile."""
        record, me, session, sent = self.record, self.me.seat, self._told.session, {}
        if self._messages is not None:
            self._messages.prepare(self.generation.members)
            sent = self._messages.sent
        step = session.step if session is not None and self.holds else 0
        calls = record.begun, tuple(record.lacking), tuple(record.to_give)
        mine = Progress(self.holds, *calls, step, self.joiner_waits, sent)
        return progress_of_all(self._store, self.generation, me, mine, is_lost=self._is_lost, check=self._check)

    def _level(self, met: dict[int, Progress]) -> None:
        """Give results to members that lack them, and everything to joiners."""
        if self._group is None:
            return
        holders = [seat for seat, progress in met.items() if progress.holds]
        lacks = {number for seat in holders for number in met[seat].lacks}
        for number in sorted(lacks):
            donor = next((seat for seat in holders if number in met[seat].has), None)
            if donor is not None:
                share_result(self._group, self.record, number, donor, self.me.seat, self._world.wait("regrouping"))
        if len(holders) < len(met):
            self._take_in(self._group, met, holders[0])

    def _take_in(self, group: Group, met: dict[int, Progress], donor: int) -> None:
        """Give everything to joiners."""
        session = self._told.session
        assert session is not None
        given = session.everything() if donor == self.me.seat else b""
        received = share(group, given, donor, self._world.wait("everything for a joiner"))
        if not self.holds:
            self.record.restart(met[donor].begun)
            self._told.forget()
            self.means.forget_means()
            session.adopt(received)
            self.holds = True

    @property
    def _missing(self) -> int:
        return int(self._lives.min_workers) - len(self.generation.members)

    def _raise_lost(self, seats: Sequence[int]) -> None:
        """Raise if there are ``seats``, without which the run ends."""
        if seats:
            raise self._world.too_few(seats)

    def timeout_s(self) -> float:
        """Return the time-out of a call that begins now."""
        if self._is_sharing:
            return self._sharing.seconds
        chosen_s = self._world.chosen_wait_s
        return self.deadline.seconds if chosen_s is None else min(chosen_s, self.deadline.seconds)

    def _look(self, store: Store) -> None:
        """See with every heartbeat whether members are to change, on its thread and with its connection."""
        generation, waits = self.generation, False
        if not self.holds:
            return
        lives = self._world.lives_on(store)
        door = Door(store, lives, self.me, self.size, is_silent=lambda seat: False, check=_nothing)
        if len(generation.members) < self.size:
            seats = [member.seat for member in door.joiners(generation.members)]
            recent = [self._recent.has(store, seat) for seat in seats]
            waits = any(recent)
        self.joiner_waits = waits and generation is self.generation
        if self._messages is not None:
            self._messages.look(door, generation, self.me, joiner_waits=self.joiner_waits)

    # Waiting.

    def _check(self) -> None:
        """Raise if the run ends, or has ended before this worker joined it."""
        if not self.holds and self._door.run_is_over:
            raise RunIsOver
        self._world.check()

    def _wait_begins(self) -> None:
        self._waiting_since_s = time.monotonic()
        self._heartbeats.watch_anew()

    def _is_absent(self, seat: int) -> bool:
        """Whether ``seat`` is not waited for: it is silent, or takes longer than any worker may."""
        is_late = time.monotonic() - self._waiting_since_s > self._world.longest_wait_s()
        return is_late or self._heartbeats.is_silent(seat)

    def close_group(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def _note(self, what: str, **details: Any) -> None:
        now_s = time.monotonic()
        change = {"what": what, "generation": self.generation.number, "t": now_s, "s": now_s - self._began_s}
        self.changes.append({**change, "members": self.generation.seats, **details})


def _nothing() -> None:
    """Do nothing."""
