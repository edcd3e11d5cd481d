"""The members of a run: what happens when collectives fail, when workers wait to join, and when this one does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from tacit.errors import LeftOut, MembersChanged, PeerLost, RunError
from tacit.runtime.membership.calls import MemberCall
from tacit.runtime.membership.generations import NobodyLeft
from tacit.runtime.membership.meeting import LEAST_ROUND_S, Meeting
from tacit.runtime.membership.message_changes import MessageChanges
from tacit.runtime.membership.world import Session, World
from tacit.runtime.process_groups import is_time_out

if TYPE_CHECKING:
    from tacit.runtime.messaging.endpoint import MessageEndpoint

_PAUSE_S: Final = 0.005  # between two looks at the store
_MOST_FAILURES: Final = 3


class Membership(Meeting):
    """One worker's place among the members."""

    def __init__(self, store: Store, lives: Any, size: int, world: World) -> None:
        super().__init__(store, lives, size, world)
        self.admits = False  # a round has said that a joiner waits
        self._failures = 0

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

    @property
    def watches(self) -> bool:
        """Whether it does so."""
        return self._messages is not None

    def _check_wait(self, peer: int | None, waited_s: float) -> None:
        """Raise ``MembersChanged`` if ``change`` is due, while the strategy waits for a message."""
        is_lost = peer is not None and waited_s > LEAST_ROUND_S and self._heartbeats.is_silent(peer)
        if self._is_interrupted or is_lost:
            raise MembersChanged("a message")

    def change(self, failed: PeerLost | None = None) -> None:
        """Agree on the next members in the middle of a step; raise ``failed`` if its worker is still among them."""
        before = self.generation
        with self._store_is_there():
            self._regroup(is_at_boundary=False)
            self._announce()
        stayed = {member.seat for member in before.members if member in self.generation.members}
        if failed is not None and failed.rank in stayed:
            raise failed

    def join(self) -> None:
        """Wait until the members take this worker in and give it everything."""
        self.close_group()
        self._began_s = time.monotonic()
        with self._store_is_there():
            while not self.holds or self._told.is_due(self.generation):
                while not self.holds:
                    self._wait_begins()
                    try:
                        self.generation = self._door.taken_in(self.generation)
                    except NobodyLeft as error:
                        self._world.too_few(error.seats)  # ends this run, so that the next lives begin another
                        raise
                    self._meet()
                self._door.leave_queue()
                self.joiner_waits = self.admits = False
                self._ended_s = 0.0
                self._note("joined")
                with suppress(LeftOut):
                    self._announce()
