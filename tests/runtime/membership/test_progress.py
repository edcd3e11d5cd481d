"""What members of a new generation tell each other."""

from __future__ import annotations

from torch._C._distributed_c10d import HashStore

from tacit.runtime.membership.generations import Generation, Member
from tacit.runtime.membership.progress import Progress, progress_of_all

GENERATION = Generation(3, (Member(0, 1), Member(1, 1), Member(2, 2)))
MINE = Progress(True, 7, (6, 7), (5,))


def told(store: HashStore, seats: tuple[int, ...]) -> None:
    for seat in seats:
        progress_of_all(store, GENERATION, seat, MINE, is_lost=lambda member: True, check=lambda: None)


def test_all_members_get_the_progress_of_all_in_one_order_whoever_came_first():
    store = HashStore()
    missing = iter(((2,), (0,)))  # the others come while this member waits, the last one first

    def check() -> None:
        told(store, next(missing))

    found = progress_of_all(store, GENERATION, 1, MINE, is_lost=lambda member: False, check=check)
    assert list(found.items()) == [(0, MINE), (1, MINE), (2, MINE)]


def test_a_member_that_is_lost_meanwhile_makes_another_generation_necessary():
    store = HashStore()
    told(store, (0,))
    is_lost = lambda member: member == Member(2, 2)  # noqa: E731
    assert progress_of_all(store, GENERATION, 1, MINE, is_lost=is_lost, check=lambda: None) is None
    told(store, (2,))  # its words count although it is lost now: others may have read them
    assert progress_of_all(store, GENERATION, 1, MINE, is_lost=is_lost, check=lambda: None) is not None
