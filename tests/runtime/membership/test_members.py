"""Collectives on real processes whose members die, come back, stop and resume: survivors go on with equal models."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import tacit
from tacit.runtime import backend
from tacit.session import checkpoints
from tests.runtime.launched_workers import Launched, is_told, tell, wait_for
from tests.runtime.processes import Failed
from tests.runtime.small_runs import batches, flat, learn, network, sgd

pytestmark = [pytest.mark.processes, pytest.mark.slow]

KILLED_AT = 9
"""The step before which some workers wait for the test, in the middle of a period."""


def surviving_run(strategy: tacit.Strategy, steps: int, held: tuple[int, ...]) -> tuple[torch.Tensor, list[Any], int]:
    """Train; ``held`` are killed while they compute step ``KILLED_AT``. Return model, changes of members, and steps."""
    model, changes = network(), []
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, strategy, steps=steps) as session:
        session.on_regroup(lambda members: changes.append((session.step, tuple(members))))
        for number, x in enumerate(batches(tacit.rank(), steps)):
            if number == KILLED_AT and tacit.rank() in held:
                tell(f"held/{tacit.rank()}")
                time.sleep(60)
            learn(model, optimizer, [x], session)
        assert session.gather(tacit.rank()) == list(session.members)
    return flat(model), changes, session.step


@pytest.mark.parametrize(
    ("strategy", "killed", "seats"),
    [
        (tacit.AllReduce(), (0,), 4),
        (tacit.LocalSGD(period=tacit.VariancePeriod()), (0, 1), 4),
        (tacit.LocalSGD(period=tacit.Every(4), overlap_steps=2, outer=tacit.OuterSGD()), (2,), 6),
        (tacit.DPSGD(), (3,), 5),
        (tacit.SGP(), (0, 2), 4),
        (tacit.CHOCO(), (1,), 4),
    ],
    ids=["rank 0", "two at once", "an overlapped round", "D-PSGD", "SGP, two at once", "CHOCO"],
)
def test_survivors_go_on_without_killed_workers_and_end_with_equal_models(strategy, killed, seats):
    with Launched(seats, 1, surviving_run, strategy, 20, killed) as run:
        for seat in killed:
            run.reached(f"held/{seat}")
        run.kill(*killed)
        results = run.results()
    ended = [results[seat] for seat in range(seats) if seat not in killed]
    alive = tuple(seat for seat in range(seats) if seat not in killed)
    assert not any(isinstance(one, Failed) for one in ended), ended
    for model, changes, steps in ended:
        assert steps == 20
        assert [members for _, members in changes] == [alive]
        assert torch.equal(model, ended[0][0])


def returning_run(strategy: tacit.Strategy, absent: int, folder: str) -> tuple[torch.Tensor, int, int, list[Any]]:
    """Train until the test says "end"; return model, first and last step, and changes of members.

    ``absent`` waits at step ``KILLED_AT`` of its first life until it is killed, or stopped and told to go on. As
    scripts do that are started again, its next life resumes the checkpoint that is in ``folder`` then.
    """
    model, changes = network(), []
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, strategy) as session:
        first = session.resume(folder) if checkpoints.step_of(Path(folder)) is not None else 0
        is_over = 0.0
        session.on_regroup(lambda members: changes.append((session.step, tuple(members))))
        data = batches(tacit.rank(), 5000)
        while not is_over:
            if session.step == KILLED_AT and tacit.rank() == absent and not first:
                tell("held")
                wait_for("go on")
            learn(model, optimizer, [data[session.step]], session)
            if session.step == 3:
                session.checkpoint(folder)
            if session.step % 4 == 0:  # an exchange between two steps, which a joiner must not miss
                is_over = session.mean(float(is_told("end")))
    return flat(model), first, session.step, changes


@pytest.mark.parametrize(
    "strategy",
    [
        tacit.LocalSGD(period=tacit.Every(3), outer=tacit.SlowMo()),
        tacit.LocalSGD(period=tacit.Every(8), fragments=2, overlap_steps=5),
        tacit.DPSGD(),
        tacit.SGP(),
        tacit.CHOCO(),
    ],
    ids=["outer step", "overlapped rounds", "D-PSGD", "SGP", "CHOCO"],
)
def test_a_killed_worker_that_is_started_again_continues_at_the_members_step(strategy, tmp_path):
    with Launched(4, 1, returning_run, strategy, 0, str(tmp_path)) as run:
        run.reached("held")
        run.kill(0)
        run.processes[0].join()
        run.start(0)
        run.until(lambda: run.members() == [0, 1, 2, 3] and run.generation() > 1)
        run.store.set("end", "1")
        ended = run.results()
    assert not any(isinstance(one, Failed) for one in ended), ended
    (_, first, last, _), *others = ended
    for model, _, steps, changes in others:
        assert [members for _, members in changes] == [(1, 2, 3), (0, 1, 2, 3)]
        assert changes[1][0] == first > KILLED_AT
        assert steps == last
        assert torch.equal(model, ended[0][0])


@pytest.mark.parametrize("strategy", [tacit.AllReduce(), tacit.DPSGD()], ids=["all-reduce", "D-PSGD"])
def test_a_stopped_worker_is_left_out_and_joins_again_when_it_resumes(strategy, tmp_path):
    with Launched(4, 1, returning_run, strategy, 3, str(tmp_path)) as run:
        run.reached("held")
        run.stop(3)
        run.store.set("go on", "1")
        run.until(lambda: run.members() == [0, 1, 2])
        run.resume(3)
        run.until(lambda: run.members() == [0, 1, 2, 3])
        run.store.set("end", "1")
        ended = run.results()
    assert not any(isinstance(one, Failed) for one in ended), ended
    models = [model for model, _, _, _ in ended]
    assert all(torch.equal(model, models[0]) for model in models)
    assert [members for _, members in ended[0][3]] == [(0, 1, 2), (0, 1, 2, 3)]
    assert len({steps for _, _, steps, _ in ended}) == 1


def rescued_run(folder: str) -> None:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2)), rescue_folder=folder) as session:
        for number, x in enumerate(batches(tacit.rank(), 20)):
            if number == KILLED_AT and tacit.rank() in (0, 3):
                tell(f"held/{tacit.rank()}")
                time.sleep(60)
            learn(model, optimizer, [x], session)


def test_fewer_workers_than_the_run_needs_end_it_with_names_and_a_checkpoint(tmp_path):
    with Launched(4, 3, rescued_run, str(tmp_path)) as run:
        run.reached("held/0")
        run.reached("held/3")
        run.give_up(0)
        run.give_up(3)
        run.kill(0, 3)
        _, first, second, _ = run.results()
    for survivor in (first, second):
        assert survivor.name == "PeerLost" and "workers 0 and 3 were lost" in survivor.text, survivor
        assert "The state of the remaining workers is in" in survivor.text
    assert checkpoints.step_of(tmp_path) == 10
    assert len(checkpoints.read(tmp_path, 1, 4)) == 2


def ending_run(strategy: tacit.Strategy, how: str) -> None:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, strategy) as session:
        for number, x in enumerate(batches(tacit.rank(), 20)):
            if number == KILLED_AT and tacit.rank() == 0:
                if how == "raises":
                    raise ZeroDivisionError("a bug in the loop")
                if how == "terminated":
                    os.kill(os.getpid(), signal.SIGTERM)
                if how == "not finite":
                    x = x * torch.nan
            learn(model, optimizer, [x], session)


@pytest.mark.parametrize(
    ("how", "own", "told"),
    [
        ("raises", "ZeroDivisionError", "ZeroDivisionError: a bug in the loop"),
        ("terminated", "Interrupted", "worker 0 was asked to end"),
        ("not finite", "NotFinite", "NotFinite"),
    ],
)
@pytest.mark.parametrize(
    "strategy", [tacit.LocalSGD(period=tacit.Every(2)), tacit.DPSGD()], ids=["local SGD", "D-PSGD"]
)
def test_what_ends_a_run_still_ends_it_on_all_workers(strategy, how, own, told):
    with Launched(4, 1, ending_run, strategy, how) as run:
        ended = run.results()
    assert ended[0].name == own, ended[0]
    assert all(told in one.text for one in ended[1:]), ended


def ended_runs(strategies: list[tacit.Strategy], hows: list[str], folder: str) -> list[tuple[str, str]]:
    """Train in one session after the other; return the type and text of the error that ends each."""
    errors = []
    for how in hows:
        for strategy in strategies:
            model = network()
            optimizer = sgd(model, 0.01)
            try:
                with tacit.attach(model, optimizer, strategy, steps=100_000, rescue_folder=folder) as session:
                    while not session.is_done:
                        [x] = batches(tacit.rank(), 1)
                        if session.step == KILLED_AT and tacit.rank() == 0:
                            if how == "raises":
                                raise ZeroDivisionError("a bug in the loop")
                            if how == "terminated":
                                os.kill(os.getpid(), signal.SIGTERM)
                            x = x * torch.nan if how == "not finite" else x
                        learn(model, optimizer, [x], session)
            except (tacit.TacitError, tacit.errors.Interrupted, ZeroDivisionError) as error:
                errors.append((type(error).__name__, "\n".join([str(error), *getattr(error, "__notes__", ())])))
    return errors


def test_what_ends_a_run_with_messages_still_ends_it_on_all_workers(tmp_path):
    """Worker 0 hosts the server; a learner's error alone does not end a run: see ``test_returning_workers``."""
    strategies, hows = [tacit.KAsync(k=1), tacit.SwarmSGD()], ["raises", "not finite", "terminated"]
    with Launched(4, 1, ended_runs, strategies, hows, str(tmp_path)) as run:
        own, *others = run.results()
    assert [name for name, _ in own] == ["ZeroDivisionError"] * 2 + ["NotFinite"] * 2 + ["Interrupted"] * 2, own
    assert "The server's model is in" in own[0][1] and "The server's model is in" in own[4][1], own
    told = ["ZeroDivisionError: a bug in the loop"] * 2 + ["NotFinite"] * 2 + ["worker 0 was asked to end"] * 2
    for errors in others:
        assert all(what in text for what, (_, text) in zip(told, errors, strict=True)), errors
        assert "The state of the remaining workers is in" in errors[1][1], errors
        assert "The state of all workers is in" in errors[5][1], errors


def attaching_run(held: int, strategy: tacit.Strategy) -> str:
    """Train; the first life of ``held`` is killed in ``attach``, after all have said that they are there."""
    if tacit.rank() == held and os.environ["TACIT_LIFE"] == "1":
        backend.agree = lambda *_: (tell("held"), time.sleep(60))
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, strategy, steps=3) as session:
        while not session.is_done:
            learn(model, optimizer, batches(tacit.rank(), 1), session)
    return session.run.status


@pytest.mark.parametrize("strategy", [tacit.AllReduce(), tacit.SwarmSGD(), tacit.KAsync(k=1)], ids=str)
def test_a_death_in_attach_is_named_at_once_and_the_next_lives_begin_anew(strategy):
    with Launched(3, 1, attaching_run, 2, strategy) as run:
        run.reached("held")
        run.kill(2)
        first, second, _ = run.results()
        for seat in range(3):
            run.processes[seat].join()
            run.start(seat)
        ended = run.results()
    assert first.name == second.name == "PeerLost" and "worker 2 was lost" in first.text + second.text, (first, second)
    assert ended == ["finished"] * 3


def keeping_run(folder: str, strategy: tacit.Strategy) -> tuple[list[Any], float]:
    """Train and write checkpoints; rank 0 is killed while it publishes the first."""
    if tacit.rank() == 0:
        checkpoints.publish = lambda *_, **__: (tell("held"), time.sleep(60))
    model, written = network(), []
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, strategy, steps=12) as session:
        for number, x in enumerate(batches(tacit.rank(), 12)):
            learn(model, optimizer, [x], session)
            if number in (5, 7):
                written.append(session.checkpoint(folder) is not None)
        return written, session.mean(float(tacit.rank()))


@pytest.mark.parametrize("strategy", [tacit.LocalSGD(period=tacit.Every(2)), tacit.SwarmSGD()], ids=str)
def test_a_death_that_spoils_a_checkpoint_spoils_no_more(tmp_path, strategy):
    with Launched(4, 1, keeping_run, str(tmp_path), strategy) as run:
        run.reached("held")
        run.kill(0)
        ended = run.results()[1:]
    assert ended == [([False, True], 2.0)] * 3
    assert checkpoints.step_of(tmp_path) == 8
    assert len(checkpoints.read(tmp_path, 1, 4)) == 3
