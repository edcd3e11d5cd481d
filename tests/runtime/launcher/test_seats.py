"""Rules of restarts, without processes."""

from __future__ import annotations

import pytest

from tacit.runtime.launcher.seats import Seats, State


def started(size: int, min_workers: int, max_restarts: int, own: range | None = None) -> Seats:
    """Return seats of which all own ones run."""
    seats = Seats(range(size) if own is None else own, size, min_workers, max_restarts)
    for seat in seats.due(0.0):
        seats.started(seat, 0.0)
    return seats


def end(seats: Seats, number: int, exit_code: int, now_s: float = 1.0) -> State:
    seats.ended(seats.all[number], exit_code, now_s)
    return seats.all[number].state


def test_all_finish() -> None:
    seats = started(2, 2, 0)
    assert [end(seats, 0, 0), end(seats, 1, 0)] == [State.FINISHED] * 2
    assert seats.is_over and seats.have_succeeded() and not seats.is_ending


def test_seats_that_have_not_taken_part_do_not_count_unless_nobody_has() -> None:
    seats = started(3, 2, 0)
    for number, code in enumerate((0, 0, 1)):
        end(seats, number, code)
    assert seats.have_succeeded() and not seats.have_succeeded({1}) and seats.have_succeeded({0, 1, 2})


def test_without_restarts_a_loss_ends_the_run() -> None:
    seats = started(3, 3, 0)
    assert end(seats, 1, -9) is State.LOST
    assert seats.is_ending and not seats.is_over
    end(seats, 0, 1)
    end(seats, 2, 1)
    assert seats.is_over and not seats.have_succeeded() and seats.due(1e9) == []


def test_the_others_go_on_while_enough_are_left() -> None:
    seats = started(3, 2, 0)
    assert end(seats, 1, -9) is State.LOST and not seats.is_ending
    end(seats, 0, 0)
    end(seats, 2, 0)
    assert seats.is_over and seats.have_succeeded()


def test_a_worker_is_started_again_after_a_delay_and_only_so_often() -> None:
    seats = started(3, 1, 2)
    assert end(seats, 1, 1) is State.WAITING
    due_s = seats.next_due_s()
    assert due_s is not None and due_s > 1.0 and seats.due(1.0) == []
    for number in (2, 3):
        [seat] = seats.due(1e3 * number)
        seats.started(seat, 1e3 * number)
        assert seat.life == number and seats.due(1e9) == []
        end(seats, 1, -9, 1e3 * number + 1)
    assert seats.all[1].state is State.LOST and not seats.is_ending
    assert seats.attempt == 0


def test_short_lives_double_the_delay_and_a_long_one_resets_it() -> None:
    seats = started(2, 1, 99)
    delays, now_s = [], 0.0
    for lived_s in (1.0, 1.0, 1.0, 1000.0, 1.0, *[1.0] * 9):
        end(seats, 1, 1, now_s + lived_s)
        delays.append(seats.all[1].due_s - now_s - lived_s)
        now_s = seats.all[1].due_s
        seats.started(seats.all[1], now_s)
    assert delays[:5] == pytest.approx([0.5, 1.0, 2.0, 0.5, 1.0])
    assert delays == pytest.approx([min(delay, 30.0) for delay in delays])
    assert max(delays) == pytest.approx(30.0)


def test_once_a_worker_has_finished_nothing_is_started_again() -> None:
    seats = started(3, 2, 5)
    end(seats, 0, 1)
    assert seats.all[0].state is State.WAITING
    end(seats, 1, 0)
    assert seats.all[0].state is State.LOST
    assert end(seats, 2, 1) is State.LOST
    assert seats.is_over and not seats.have_succeeded()


def test_when_too_few_are_left_all_start_again_together() -> None:
    seats = started(2, 2, 1)
    end(seats, 0, -9)
    assert seats.is_ending and seats.due(1e9) == [] and seats.next_due_s() is None
    end(seats, 1, 1, 7.0)
    assert (seats.attempt, seats.is_ending, seats.is_over) == (1, False, False)
    due_s = seats.next_due_s()
    assert due_s is not None and due_s > 7.0 and len(seats.due(due_s)) == 2
    for seat in seats.due(due_s):
        seats.started(seat, due_s)
    end(seats, 0, -9, 20.0)
    end(seats, 1, 1, 20.0)
    assert seats.is_over and not seats.have_succeeded()


def test_when_nobody_is_left_and_one_has_no_restarts_left_the_run_ends() -> None:
    seats = started(2, 1, 1)
    end(seats, 0, 1)
    [seat] = seats.due(5.0)
    seats.started(seat, 5.0)
    assert end(seats, 0, 1, 6.0) is State.LOST  # twice
    assert end(seats, 1, 1, 7.0) is State.LOST, "nobody could give it the model"
    assert seats.is_over


def test_one_worker_alone_starts_again() -> None:
    seats = started(1, 1, 1)
    end(seats, 0, 1)
    assert seats.attempt == 1 and len(seats.due(10.0)) == 1


def test_a_stopped_launcher_starts_nothing() -> None:
    seats = started(2, 1, 5)
    end(seats, 0, 1)
    seats.stop()
    assert seats.due(1e9) == [] and end(seats, 1, -15) is State.LOST and seats.is_over


def test_seats_of_other_machines_count() -> None:
    seats = started(4, 3, 2, own=range(2, 4))
    assert [seat.number for seat in seats.own] == [2, 3]
    seats.observe(0, State.LOST)
    assert not seats.is_ending
    seats.observe(1, State.WAITING)
    assert seats.is_ending, "two of three are left"
    seats = started(2, 2, 0, own=range(1))
    end(seats, 0, 0)
    seats.observe(1, State.FINISHED)
    assert seats.is_over and seats.have_succeeded()


def test_a_server_has_a_seat_of_its_own_without_which_the_run_ends() -> None:
    seats = Seats(range(3), 3, 1, 1, has_server=True)
    for seat in seats.due(0.0):
        seats.started(seat, 0.0)
    server = seats.seat(3)
    assert seats.server is server and len(seats.all) == 3 and not seats.have_succeeded()
    seats.ended(server, -9, 1.0)
    assert server.state is State.WAITING and not seats.is_ending
    seats.started(server, 2.0)
    seats.ended(server, 1, 3.0)
    assert server.state is State.LOST and seats.is_ending
    for number in range(3):
        end(seats, number, 1)
    assert seats.is_over and not seats.have_succeeded()


def test_a_server_that_is_left_does_not_count_as_a_worker() -> None:
    seats = Seats(range(2), 2, 2, 0, has_server=True)
    for seat in seats.due(0.0):
        seats.started(seat, 0.0)
    end(seats, 0, 0)
    end(seats, 1, 0)
    assert seats.have_succeeded() and not seats.is_over
    seats.ended(seats.seat(2), 0, 1.0)
    assert seats.is_over
