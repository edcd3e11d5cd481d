"""What a member does after a failed call: the order in which calls begin anew, and what the strategy is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from tacit.errors import PeerLost
from tacit.runtime.membership.calls import Broadcast, MemberCall, Sum
from tacit.runtime.membership.generations import Generation, Member
from tacit.runtime.membership.members import Membership


class Recorded(Sum):
    """A sum that notes when it begins."""

    begun: list[str]

    def begin(self, group: Any) -> None:
        self.begun.append(self.label)


def generation(number: int, *seats: int) -> Generation:
    return Generation(number, tuple(Member(seat, 1) for seat in seats))


def membership_of(*later: Generation, session: Any = None) -> Membership:
    """Return the membership of seat 0 of four, in which each change leads to the next of ``later``."""
    world: Any = SimpleNamespace(too_few=lambda seats: PeerLost(seats[0], 0.0, "this run"))
    made = Membership(HashStore(), SimpleNamespace(seat=0, life=1, min_workers=1), 4, world)
    made.generation, made.holds, coming = generation(0, 0, 1, 2, 3), True, iter(later)
    made._told.begin(made.generation)
    if session is not None:
        made.attach_session(session)

    def regroup(*, is_at_boundary: bool) -> None:
        made.generation = next(coming)

    made._regroup = regroup  # type: ignore[method-assign]
    return made


def calls(membership: Membership, *labels: str) -> list[MemberCall]:
    Recorded.begun = []
    made: list[MemberCall] = [Recorded(label, torch.ones(1)) for label in labels]
    for call in made:
        membership.begin(call)
    Recorded.begun.clear()
    return made


@pytest.mark.parametrize("failed", [0, 1])
def test_calls_under_way_begin_anew_in_their_order_whichever_of_them_has_failed(failed: int):
    membership = membership_of(generation(1, 0, 1))
    membership._recover(calls(membership, "first", "second")[failed], is_timeout=False)
    assert Recorded.begun == ["first", "second"]


def test_the_strategy_is_told_anew_if_members_change_while_it_adapts_in_a_collective():
    told = []

    def members_changed(seats: tuple[int, ...]) -> None:
        told.append(seats)
        call = Recorded("adapting", torch.ones(1))
        membership.begin(call)
        if len(told) == 1:
            membership._recover(call, is_timeout=False)  # raises: its numbers are those of other members
        membership.record.end(call)

    session = SimpleNamespace(members_changed=members_changed)
    membership = membership_of(generation(1, 0, 1, 2), generation(2, 0, 1), session=session)
    [failed] = calls(membership, "round")
    membership._recover(failed, is_timeout=False)
    assert told == [(0, 1, 2), (0, 1)]
    assert Recorded.begun == ["adapting", "adapting", "round"]
    assert failed.number == membership.record.begun == 2


def test_overlapped_calls_have_ended_when_members_change_at_a_boundary():
    """A joiner gets their results and does not know them as calls; that they announce it is old news."""
    membership, seen = membership_of(generation(1, 0, 1, 2, 3)), []
    [overlapped] = calls(membership, "overlapped")
    changed = membership._regroup

    def regroup(*, is_at_boundary: bool) -> None:
        seen.append((membership.record.lacking, overlapped.is_old))
        changed(is_at_boundary=is_at_boundary)

    membership._regroup = regroup  # type: ignore[method-assign]
    membership._world.wait = lambda what: lambda call: None
    membership.admits = True
    membership.at_boundary()
    assert seen == [([], True)]


def test_a_member_in_another_life_is_news_and_the_same_members_are_none():
    told = []
    membership = membership_of(
        generation(1, 0, 1, 2, 3),
        Generation(2, (Member(0, 1), Member(1, 1), Member(2, 1), Member(3, 2))),
        session=SimpleNamespace(members_changed=told.append),
    )
    for expected in ([], [(0, 1, 2, 3)]):
        membership.admits = True
        membership.at_boundary()
        assert told == expected


def test_a_session_hears_of_workers_that_were_lost_while_it_was_made():
    told = []
    membership = membership_of(generation(1, 0, 1))
    membership._recover(calls(membership, "the first broadcast")[0], is_timeout=False)
    membership.attach_session(SimpleNamespace(members_changed=told.append))  # type: ignore[arg-type]
    assert told == [(0, 1)]


def test_a_broadcast_whose_source_is_lost_ends_the_run_with_its_name():
    membership = membership_of(generation(1, 0, 1))
    call = Broadcast("broadcast", torch.ones(1), source=2)
    membership.record.begin(call)
    with pytest.raises(PeerLost, match="worker 2 was lost"):
        membership._recover(call, is_timeout=False)
