"""Collectives among the members of a run, which continue without lost workers.

A collective waits for its members alone. When one of them is lost before any rank has the result, the others agree on
the next generation (``members``) and repeat the collective with what each had given. Where a rank has left with the
result, all others get this result. An exchange whose messages are divided by ranks begins anew instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tacit.core.messages import Message
from tacit.errors import Disagreement, MembersChanged, PeerLost
from tacit.simulation.collectives import Collective, Collectives
from tacit.simulation.rendezvous import Group

if TYPE_CHECKING:
    from tacit.simulation.membership.members import Members

_EVERYBODY = 0
"""Number of the group of all members."""


class MembersCollective(Collective):
    """A collective that may be repeated."""

    __slots__ = ("count", "exchange", "followers", "ready")

    def __init__(self, kind: str, group: Group, index: int) -> None:
        super().__init__(kind, group, index)
        self.count = index  # of the calls of each member
        self.ready: set[int] = set()  # ranks that take part in it with the current members
        self.followers: list[int] = []  # joiners that hold a copy of a member's round in progress
        self.exchange: tuple[Sequence[float], Sequence[int]] | None = None  # ends and bytes, not in the trace yet


class MembersCollectives(Collectives):
    """The collectives of a run whose members change."""

    members_of_run: Members
    _open: dict[tuple[int, int], MembersCollective]  # type: ignore[assignment]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._make_call = MembersCollective
        self._running: list[MembersCollective] = []

    @property
    def members(self) -> Group:
        return self.members_of_run.ranks

    def _enter(self, rank: int, kind: str, arguments: Any, group: Sequence[int] | None) -> Collective:
        if group is not None and tuple(group) != self.all_ranks:
            return super()._enter(rank, kind, arguments, group)
        counts = self._counts[_EVERYBODY]
        count = counts[rank] = counts[rank] + 1
        call = self._open.get((_EVERYBODY, count))
        if call is None:
            call = self._open[_EVERYBODY, count] = MembersCollective(kind, self.all_ranks, count)
            call.group = tuple(member for member in self.members if member not in self._lost)
        if call.kind != kind:
            raise Disagreement(self.noun, kind, call.kind, rank, others=sorted(call.joined))
        call.joined[rank] = arguments
        if not self.members_of_run.is_changing:
            self._take_part(rank, call)
        return call

    def needs_regrouping(self, rank: int, collective: Collective) -> bool:
        if not isinstance(collective, MembersCollective) or (_EVERYBODY, collective.count) not in self._open:
            return False
        return self.members_of_run.is_changing or (rank in collective.group and rank not in collective.ready)

    def rejoin(self, rank: int, collective: Collective) -> None:
        assert isinstance(collective, MembersCollective)
        if collective.kind == "all-to-all" or collective.continues:
            self.withdraw(collective)
        else:
            self._take_part(rank, collective)

    def withdraw(self, collective: Collective) -> None:
        assert isinstance(collective, MembersCollective)
        self._open.pop((_EVERYBODY, collective.count), None)
        collective.failure = MembersChanged(str(collective))

    def _take_part(self, rank: int, call: MembersCollective) -> None:
        """Count ``rank`` among those that are ready; the last one starts the collective."""
        if rank in call.group:
            call.ready.add(rank)
        if len(call.ready) == len(call.group) > 0:
            del self._open[_EVERYBODY, call.count]
            self._start(call)

    def _start(self, collective: Collective) -> None:
        if not isinstance(collective, MembersCollective):
            super()._start(collective)
            return
        if collective.kind == "broadcast" and (lost := self._lost_source(collective)) is not None:
            self._fail(collective, lost)
            return
        if not collective.continues:
            members = self.members_of_run
            collective.lets_in = members.generation if members.announces_joiners else 0
        self._running.append(collective)
        super()._start(collective)

    def _lost_source(self, call: MembersCollective) -> PeerLost | None:
        source = int(next(iter(call.joined.values()))[1])
        if source in call.joined:
            return None
        return PeerLost(source, self._lost.get(source, 0.0), str(call), need="needs its tensor")

    def _record(self, collective: Collective, ends_s: Sequence[float], sent_bytes: Sequence[int]) -> None:
        if isinstance(collective, MembersCollective):
            collective.exchange = (ends_s, sent_bytes)  # written when it ends, or is broken off
        else:
            super()._record(collective, ends_s, sent_bytes)

    def _keep_made(self, collective: Collective, messages: Sequence[Message]) -> None:
        for rank, message in zip(collective.group, messages, strict=True):
            _, flag, time_s = collective.joined[rank]
            collective.joined[rank] = (message, flag, time_s)

    def _leave(self, collective: Collective, ranks: list[int], attempt: int) -> None:
        if attempt == collective.attempt and isinstance(collective, MembersCollective):
            self._write(collective)
            if collective.followers and len(collective.done_s) + len(ranks) >= len(collective.group):
                self._let_follow(collective, ranks)
                ranks = [*ranks, *collective.followers]
            if len(collective.done_s) + len(ranks) >= len(collective.group) + len(collective.followers):
                self._running.remove(collective)
        super()._leave(collective, ranks, attempt)

    def _let_follow(self, call: MembersCollective, ranks: list[int]) -> None:
        """Give joiners that copied a round in progress the result of a member."""
        source = ranks[0]
        for rank in call.followers:
            call.results[rank] = call.results[source]
            call.since_s.setdefault(rank, self._agenda.now_s)
            if call.means is not None:
                call.means.share(source, rank)

    def _write(self, call: MembersCollective) -> None:
        if call.exchange is not None:
            (ends_s, sent_bytes), call.exchange = call.exchange, None
            super()._record(call, ends_s, sent_bytes)

    # Changes of the members.

    def lose(self, rank: int, at_s: float) -> None:
        """Break off the collectives that wait for a lost worker, and wake the others."""
        self._lost[rank] = at_s
        for call in list(self._running):
            if rank in call.group:
                self._lose_in_progress(call, rank)
        for key, call in list(self._open.items()):
            if rank not in call.group:
                continue
            if key[0] != _EVERYBODY:
                del self._open[key]
                self._fail(call, self._peer_lost(rank, at_s, call))
                continue
            call.group = tuple(member for member in call.group if member != rank)
            for held in (call.joined, call.waiters):
                held.pop(rank, None)
        if self.members_of_run.is_changing:  # else the lost worker had not joined
            self.interrupt()

    def _lose_in_progress(self, call: MembersCollective, rank: int) -> None:
        call.waiters.pop(rank, None)
        call.followers = [follower for follower in call.followers if follower != rank]
        if any(other not in self._lost for other in call.done_s):
            return  # who has the result gives it to the others
        call.done_s.clear()
        now_s = self._agenda.now_s
        if call.exchange is not None:
            (ends_s, sent_bytes), call.exchange = call.exchange, None
            shares = [_share(call.begun_s, now_s, end_s) for end_s in ends_s]
            sent = [round(size * share) for size, share in zip(sent_bytes, shares, strict=True)]
            if now_s >= call.begun_s:
                super()._record(call, [now_s] * len(sent), sent)
        call.attempt += 1
        if call in self._held_up:
            self._held_up.remove(call)
        call.results, call.means = {}, None
        self._running.remove(call)
        self._open[_EVERYBODY, call.count] = call

    def interrupt(self) -> None:
        calls = [call for key, call in self._open.items() if key[0] == _EVERYBODY]
        for call in calls:
            call.ready.clear()
        for call in calls:
            for rank in sorted(call.waiters):
                if rank in call.waiters:
                    call.waiters.pop(rank).resume()

    def let_in(self, rank: int, donor: int) -> None:
        self._lost.pop(rank, None)
        for counts in self._counts:
            counts[rank] = counts[donor]

    def follow(self, rank: int, call: Collective) -> None:
        if isinstance(call, MembersCollective) and rank not in call.followers:
            source = next(iter(call.done_s), None)
            call.followers.append(rank)
            if source is not None and len(call.done_s) >= len(call.group):
                self._let_follow(call, [source])
                call.done_s[rank] = self._agenda.now_s


def _share(begun_s: float, now_s: float, end_s: float) -> float:
    """Return the part of an exchange that had passed when it was broken off."""
    return min(1.0, max(0.0, (now_s - begun_s) / (end_s - begun_s))) if end_s > begun_s else 0.0
