"""Workers that are killed, raise, hang or are asked to end: what the others do, and what is kept."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch

import tacit
from tacit.session import checkpoints
from tests.runtime.processes import Failed, outcomes, together
from tests.runtime.small_runs import batches, flat, learn, network, sgd


def dying_run(folder: str, how: str, timeout_s: float = 30.0) -> None:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(
        model, optimizer, tacit.LocalSGD(period=tacit.Every(2)), rescue_folder=folder or None, timeout_s=timeout_s
    ) as session:
        for number, x in enumerate(batches(tacit.rank(), 9)):
            if number == 5 and tacit.rank() == 1:
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "raises":
                    raise ZeroDivisionError("a bug in the loop")
                if how == "hangs":
                    time.sleep(2 * timeout_s)
            learn(model, optimizer, [x], session)


def test_a_killed_worker_ends_the_run_with_its_name_and_a_checkpoint_of_the_others(tmp_path):
    first, second, third = outcomes(3, dying_run, str(tmp_path), "killed")
    assert second.name == "Died"
    for survivor in (first, third):
        assert (
            survivor.name == "PeerLost"
            and "worker 1 was lost" in survivor.text
            and "exited without reporting an error" in survivor.text
        )
        assert "The state of the remaining workers is in" in survivor.text
    assert checkpoints.step_of(tmp_path) == 6
    assert len(checkpoints.read(tmp_path, 0, 3)) == 2
    assert not any(isinstance(r, Failed) for r in outcomes(3, rescued_run, str(tmp_path)))


def rescued_run(folder: str) -> torch.Tensor:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2))) as session:
        assert session.resume(folder) == 6
        begun = flat(model)
        learn(model, optimizer, batches(tacit.rank(), 3, first=6), session)
    return begun


def ending_run(folder: str, asked: tuple[int, ...]) -> None:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2)), rescue_folder=folder) as session:
        for number, x in enumerate(batches(tacit.rank(), 9)):
            if number == 4 and tacit.rank() in asked:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)  # by a scheduler and by torchrun
            if number == 4 and tacit.rank() == 0:
                time.sleep(0.3)  # the others wait in the round meanwhile
            learn(model, optimizer, [x], session)


def rescued_and_straight(folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    return rescued_run(folder), six_steps()


def six_steps() -> torch.Tensor:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2))) as session:
        learn(model, optimizer, batches(tacit.rank(), 6), session)
    return flat(model)


@pytest.mark.parametrize("asked", [(0,), (2,), (0, 1, 2)], ids=str)
def test_a_run_that_is_asked_to_end_leaves_a_checkpoint_and_goes_on_from_the_round_it_ended_in(tmp_path, asked):
    ended = outcomes(3, ending_run, str(tmp_path), asked)
    assert [one.name for one in ended] == ["Interrupted"] * 3
    assert all("The state of all workers is in" in one.text for one in ended)
    assert checkpoints.step_of(tmp_path) == 6
    assert len(checkpoints.read(tmp_path, 0, 3)) == 3
    for begun, played in together(3, rescued_and_straight, str(tmp_path)):
        torch.testing.assert_close(begun, played)


def test_an_error_on_one_rank_is_told_on_the_others(tmp_path):
    first, second, third = outcomes(3, dying_run, "", "raises")
    assert second.name == "ZeroDivisionError"
    assert first.name == third.name == "PeerLost" and "ZeroDivisionError: a bug in the loop" in first.text


def test_a_worker_that_does_not_come_is_named_at_the_time_out(tmp_path):
    first, _second, third = outcomes(3, dying_run, "", "hangs", 4.0)
    assert first.name == third.name == "TimedOut"
    assert "no answer from worker 1 within timeout_s=4" in first.text


def threads_left() -> list[str]:
    model = network()
    optimizer = sgd(model)
    before = {t.name for t in threading.enumerate()}
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2))):
        learn(model, optimizer, batches(tacit.rank(), 3))
    return sorted({t.name for t in threading.enumerate()} - before)


def test_no_thread_is_left():
    assert together(2, threads_left) == [[], []]
