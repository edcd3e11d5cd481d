"""The members of a run: what happens when collectives fail, when workers wait to join, and when this one does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from tacit.errors import LeftOut, MembersChanged, PeerLost, RunError
from tacit.runtime.membership.announcements import Announcements
from tacit.runtime.membership.calls import CallRecord, MemberCall
from tacit.runtime.membership.deadlines import LearnedDeadline
from tacit.runtime.membership.generations import NOBODY, Door, Member, RunIsOver
from tacit.runtime.membership.heartbeats import Heartbeats, RecentBeats
from tacit.runtime.membership.message_changes import MessageChanges
from tacit.runtime.membership.progress import Progress, progress_of_all
from tacit.runtime.membership.sharing import share, share_result
from tacit.runtime.membership.world import MeansInProgress, NoMeans, Session, World
from tacit.runtime.process_groups import Group, is_time_out

if TYPE_CHECKING:
    from tacit.runtime.messaging.endpoint import MessageEndpoint

_PAUSE_S: Final = 0.005  # between two looks at the store
_ROUND_S: Final = 10.0
"""Deadline of a call before enough rounds are known. A process that beats is waited for much longer."""
_LEAST_ROUND_S: Final = 0.5
_SHARE_S: Final = 5.0
"""Deadline of each call that gives a joiner everything, before one has been seen."""
_LEAST_SHARE_S: Final = 2.0
_MOST_FAILURES: Final = 3
_OPEN_S: Final = 3.0
"""How long members connect to each other, all of which have just said that they are there."""


class Membership:
    """One worker's place among the members."""

    def __init__(self, store: Store, lives: Any, size: int, world: World) -> None:
        self.me, self.size = Member(lives.seat, lives.life), size
        self._store, self._lives, self._world = store, lives, world
        self.generation = NOBODY
        self.holds = False  # the model of the run
        self.joiner_waits = False  # as seen by this worker's heartbeat
        self.admits = False  # a round has said that a joiner waits
        self._told = Announcements(size)
        self._messages: MessageChanges | None = None  # where the strategy sends messages
        self.means: MeansInProgress = NoMeans()
        self.record = CallRecord()
        self.deadline = LearnedDeadline(initial_s=_ROUND_S, least_s=_LEAST_ROUND_S)
        self._sharing = LearnedDeadline(initial_s=_SHARE_S, least_s=_LEAST_SHARE_S)
        self._group: Group | None = None
        self._ended_s = self._waiting_since_s = self._began_s = 0.0
        self.changes: list[dict[str, Any]] = []  # what happened, for measurements
        self._is_sharing, self._failures = False, 0
        self._recent = RecentBeats()
        self._heartbeats = Heartbeats(store, self.me.seat, self._look)
        self._door = Door(store, lives, self.me, size, is_silent=self._is_absent, check=self._check)

    @property
    def seats(self) -> tuple[int, ...]:
        """The members, as the strategy has been told."""
        return self._told.seats

    # Begin and end.

    @property
    def joins(self) -> bool:
        """Whether the run is on, and this process is to join it."""
        return self._door.generation(0) is not None and not self.holds

    def start(self) -> None:
        """Take part from the first generation."""
        self._heartbeats.start()
        if not self.joins:
            self.generation = self._door.first(self._world.attach_timeout_s)
            self._told.begin(self.generation)
            if self.me in self.generation.members:
                self.holds = True
                try:
                    self._group = self._open(self._world.attach_timeout_s, self._door.has_ended)
                except RuntimeError as error:
                    self._raise_lost(
                        [member.seat for member in self.generation.members if self._door.has_ended(member)]
                    )
                    raise RunError(f"the workers could not connect to each other: {error}") from error

    def _raise_lost(self, seats: Sequence[int]) -> None:
        """Raise if there are ``seats``, without which the run ends."""
        if seats:
            raise self._world.too_few(seats)

    def has_ended(self, seat: int) -> bool:
        """Whether ``seat`` was a member of the latest generation, and its process has ended."""
        return any(member.seat == seat and self._door.has_ended(member) for member in self.generation.members)

    def start_clock(self) -> None:
        """Forget how long calls took in ``attach``."""
        self.deadline.forget()
        self._ended_s = 0.0

    def close(self, *, run_is_over: bool) -> None:
        if run_is_over and self.holds:
            self._door.close_run()
        self._heartbeats.close()
        self.close_group()

    # Calls.

    def begin(self, call: MemberCall) -> None:
        """Begin ``call``."""
        with self._store_is_there():
            if self._announce() and call.is_divided:
                raise MembersChanged(call.label)
            self.record.begin(call)
            try:
                self._begin(call)
            except RuntimeError:
                self._recover(call, is_timeout=False)

    def end(self, call: MemberCall) -> None:
        """Wait for the result of ``call``, which is repeated as often as members are lost."""
        while self.record.under_way.get(call.number) is call:
            try:
                call.end(self._world.wait(call.label))
            except RuntimeError as error:
                self.close_group()  # first: in a ring only the neighbours of a lost worker hear of it
                before = self.generation.seats
                with self._store_is_there():
                    self._recover(call, is_timeout=is_time_out(error))
                self._check_progress(call, before, error)
            else:
                self._failures = 0
                self.record.end(call)
                self._observe()
        self.record.returned(call)

    def _check_progress(self, call: MemberCall, before: tuple[int, ...], error: RuntimeError) -> None:
        """Raise if ``call`` fails again and again though no member is lost and nobody was late."""
        is_hopeless = self.generation.seats == before and not is_time_out(error)
        self._failures = self._failures + 1 if is_hopeless else 0
        if self._failures > _MOST_FAILURES:
            raise RunError(f"{call.label} failed {self._failures} times although no worker is lost: {error}") from error

    def _observe(self) -> None:
        """Learn how long it takes from the end of one call to that of the next."""
        now_s = time.monotonic()
        if self._ended_s:
            self.deadline.observe(now_s - self._ended_s)
        self._ended_s = now_s

    def _begin(self, call: MemberCall) -> None:
        self._raise_lost([seat for seat in call.needs if seat not in self.generation.seats])
        call.seats = self.generation.seats
        call.begin(self._group)

    def timeout_s(self) -> float:
        """Return the time-out of a call that begins now."""
        if self._is_sharing:
            return self._sharing.seconds
        chosen_s = self._world.chosen_wait_s
        return self.deadline.seconds if chosen_s is None else min(chosen_s, self.deadline.seconds)

    @contextmanager
    def _store_is_there(self) -> Iterator[None]:
        """Name the store in errors of its connection."""
        try:
            yield
        except dist.DistError as error:
            raise RunError(f"the launcher's store is gone, so the workers cannot find each other: {error}") from error

    # Changes of members.

    def _recover(self, call: MemberCall, *, is_timeout: bool) -> None:
        """Agree on the next members; then begin all calls anew that have ended nowhere."""
        for other in [*self.record.under_way.values()]:
            if other is not call and other.look():
                self.record.end(other)
        before = self.generation
        while True:
            self._regroup(is_at_boundary=False)
            try:
                is_latest = call.number == self.record.begun
                is_void = self._told.is_running and self._told.is_due(self.generation)
                for number in self.record.lacking:
                    if not is_latest or number != call.number:  # in the order of numbers, as on all members
                        self._begin(self.record.under_way[number])
                if is_void:  # the strategy adapts to members that are not the latest
                    if call.number in self.record.under_way:
                        self.record.withdraw(call)
                    raise MembersChanged(call.label)
                if not is_latest or call.number not in self.record.under_way:
                    break  # begun, or ended on others: their result is here
                if call.is_divided:
                    self.record.void(call)
                    self._announce()
                    raise MembersChanged(call.label)
                self.record.withdraw(call)
                self._announce()
                self.record.begin(call)
                self._begin(call)
                break
            except RuntimeError:
                self.close_group()
        if is_timeout and self.generation.seats == before.seats:
            self.deadline.was_wrong()

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

    def _announce(self) -> bool:
        """Tell the strategy of other members, now that results of earlier ones have been used; return whether so."""
        if self._told.is_running or not self._told.is_due(self.generation):
            return False
        self._told.run(lambda: self.generation)
        return True

    def attach_session(self, session: Session) -> None:
        """Tell ``session`` of changes from now on, and of workers that were lost while it was made."""
        self._told.session = session
        if self.holds and len(self.seats) < self.size:
            with self._store_is_there():
                self._told.run(lambda: self.generation)

    # Step boundaries.

    @property
    def is_due(self) -> bool:
        """Whether members change at this step boundary; without messages on all members alike."""
        return self._is_open or self._is_interrupted or self._told.is_due(self.generation)

    @property
    def _is_open(self) -> bool:
        """Whether joiners come in at this step boundary, on all members alike."""
        if self._messages is None:
            return self.admits or self.is_short
        opens_at, session = self._messages.lets_in_at, self._told.session
        return opens_at is not None and session is not None and session.step >= opens_at

    @property
    def _is_interrupted(self) -> bool:
        """Whether members that exchange messages come to the door, each where it is."""
        return self._messages is not None and self._messages.are_near(self.generation)

    def at_boundary(self) -> None:
        """Change members at the end of a step, with no call under way."""
        self.means.drain_means()
        with self._store_is_there():
            for call in [*self.record.under_way.values()]:  # overlapped ones, which joiners get as results
                self.end(call)
            self.record.age()
            if self._is_interrupted:
                self._regroup(is_at_boundary=False)
            while self._is_open:
                self.admits = False
                while self.is_short and len(self._door.joiners(self.generation.members)) < self._missing:
                    self._end_if_too_few(is_at_boundary=True)
                    self._check()
                    time.sleep(_PAUSE_S)
                self._regroup(is_at_boundary=True)
            self._announce()

    # Messages.

    def watch(self, endpoint: MessageEndpoint) -> None:
        """Come to the door also while a strategy waits for messages of ``endpoint``."""
        self._told.are_of_generations = True
        self._told.begin(self.generation)
        self._messages = MessageChanges(endpoint)
        endpoint.check_wait = self._check_wait

    def _check_wait(self, peer: int | None, waited_s: float) -> None:
        """Raise ``MembersChanged`` if ``change`` is due, while the strategy waits for a message."""
        is_lost = peer is not None and waited_s > _LEAST_ROUND_S and self._heartbeats.is_silent(peer)
        if self._is_interrupted or is_lost:
            raise MembersChanged("a message")

    def change(self, failed: PeerLost | None = None) -> None:
        """Agree on the next members in the middle of a step; raise ``failed`` if its worker is still among them."""
        before = self.generation
        with self._store_is_there():
            self._regroup(is_at_boundary=False)
            self._announce()
        if failed is not None and any(
            member.seat == failed.rank for member in {*before.members} & {*self.generation.members}
        ):
            raise failed

    @property
    def _missing(self) -> int:
        return int(self._lives.min_workers) - len(self.generation.members)

    def join(self) -> None:
        """Wait until the members take this worker in and give it everything."""
        self.close_group()
        self._began_s = time.monotonic()
        with self._store_is_there():
            while not self.holds:
                self._wait_begins()
                self.generation = self._door.taken_in(self.generation)
                self._meet()
            self._door.leave_queue()
            self.joiner_waits = self.admits = False
            self._ended_s = 0.0
            self._note("joined")
            self._announce()

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
