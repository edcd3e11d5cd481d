"""Generations: who decides them, who is waited for, and who is taken in. Each seat is a thread with a connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import TCPStore

from tacit.errors import LeftOut, RunError, TimedOut
from tacit.runtime.launched import LaunchedLives, publish_end, publish_gone, publish_life
from tacit.runtime.membership.generations import NOBODY, Door, Generation, Member, RunIsOver

SEATS = 3
FIRST = Generation(0, (Member(0, 1), Member(1, 1), Member(2, 1)))


class Run:
    """A store and the doors of seats."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.silent: set[int] = set()
        self.is_over = threading.Event()
        for seat in range(SEATS):
            publish_life(self.store, seat, 1)

    def door(self, seat: int, life: int = 1) -> Door:
        client: Store = TCPStore("127.0.0.1", self.store.port, is_master=False, wait_for_workers=False)
        variables = {"RANK": str(seat), "WORLD_SIZE": str(SEATS), "TACIT_LIFE": str(life)}
        lives = LaunchedLives(client, variables)
        return Door(
            PrefixStore("members", client),
            lives,
            Member(seat, life),
            SEATS,
            is_silent=lambda other: other in self.silent,
            check=self._check,
        )

    def _check(self) -> None:
        if self.is_over.is_set():
            raise RunError("the test is over")

    def start(self, call: Callable[..., Generation], *arguments: object, **named: object) -> Future[Generation]:
        return self.pool.submit(call, *arguments, **named)

    def begin(self) -> list[Door]:
        """Let all seats form generation 0; return their doors."""
        doors = [self.door(seat) for seat in range(SEATS)]
        formed = [self.start(door.first, 30.0) for door in doors]
        assert [one.result(30) for one in formed] == [FIRST] * SEATS
        return doors


@pytest.fixture
def run() -> Iterator[Run]:
    with ThreadPoolExecutor(SEATS) as pool:
        made = Run(pool)
        try:
            yield made
        finally:
            made.is_over.set()


def test_the_first_generation_waits_for_all_seats_and_names_those_that_do_not_come(run):
    with pytest.raises(TimedOut, match=r"no answer from worker 1, worker 2 within timeout_s=0\.05"):
        run.door(0).first(0.05)
    run.begin()


def test_the_first_generation_does_not_wait_for_a_seat_that_has_ended_for_good(run):
    publish_gone(run.store, 2)
    with pytest.raises(RunError, match="worker 2 ended before the run began"):
        run.door(0).first(30.0)


def test_members_decide_once_all_others_stand_at_the_door_or_are_known_dead(run):
    doors = run.begin()
    waiting = run.start(doors[0].following, FIRST, is_at_boundary=False)
    assert doors[0].generation(1) is None
    publish_end(run.store, 2, 1, -9)
    decided = doors[1].following(FIRST, is_at_boundary=False)
    assert decided == waiting.result(30) == Generation(1, (Member(0, 1), Member(1, 1)))


def test_a_member_whose_later_life_has_started_is_dead_even_if_nobody_has_said_so(run):
    doors = run.begin()
    publish_life(run.store, 2, 2)
    waiting = run.start(doors[0].following, FIRST, is_at_boundary=False)
    assert doors[1].following(FIRST, is_at_boundary=False).seats == waiting.result(30).seats == (0, 1)


def test_a_silent_member_is_left_out_and_hears_of_it(run):
    doors = run.begin()
    run.silent = {1}
    waiting = run.start(doors[0].following, FIRST, is_at_boundary=False)
    assert doors[2].following(FIRST, is_at_boundary=False).seats == waiting.result(30).seats == (0, 2)
    with pytest.raises(LeftOut, match="worker 1 was left out .* workers 0 and 2 continue without it"):
        doors[1].following(FIRST, is_at_boundary=False)


def test_a_joiner_decides_nothing_and_is_taken_in_at_a_step_boundary_of_all_members(run):
    doors = run.begin()
    publish_end(run.store, 2, 1, -9)
    publish_life(run.store, 2, 2)
    joiner = run.start(run.door(2, life=2).taken_in, NOBODY)
    run.store.wait(["members/joining/2"])
    assert doors[0].generation(1) is None  # it waits, and forms no generation of its own
    others = run.start(doors[0].following, FIRST, is_at_boundary=True)
    second = doors[1].following(FIRST, is_at_boundary=False)
    assert second == others.result(30) and second.seats == (0, 1)  # one member is in the middle of a step
    others = run.start(doors[0].following, second, is_at_boundary=True)
    third = doors[1].following(second, is_at_boundary=True)
    assert third == others.result(30) == joiner.result(30)
    assert third == Generation(2, (Member(0, 1), Member(1, 1), Member(2, 2)))


def test_a_member_that_did_not_get_the_model_joins_anew_and_is_not_waited_for(run):
    doors = run.begin()
    run.store.set("members/joining/2", "[1, 1]")  # what taken_in publishes once generation 0 is known
    waiting = run.start(doors[0].following, FIRST, is_at_boundary=False)
    assert doors[1].following(FIRST, is_at_boundary=False).seats == waiting.result(30).seats == (0, 1)


def test_a_joiner_that_has_ended_is_not_taken_in(run):
    doors = run.begin()
    publish_end(run.store, 2, 1, -9)
    run.store.set("members/joining/2", "[1, 1]")
    waiting = run.start(doors[0].following, FIRST, is_at_boundary=True)
    assert doors[1].following(FIRST, is_at_boundary=True).seats == waiting.result(30).seats == (0, 1)


def test_a_joiner_is_told_when_nobody_is_left_who_has_the_model(run):
    run.begin()
    for seat in range(SEATS):
        publish_end(run.store, seat, 1, -9)
        publish_life(run.store, seat, 2)
    with pytest.raises(RunError, match="worker 1 cannot join the run: all workers that hold its model have ended"):
        run.door(1, life=2).taken_in(NOBODY)


def test_a_joiner_that_comes_after_the_last_member_has_finished_is_told_that_the_run_is_over(run):
    doors = run.begin()
    doors[0].close_run()
    for seat in range(SEATS):
        publish_end(run.store, seat, 1, -9 if seat == 2 else 0)
    publish_life(run.store, 2, 2)
    with pytest.raises(RunIsOver):
        run.door(2, life=2).taken_in(NOBODY)


def test_a_joiner_that_has_stopped_on_its_way_is_not_taken_in_again_until_it_queues_anew(run):
    doors = run.begin()
    publish_end(run.store, 2, 1, -9)
    publish_life(run.store, 2, 2)
    latest = FIRST
    for queued, silent, seats in ((1, set(), (0, 1, 2)), (1, {2}, (0, 1)), (3, set(), (0, 1, 2))):
        run.store.set("members/joining/2", f"[2, {queued}]")
        run.silent = silent
        waiting = run.start(doors[0].following, latest, is_at_boundary=True)
        latest = doors[1].following(latest, is_at_boundary=True)
        assert latest == waiting.result(30)
        assert latest.seats == seats
