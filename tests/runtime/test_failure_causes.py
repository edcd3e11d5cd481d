"""Ends of runs in which a worker is lost, fails or is asked to end: one cause on all survivors, and rescued states.

Four workers, because with three all are neighbours in gloo's ring.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import tacit
from tacit.errors import TimedOut
from tacit.runtime.backend import ProcessBackend
from tacit.runtime.failures import signals
from tacit.session import checkpoints
from tacit.strategies import Strategy
from tests.runtime.processes import Failed, outcomes, together, unused_port

STEPS = 24
AVERAGING = [tacit.AllReduce(), tacit.LocalSGD(period=tacit.Every(2))]
GOSSIP = [tacit.SwarmSGD(local_steps=2), tacit.PullSwarm(local_steps=2), tacit.AsynchronousDPSGD()]
MESSAGES = [tacit.KAsync(k=1), tacit.KSync(k=4), tacit.SwarmSGD(local_steps=2), tacit.DPSGD(topology=tacit.Ring())]


def attached(
    strategy: Strategy, folder: str | None = None, steps: int = STEPS, timeout_s: float = 30.0
) -> tuple[nn.Module, torch.optim.Optimizer, tacit.Session]:
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return (
        model,
        optimizer,
        tacit.attach(model, optimizer, strategy, steps=steps, rescue_folder=folder, timeout_s=timeout_s),
    )


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(97 * step + tacit.rank()))
    optimizer.zero_grad()
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()


def dying(strategy: Strategy, folder: str, dead: tuple[int, ...], slow: int | None = None) -> str:
    """Ranks ``dead`` are killed before their tenth step; rank ``slow`` takes longer over that step than
    others wait for a cause.
    """
    model, optimizer, session = attached(strategy, folder)
    with session:
        for step in range(STEPS):
            if step == 9 and tacit.rank() in dead:
                os.kill(os.getpid(), signal.SIGKILL)
            if step == 9 and tacit.rank() == slow:
                time.sleep(4)
            learn(model, optimizer, step)
    return "finished"


def resumed(strategy: Strategy, folder: str, steps: int = STEPS) -> int:
    model, optimizer, session = attached(strategy, steps=steps)
    with session:
        begun = session.resume(folder)
        for step in range(begun, steps):
            learn(model, optimizer, step)
    return begun


def names_of(results: list) -> list[str]:
    return [result.name if isinstance(result, Failed) else str(result) for result in results]


@pytest.mark.parametrize(
    ("strategy", "dead", "slow", "expected"),
    [
        (AVERAGING[0], (2,), None, "worker 2 was lost"),
        (AVERAGING[1], (2,), None, "worker 2 was lost"),
        (AVERAGING[1], (0, 1), None, "workers 0 and 1 were lost"),
        (AVERAGING[1], (3,), 1, "worker 3 was lost"),
        (tacit.DPSGD(topology=tacit.Ring()), (0, 1), None, "(worker [01] was|workers 0 and 1 were) lost"),  # as seen
    ],
    ids=str,
)
def test_every_survivor_names_the_killed_ones_and_all_survivors_are_rescued(
    tmp_path: Path, strategy: Strategy, dead: tuple[int, ...], slow: int | None, expected: str
):
    results = outcomes(4, dying, strategy, str(tmp_path), dead, slow)
    survivors = [result for rank, result in enumerate(results) if rank not in dead]
    assert names_of(survivors) == ["PeerLost"] * len(survivors), survivors
    assert all(
        re.search(f"^{expected} at ", survivor.text) and "The state of the remaining workers is in" in survivor.text
        for survivor in survivors
    ), survivors
    kept = checkpoints.read(tmp_path, 0, 4)  # a worker that noticed the first loss has written before its own
    assert len(survivors) <= len(kept) <= len(survivors) + len(dead) - 1
    if slow is None:
        begun = checkpoints.step_of(tmp_path)
        assert together(4, resumed, strategy, str(tmp_path)) == [begun] * 4


def test_eight_workers_name_the_same_one(tmp_path: Path):
    results = outcomes(8, dying, AVERAGING[1], str(tmp_path), (3,))
    survivors = [result for rank, result in enumerate(results) if rank != 3]
    assert names_of(survivors) == ["PeerLost"] * 7
    assert all("worker 3 was lost" in survivor.text for survivor in survivors), survivors
    assert len(checkpoints.read(tmp_path, 0, 8)) == 7


def dying_with_the_store(folder: str, port: int) -> str:
    """Run as without torchrun's agent: rank 0, which is killed, also hosts the store."""
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="False", MASTER_PORT=str(port))
    return dying(AVERAGING[1], folder, (0,))


def test_the_worker_that_held_the_store_is_named_and_the_others_are_rescued(tmp_path: Path):
    survivors = outcomes(4, dying_with_the_store, str(tmp_path), unused_port())[1:]
    assert names_of(survivors) == ["PeerLost"] * 3, survivors
    assert all("worker 0 was lost" in survivor.text for survivor in survivors), survivors
    assert len(checkpoints.read(tmp_path, 0, 4)) == 3


def failing(strategy: Strategy, who: int, steps: int, folder: str) -> str:
    """Rank ``who`` raises in its tenth step, or after the last update, for which the others have left their loops."""
    model, optimizer, session = attached(strategy, folder, steps=steps)
    with session:
        step = 0
        while not session.is_done:
            if step == 9 and tacit.rank() == who:
                raise ZeroDivisionError("a bug in the loop")
            learn(model, optimizer, step)
            step += 1
        if tacit.rank() == who:
            raise ZeroDivisionError("a bug in the loop")
    return "finished"


@pytest.mark.parametrize(
    ("strategy", "who", "steps"),
    [
        (AVERAGING[1], 2, 100_000),
        (tacit.DPSGD(topology=tacit.Ring()), 2, 100_000),
        (GOSSIP[0], 2, 100_000),
        (tacit.KAsync(k=1), 0, 100_000),  # in the server's process
        (tacit.KAsync(k=1), 0, 8),  # the others wait for the last model
    ],
    ids=str,
)
def test_an_error_on_one_of_four_is_reported_with_its_reason_on_all_others(
    tmp_path: Path, strategy: Strategy, who: int, steps: int
):
    results = outcomes(4, failing, strategy, who, steps, str(tmp_path))
    assert names_of(results) == ["ZeroDivisionError" if rank == who else "PeerLost" for rank in range(4)], results
    others = [result.text for rank, result in enumerate(results) if rank != who]
    assert all(f"worker {who} was lost" in text and "ZeroDivisionError: a bug in the loop" in text for text in others)
    if strategy.has_server:
        assert "The server's model is in" in results[who].text
        assert checkpoints.read_server(tmp_path)["model"]["updates"] == checkpoints.step_of(tmp_path)
    else:
        assert all("The state of the remaining workers is in" in text for text in others), others
        assert len(checkpoints.read(tmp_path, 0, 4)) == 3


WAITING = [AVERAGING[1], tacit.DPSGD(topology=tacit.Ring()), tacit.KSync(k=4)]


def stopped(folder: str) -> list[str]:
    """Rank 2 stops before its fifth step and is continued by the first to have ended without it."""
    errors = []
    for number, strategy in enumerate(WAITING):
        model, optimizer, session = attached(strategy, timeout_s=3.0)
        place, step, error = Path(folder) / f"{number}", 0, "finished"
        try:
            with session:
                while not session.is_done:
                    if step == 4 and tacit.rank() == 2:
                        place.write_text(str(os.getpid()))
                        os.kill(os.getpid(), signal.SIGSTOP)
                    learn(model, optimizer, step)
                    step += 1
        except tacit.TacitError as raised:
            error = str(raised)
            os.kill(int(place.read_text()), signal.SIGCONT)  # after the session has ended
        errors.append(error)
    return errors


def test_a_time_out_ends_the_run_while_the_worker_it_names_is_stopped(tmp_path: Path):
    """Also where workers wait for one that waits for the stopped one, or for a server that does."""
    results = outcomes(4, stopped, str(tmp_path), timeout_s=58.0)
    assert not any(isinstance(result, Failed) for result in results), results
    for number, strategy in enumerate(WAITING):
        for rank in (0, 1, 3):
            assert "no answer from worker 2 within timeout_s=3" in results[rank][number], (strategy, rank, results)


# Gossip continues without lost workers.


def gossiping(strategy: Strategy, dead: tuple[int, ...]) -> dict:
    model, optimizer, session = attached(strategy)
    for step in range(STEPS):
        if step == 9 and tacit.rank() in dead:
            os.kill(os.getpid(), signal.SIGKILL)
        learn(model, optimizer, step)
        if step == 19:
            with session.reported_model():
                evaluated = nn.utils.parameters_to_vector(model.parameters()).clone()
            own = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    run = session.close()
    return {
        "status": run.status,
        "end": run.parameters,
        "evaluated": evaluated.detach(),
        "own": own,
        "steps": session.step,
    }


@pytest.mark.parametrize(
    ("strategy", "dead"), [*((one, (2,)) for one in GOSSIP), (GOSSIP[0], (0,)), (GOSSIP[1], (0, 3))], ids=str
)
def test_gossip_reports_the_mean_of_the_living(strategy: Strategy, dead: tuple[int, ...]):
    results = outcomes(4, gossiping, strategy, dead)
    assert all(results[rank].name == "Died" for rank in dead)
    living = [result for rank, result in enumerate(results) if rank not in dead]
    assert not any(isinstance(result, Failed) for result in living), living
    assert {(result["status"], result["steps"]) for result in living} == {("finished", STEPS)}
    for result in living:
        assert torch.equal(result["end"], living[0]["end"])
        assert torch.equal(result["evaluated"], living[0]["evaluated"])
    if not isinstance(strategy, tacit.AsynchronousDPSGD):  # it reports buffers, which neighbours change at any time
        mean = torch.stack([result["own"] for result in living]).mean(0)
        torch.testing.assert_close(living[0]["evaluated"], mean)


# SIGTERM to one of four.


def asked(strategy: Strategy, folder: str, who: int) -> str:
    model, optimizer, session = attached(strategy, folder, steps=100_000)
    with session:
        step = 0
        while not session.is_done:
            if step == 6 and not strategy.has_server:
                with session.reported_model():  # all have begun: before that there is nothing to keep
                    pass
            if step == 12 and tacit.rank() == who:
                os.kill(os.getpid(), signal.SIGTERM)
            learn(model, optimizer, step)
            step += 1
    return "finished"


@pytest.mark.parametrize(
    ("strategy", "who"), [*((one, 2) for one in (*MESSAGES, AVERAGING[1])), (MESSAGES[0], 0), (MESSAGES[1], 0)], ids=str
)
def test_sigterm_to_one_of_four_interrupts_all(tmp_path: Path, strategy: Strategy, who: int):
    results = outcomes(4, asked, strategy, str(tmp_path), who, timeout_s=30.0)
    assert names_of(results) == ["Interrupted"] * 4, results
    for rank, result in enumerate(results):
        assert ("terminated (SIGTERM)" if rank == who else f"worker {who} was asked to end") in result.text
    if strategy.has_server:
        assert "The server's model is in" in results[0].text
        assert checkpoints.read_server(tmp_path)["model"]["updates"] == checkpoints.step_of(tmp_path)
    else:
        assert all("The state of all workers is in" in result.text for result in results)
        assert len(checkpoints.read(tmp_path, 0, 4)) == 4
        begun = checkpoints.step_of(tmp_path)
        assert begun is not None and together(4, resumed, strategy, str(tmp_path), begun + 5) == [begun] * 4


class DifferentCollectives(Strategy[None]):
    """Calls a different collective on rank 0 than on the others."""

    def after_step(self, worker, state):
        if worker.rank == 0:
            worker.network.broadcast(torch.ones(3))
        else:
            worker.network.all_reduce_mean(torch.ones(3))


def asked_in_a_deadlock(after_s: float) -> str:
    signals._OVERDUE_S = 0.5  # type: ignore[misc]
    model, optimizer, session = attached(DifferentCollectives())
    if tacit.rank() == 0:
        threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with session:
        learn(model, optimizer, 0)
    return "finished"


def test_sigterm_ends_workers_that_wait_in_different_collectives():
    first, second = outcomes(2, asked_in_a_deadlock, 2.0)
    assert first.name == "Interrupted" and "terminated (SIGTERM)" in first.text, first
    assert second.name == "Interrupted" and "worker 0 was asked to end" in second.text, second


@pytest.mark.parametrize(("missing", "ends"), [((0, 1, 3), False), ((0, 3), True)])
def test_a_worker_that_hears_nobody_does_not_end_the_run_of_the_others(missing: tuple[int, ...], ends: bool):
    backend = object.__new__(ProcessBackend)
    backend.rank, backend.size, backend._host = 2, 4, SimpleNamespace(is_here=False)
    backend._strategy, backend._participants = (
        tacit.PullSwarm(local_steps=4),
        SimpleNamespace(has_begun=True, joins=False),
    )
    assert backend._ends_run(TimedOut("receive(PullResponse)", missing, 20.0)) is ends
