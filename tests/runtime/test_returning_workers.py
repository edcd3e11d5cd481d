"""Servers and gossip on real processes go on without lost workers, and with those that come back."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import tacit
from tacit.runtime import participants
from tacit.session import checkpoints
from tests.runtime.elastic import Launch
from tests.runtime.launched_workers import is_told, wait_for
from tests.runtime.processes import Failed
from tests.runtime.small_runs import batches, flat, learn, network, sgd

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
WORKERS = 4
FAST_S = 0.002
SERVERS = [
    (tacit.KAsync(k=1), 300),
    (tacit.KSync(k=WORKERS), 80),
    (tacit.KBatchSync(k=3), 80),
    (tacit.KAsync(k=2, shards=2), 160),
]
GOSSIP = [tacit.SwarmSGD(local_steps=2), tacit.PullSwarm(local_steps=2), tacit.AsynchronousDPSGD()]


def train(
    tell: Any,
    strategy: tacit.Strategy,
    steps: int,
    pause_s: float = 0.01,
    every: int = 0,
    server: str = "rank0",
    folder: Path | None = None,
) -> dict[str, Any]:
    """Train until the session is done; tell each second step. A step takes ``pause_s`` until the test says "hurry".

    folder: to write a checkpoint to after two steps, which later lives find and resume, as scripts do.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1))
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    session = tacit.attach(model, optimizer, strategy, steps=steps, timeout_s=40.0, server=server)
    changes: list[tuple[int, ...]] = []
    session.on_regroup(lambda members: changes.append(tuple(members)))
    draw, begun = torch.Generator().manual_seed(tacit.rank()), session.step
    if folder is not None and checkpoints.step_of(folder) is not None:
        assert session.resume(folder) == session.updates
    tell(("attached", session.step, session.updates))
    while not session.is_done:
        x = torch.randn(8, 4, generator=draw)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        pause_s = FAST_S if pause_s > FAST_S and is_told("hurry") else pause_s
        time.sleep(pause_s)
        optimizer.step()
        if session.step % 2 == 0:
            tell(("step", session.step, session.updates))
        if folder is not None and session.step == 2:
            session.checkpoint(folder)
        if every and session.step % every == 0 and not session.is_done:
            with session.reported_model():
                pass
    members = session.gather(tacit.rank())
    run = session.close()
    trained = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return {
        "model": trained,
        "updates": session.updates,
        "begun": begun,
        "step": session.step,
        "status": run.status,
        "members": members,
        "changes": changes,
    }


def check_equal(results: list[Any]) -> None:
    for result in results:
        assert not isinstance(result, Failed), str(result)
        assert torch.equal(result["model"], results[0]["model"])
        assert result.get("members") == results[0].get("members")


@pytest.mark.parametrize(("strategy", "steps"), SERVERS, ids=str)
def test_learners_that_are_killed_come_back_and_end_with_the_servers_model(
    strategy: tacit.Strategy, steps: int, tmp_path: Path
):
    """K-sync with all learners waits for each of them, so it goes on only if their loss and their return are heard."""
    with Launch(WORKERS, train, strategy, steps, 0.15, 0, "rank0", tmp_path) as launch:
        launch.until_heard(range(WORKERS), 3)
        launch.kill(3)
        launch.until_heard([3], 2)  # its next life trains
        _, _, updates = launch.present[3].heard[0]
        assert updates > 0, "it has joined from the server"
        launch.kill(2, 3)
        launch.until_heard([2, 3], 1)
        launch.say("hurry")
        results = launch.end()
        assert [life.number for life in launch.present] == [1, 1, 2, 3]
    check_equal(results)
    assert results[0]["members"] == [*range(WORKERS)]
    assert {result["updates"] for result in results} == {steps}


@pytest.mark.parametrize("strategy", GOSSIP[:2], ids=str)
def test_gossip_peers_that_are_killed_come_back_with_a_trained_model(strategy: tacit.Strategy, tmp_path: Path):
    """Evaluations and the last mean are over the lives that take part; a joiner continues at the others' step."""
    with Launch(WORKERS, train, strategy, 100, 0.09, 20, "rank0", tmp_path) as launch:
        launch.until_heard(range(WORKERS), 3)
        launch.kill(0, 3)
        launch.until_heard([0, 3], 2)
        assert all(launch.present[seat].heard[0][1] > 0 for seat in (0, 3)), "they continue at the others' step"
        launch.say("hurry")
        results = launch.end()
        assert [life.number for life in launch.present] == [2, 1, 1, 2]
    check_equal(results)
    assert {result["step"] for result in results} == {100}


@pytest.mark.parametrize("strategy", GOSSIP, ids=str)
def test_gossip_whose_peers_are_all_killed_begins_anew(strategy: tacit.Strategy):
    """Nobody is left who could give the model to the next lives."""
    with Launch(WORKERS, train, strategy, 60, 0.06) as launch:
        launch.until_heard(range(WORKERS), 3)
        launch.kill(*range(WORKERS))
        launch.say("hurry")
        results = launch.end()
        assert all(life.number <= 3 for life in launch.present), launch.story()
        assert all(life.heard[0] == ("attached", 0, 0) for life in launch.present)
    check_equal(results)
    assert {result["step"] for result in results} == {60}


def test_gossip_begins_anew_when_the_last_peer_with_a_model_is_killed_while_others_join():
    """It is stopped, so the others wait for its answer when it is killed."""
    with Launch(WORKERS, train, tacit.SwarmSGD(local_steps=2), 60, 0.06) as launch:
        launch.until_heard(range(WORKERS), 3)
        launch.present[0].kill(signal.SIGSTOP)
        beats = [launch.beats(seat) for seat in range(1, WORKERS)]
        launch.kill(1, 2, 3)
        launch.until(lambda: all(launch.beats(seat) > beats[seat - 1] for seat in range(1, WORKERS)), "joiners")
        launch.kill(0)
        launch.say("hurry")
        results = launch.end()
        assert all(life.heard[0] == ("attached", 0, 0) for life in launch.present)
    check_equal(results)
    assert {result["step"] for result in results} == {60}


def test_gossip_that_admits_nobody_goes_on_and_refuses_the_next_life():
    with Launch(WORKERS, train, tacit.AsynchronousDPSGD(), 60, 0.025, restarts=1) as launch:
        launch.until_heard(range(WORKERS), 3)
        launch.kill(3)
        *results, refused = launch.end()
    check_equal(results)
    assert isinstance(refused, Failed) and "admits no worker during a run; the others continue" in refused.text


def test_without_the_worker_that_hosts_the_server_all_hear_of_it_and_begin_anew():
    strategy = tacit.KAsync(k=1)
    with Launch(WORKERS, train, strategy, 60, 0.02) as launch:
        launch.until_heard(range(WORKERS), 3)
        first, killed_s = launch.present, time.monotonic()
        launch.kill(0)
        launch.until(lambda: all(life.ended_s is not None for life in first), "the end of the first lives")
        for life in first[1:]:
            assert life.result.name == "PeerLost", life.result.text
            assert re.search("the server (was|and worker 0 were) lost", life.result.text), life.result.text
            assert life.ended_s - killed_s < 20.0  # it takes 0.3 s where the machine is idle
        results = launch.end()
        assert [life.number for life in launch.present] == [2] * WORKERS
    check_equal(results)
    assert {result["updates"] for result in results} == {60}


@pytest.mark.parametrize(
    ("strategy", "steps", "server"),
    [(tacit.KAsync(k=1), 160, "rank0"), (tacit.KAsync(k=1), 160, "process"), (GOSSIP[0], 60, "rank0")],
    ids=["rank0", "process", "gossip"],
)
def test_a_worker_that_was_stopped_for_a_while_holds_up_nobody_and_goes_on(
    strategy: tacit.Strategy, steps: int, server: str, tmp_path: Path
):
    place = tmp_path if server == "process" else None
    with Launch(WORKERS, train, strategy, steps, 0.025, 0, server, server=place) as launch:
        launch.until_heard(range(WORKERS), 3)
        stopped = launch.present[2]
        stopped.kill(signal.SIGSTOP)
        launch.watch()
        counts = [len(life.heard) for life in launch.present]
        launch.until_heard([0, 1, 3], max(counts) + 4)
        assert len(stopped.heard) <= counts[2] + 1
        stopped.kill(signal.SIGCONT)
        results = launch.end()
        assert [life.number for life in launch.present[:WORKERS]] == [1] * WORKERS
    check_equal(results)


@pytest.mark.parametrize(
    ("strategy", "steps"),
    [(tacit.KSync(k=WORKERS), 80), (tacit.KBatchAsync(k=1, compressor=tacit.TopK(fraction=0.5)), 320)],
    ids=str,
)
def test_a_killed_server_comes_back_from_its_checkpoint_and_learners_join_it(
    strategy: tacit.Strategy, steps: int, tmp_path: Path
):
    """It is killed a second time together with worker 0 and another learner."""
    with Launch(WORKERS, train, strategy, steps, 0.075, 0, "process", server=tmp_path) as launch:
        launch.until_heard(range(WORKERS), 6)
        launch.kill(WORKERS)
        launch.until_heard(range(WORKERS), 10)
        launch.kill(WORKERS, 0, 2)
        launch.until_heard([0, 2], 2)
        launch.say("hurry")
        results = launch.end()
        assert [life.number for life in launch.present] == [2, 1, 2, 1, 3]
    check_equal(results)
    assert {result["updates"] for result in results} == {steps}


def train_until_an_error(tell: Any, how: str) -> dict[str, Any]:
    """Train; in the first life of worker 2 its step 10 raises an error, has a gradient of NaN, or gets SIGTERM."""
    model = network()
    optimizer = sgd(model, 0.01)
    fails = tacit.rank() == 2 and os.environ["TACIT_LIFE"] == "1"
    try:
        with tacit.attach(model, optimizer, tacit.KAsync(k=1), steps=200, timeout_s=40.0, server="process") as session:
            while not session.is_done:
                [x] = batches(tacit.rank(), 1)
                if session.step == 9 and fails and how == "raises":
                    raise ZeroDivisionError("a bug in the loop")
                if session.step == 9 and fails and how == "terminated":
                    os.kill(os.getpid(), signal.SIGTERM)
                if session.step == 9 and fails and how == "not finite":
                    x = x * torch.nan
                learn(model, optimizer, [x], session)
                time.sleep(FAST_S)
    except (tacit.TacitError, tacit.errors.Interrupted) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"model": flat(model)}


@pytest.mark.parametrize("how", ["raises", "not finite", "terminated"])
def test_what_a_failing_learner_of_a_server_apart_does_to_the_others(how: str, tmp_path: Path):
    """An error of its own ends this learner alone."""
    with Launch(WORKERS, train_until_an_error, how, restarts=int(how == "raises"), server=tmp_path) as launch:
        results = launch.end()
        first = [lives[0].result for lives in launch.lives[:WORKERS]]
    if how == "raises":
        assert first[2].name == "ZeroDivisionError", str(first[2])
        check_equal(results)
        assert [len(lives) for lives in launch.lives] == [1, 1, 2, 1, 1]
    else:
        own, told = {
            "not finite": ("NotFinite", "NotFinite: the gradient"),
            "terminated": ("Interrupted: terminated", "worker 2 was asked to end"),
        }[how]
        assert first[2]["error"].startswith(own), first
        assert all(told in first[rank]["error"] for rank in (0, 1, 3)), first


def train_with_held_server(tell: Any, strategy: tacit.Strategy) -> dict[str, Any]:
    """Train; the second life of the server begins when the test says so."""
    if "TACIT_SERVE" in os.environ and os.environ["TACIT_LIFE"] == "2":
        wait_for("serve")
    return train(tell, strategy, 80, 0.075, 0, "process")


def test_a_server_that_comes_back_waits_for_no_learner_that_has_yet_to_join_it(tmp_path: Path):
    """Others give the joiner what it needs in their next step, and in K-sync a step needs the server."""
    with Launch(WORKERS, train_with_held_server, tacit.KSync(k=WORKERS), server=tmp_path) as launch:
        launch.until_heard(range(WORKERS), 3)
        launch.kill(WORKERS, 0)
        before = launch.beats(0)
        launch.until(lambda: launch.beats(0) > before, "worker 0 waits to join")
        launch.say("serve")
        launch.until_heard([0], 2)
        launch.say("hurry")
        results = launch.end()
        assert [life.number for life in launch.present] == [2, 1, 1, 1, 2]
    check_equal(results)


def train_with_short_patience(tell: Any, strategy: tacit.Strategy, server: str = "rank0") -> dict[str, Any]:
    participants._SILENT_S = 2.0
    return train(tell, strategy, 120, 0.075, 0, server)


def test_the_stopped_worker_that_hosts_the_server_is_named_by_all_others():
    """They begin anew with it once it goes on."""
    with Launch(WORKERS, train_with_short_patience, tacit.KAsync(k=1)) as launch:
        launch.until_heard(range(WORKERS), 3)
        first = launch.present
        first[0].kill(signal.SIGSTOP)
        launch.until(lambda: all(life.ended_s is not None for life in first[1:]), "the end of the other first lives")
        first[0].kill(signal.SIGCONT)
        for life in first[1:]:
            assert life.result.name == "PeerLost", life.result.text
            assert re.search("the server and worker 0 were lost .* its process is stopped", life.result.text)
        launch.say("hurry")
        results = launch.end()
        assert [life.number for life in launch.present] == [2] * WORKERS
    check_equal(results)


@pytest.mark.parametrize(
    ("strategy", "server"),
    [(tacit.KSync(k=WORKERS), "rank0"), (tacit.KSync(k=WORKERS), "process"), *((one, "rank0") for one in GOSSIP[1:])],
    ids=str,
)
def test_a_worker_that_stays_stopped_is_left_out(strategy: tacit.Strategy, server: str, tmp_path: Path):
    """All wait for it. When it goes on, a learner hears that the server has dropped it, and a peer is heard again."""
    place = tmp_path if server == "process" else None
    with Launch(WORKERS, train_with_short_patience, strategy, server, server=place) as launch:
        launch.until_heard(range(WORKERS), 3)
        stopped = launch.present[2]
        stopped.kill(signal.SIGSTOP)
        launch.watch()
        launch.until_heard([0, 1, 3], max(len(life.heard) for life in launch.present) + 4)
        stopped.kill(signal.SIGCONT)
        if strategy.has_server:
            launch.until(lambda: launch.present[2].number == 2 and launch.present[2].heard, "its next life")
            assert stopped.result.name == "PeerLost", stopped.result.text
        launch.say("hurry")
        results = launch.end()
        assert [life.number for life in launch.present[:WORKERS]] == [1, 1, 1 + strategy.has_server, 1]
    check_equal(results)
