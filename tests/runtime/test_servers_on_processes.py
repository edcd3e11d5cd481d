"""Server strategies on real processes: server in a worker, in shards or in its own process; ends and checkpoints."""

from __future__ import annotations

import os
import re
import signal
import time
import warnings
from pathlib import Path

import pytest
import torch

import tacit
from tacit import workloads
from tacit.runtime.train import train
from tacit.session import checkpoints
from tests.runtime.launched_workers import note_step, pass_steps_of_others
from tests.runtime.processes import Failed, outcomes, together

DIGITS = workloads.digits(model="softmax")
KINDS = [tacit.KSync(k=3), tacit.KBatchSync(k=3), tacit.KAsync(k=2), tacit.KBatchAsync(k=2)]


def train_digits(strategy: tacit.Strategy, **rest) -> tuple[torch.Tensor, dict, list]:
    run = train(DIGITS, strategy, steps=120, lr=0.2, **rest)
    return run.parameters, run.summary(), run.history


def play(strategy: tacit.Strategy, steps: int | None, batches: list[int], pause_s: float = 0.0, **rest) -> dict:
    """An ordinary script: least squares, so many batches on each rank."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    folder = rest.pop("checkpoint", None)
    resumed = rest.pop("resume", None)
    victims = rest.pop("victims", ())
    slow, quiet_s = rest.pop("slow", None), rest.pop("quiet_s", 1.0)
    exchanges = rest.pop("exchanges", False)
    session = tacit.attach(model, optimizer, strategy, steps=steps, timeout_s=20.0, **rest)
    begun = 0 if resumed is None else session.resume(resumed)
    draw, taken, looked = torch.Generator().manual_seed(tacit.rank()), 0, None
    for batch in range(batches[tacit.rank()]):
        if session.is_done:
            break
        if batch == (4 if folder is None else 8) and tacit.rank() in victims:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(8, 4, generator=draw)
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        if slow is None:
            time.sleep(pause_s)
        elif tacit.rank() == slow:
            pass_steps_of_others(12, quiet_s)
        else:
            note_step()
        optimizer.step()
        taken += 1
        if batch == 5:
            with session.reported_model():
                looked = model.weight.detach().clone()
            if folder is not None:
                session.checkpoint(folder)
    gathered = session.gather(tacit.rank()) if exchanges else []
    mean = session.mean(float(tacit.rank())) if exchanges else None
    run = session.close()
    weights = model.weight.detach().flatten()
    return {
        "begun": begun,
        "taken": taken,
        "updates": session.updates,
        "looked": looked,
        "gathered": gathered,
        "mean": mean,
        "model": weights,
        "run": run.summary(),
    }


@pytest.mark.parametrize("strategy", [*KINDS, tacit.AdaSync(tacit.KAsync(k=1), every=10)], ids=str)
def test_each_kind_trains_digits_to_the_simulated_accuracy(strategy: tacit.Strategy):
    simulated = tacit.simulate(DIGITS, strategy, cluster=tacit.Cluster(workers=4), steps=120, lr=0.2).summary()
    _, real, history = together(4, train_digits, strategy)[0]
    assert real["status"] == "finished" and real["steps"] == 120
    assert real["loss"] == pytest.approx(simulated["loss"], rel=0.2)  # measured: 6 % under load
    assert real["metric"] == pytest.approx(simulated["metric"], abs=0.03)
    assert len(history) > 50 and [row["step"] for row in history] == sorted({row["step"] for row in history})
    assert (real["staleness"] == 0) == getattr(strategy, "cancels", False)


def test_waiting_for_all_is_the_same_in_both_worlds():
    """Nothing is left to chance then: the models agree to rounding, and so do the bytes of every push and model."""
    simulated = tacit.simulate(DIGITS, tacit.KSync(k=3), cluster=tacit.Cluster(workers=3), steps=120, lr=0.2)
    results = together(3, train_digits, tacit.KSync(k=3))
    for parameters, _, _ in results:
        torch.testing.assert_close(parameters, simulated.parameters, rtol=0, atol=2e-5)
    leaving = 3 * len(tacit.strategies.servers.messages.ServerLeave().pack())
    assert results[0][1]["bytes_sent"] - leaving == simulated.summary()["bytes_sent"]


def play_each(steps: int | None) -> list[dict]:
    return [play(strategy, steps, [20, 60, 40]) for strategy in KINDS]


@pytest.mark.parametrize("steps", [None, 30])
def test_ranks_with_fewer_batches_leave_and_no_rank_hangs(steps: int | None):
    for strategy, results in zip(KINDS, zip(*together(3, play_each, steps), strict=True), strict=True):
        assert all(torch.equal(result["model"], results[0]["model"]) for result in results), strategy
        assert results[0]["taken"] <= 20, strategy
        made = results[0]["run"]["steps"]
        assert made > 0 and (steps is None or made <= steps), strategy
        if not strategy.cancels and steps is None:  # every gradient is used once, the last few together
            pushed = sum(result["taken"] for result in results)
            assert made == pytest.approx(pushed / strategy.k, abs=pushed / strategy.k * 0.6), strategy
            assert pushed == 120, strategy


def test_looking_at_the_reported_model_changes_nothing_and_waits_for_no_rank():
    results = together(3, play, tacit.KSync(k=3), 25, [25, 25, 25])
    without = together(3, play, tacit.KSync(k=3), 25, [25, 25, 25])
    torch.testing.assert_close(results[0]["model"], without[0]["model"], rtol=0, atol=0)
    assert results[0]["looked"] is not None and not torch.equal(results[0]["looked"].flatten(), results[0]["model"])


def test_a_run_goes_on_from_the_servers_checkpoint_with_another_number_of_workers(tmp_path: Path):
    together(3, play_and_keep, str(tmp_path))
    [kept] = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert sorted(path.name for path in kept.iterdir()) == ["server.pt"]
    results = together(2, go_on, str(tmp_path))
    assert results[0]["begun"] == results[1]["begun"] > 0
    assert results[0]["updates"] == 60 and results[0]["run"]["steps"] == 60
    pushed = sum(result["taken"] for result in results)
    assert pushed <= 2 * (60 - results[0]["begun"]) + 6  # not from the beginning: two gradients make an update
    torch.testing.assert_close(results[0]["model"], torch.ones(4), rtol=0, atol=0.05)


def play_and_keep(folder: str) -> dict:
    return play(tacit.KBatchAsync(k=2), 40, [200, 200, 200], checkpoint=folder)


def go_on(folder: str) -> dict:
    return play(tacit.KBatchAsync(k=2), 60, [200, 200], resume=folder)


def test_shards_in_several_workers_agree_with_one_server():
    whole, parts = (
        tacit.simulate(DIGITS, tacit.KSync(k=3, shards=shards), cluster=tacit.Cluster(workers=3), steps=120, lr=0.2)
        for shards in (1, 2)
    )
    torch.testing.assert_close(whole.parameters, parts.parameters, rtol=0, atol=1e-6)
    for parameters, _, _ in together(3, train_digits, tacit.KSync(k=3, shards=2)):
        torch.testing.assert_close(parameters, whole.parameters, rtol=0, atol=2e-5)


def with_a_server_process(strategy: tacit.Strategy, steps: int) -> object:
    """The last of the processes is the server; it runs the very same script."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
    os.environ["WORLD_SIZE"] = str(size)
    if rank < size:
        return play(strategy, steps, [300] * size, server="process")
    os.environ.update(TACIT_SERVE="1", RANK="0")
    with pytest.raises(SystemExit):
        play(strategy, steps, [300] * size, server="process")
    return "served"


@pytest.mark.parametrize("strategy", [tacit.KBatchSync(k=2), tacit.KAsync(k=2)], ids=str)
def test_the_server_may_be_a_process_of_its_own(strategy: tacit.Strategy):
    *workers, server = together(4, with_a_server_process, strategy, 30)
    assert server == "served"
    assert {result["updates"] for result in workers} == {30}
    assert workers[0]["run"]["steps"] == 30  # the server's part of the trace came with its model
    for result in workers:
        assert torch.equal(result["model"], workers[0]["model"])


def killed(strategy: tacit.Strategy, victims: list[int], server: str, checkpoint: str | None = None) -> dict | str:
    """Run ``play`` with ``victims`` killed in the middle; the server is in rank 0, or the last process."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - (server == "process")
    os.environ["WORLD_SIZE"] = str(size)
    is_server = rank == size
    if is_server:
        os.environ.update(TACIT_SERVE="1", RANK="0")
    try:
        victims = [] if is_server else victims
        rest = {"victims": victims, "server": server, "exchanges": True, "checkpoint": checkpoint}
        return play(strategy, 40 if checkpoint is None else 400, [400] * size, pause_s=0.01, **rest)
    except SystemExit:
        return "served"


LOSSES = [
    (strategy, 4, victims, server)
    for server in ("rank0", "process")
    for strategy, victims in (
        (tacit.KSync(k=4), [3]),
        (tacit.KSync(k=2), [2, 3]),
        (tacit.KAsync(k=1), [2, 3]),
        (tacit.KBatchAsync(k=3), [3]),
    )
] + [(tacit.Ringleader(), 3, [2], "rank0")]


@pytest.mark.parametrize(("strategy", "workers", "victims", "server"), LOSSES, ids=lambda value: str(value))
def test_killed_learners_do_not_hold_up_others(strategy: tacit.Strategy, workers: int, victims: list[int], server: str):
    """The server is notified, waits for the learners that are left, and the run finishes with the model of all its
    updates. Exchanges of values are among those that are left.
    """
    results = outcomes(workers + (server == "process"), killed, strategy, victims, server)
    if server == "process":
        assert results.pop() == "served"
    for _ in victims:
        assert results.pop().name == "Died"
    for result in results:
        assert not isinstance(result, Failed), str(result)
        assert result["updates"] == 40 and torch.equal(result["model"], results[0]["model"])
        assert result["gathered"] == [*range(len(results))] and result["mean"] == (len(results) - 1) / 2
    assert results[0]["run"]["steps"] == 40


def test_a_run_that_lost_a_learner_cannot_be_replayed():
    run = together(3, one_closes_early, tacit.KSync(k=3))[0]
    assert run.status == "finished" and run.summary()["steps"] == 30
    with pytest.raises(ValueError, match="lost worker 2, and that worker's part of the trace"):
        tacit.simulate(DIGITS, tacit.KSync(k=3), steps=30, replay=run)


def one_closes_early(strategy: tacit.Strategy) -> tacit.Run | None:
    """Worker 2 raises an error in its loop, and says goodbye to the server."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    try:
        with tacit.attach(model, optimizer, strategy, steps=30, timeout_s=20.0) as session:
            while not session.is_done:
                model(torch.ones(1, 4)).sum().square().backward()
                optimizer.step()
                if tacit.rank() == 2 and session.step == 5:
                    raise ZeroDivisionError("a bug in the loop")
            assert session.gather(tacit.rank()) == [0, 1]
    except ZeroDivisionError:
        return None
    return session.run


@pytest.mark.parametrize("strategy", [tacit.KBatchSync(k=2), tacit.KAsync(k=1)], ids=str)
def test_learners_hear_of_a_lost_server_also_if_they_wait_for_no_answer(strategy: tacit.Strategy, tmp_path: Path):
    """Learners of K-batch-sync never receive before the first model arrives: they see the loss when they push."""
    first, *others = outcomes(4, killed, strategy, [0], "rank0", str(tmp_path))
    assert first.name == "Died"
    for other in others:
        assert isinstance(other, Failed) and other.name == "PeerLost", other
        assert re.search("^the server (was|and worker 0 were) lost at ", other.text), other
    assert checkpoints.read_server(tmp_path)["model"]["updates"] == checkpoints.step_of(tmp_path) > 0


def test_without_learners_a_server_process_ends_with_an_error():
    *_, server = outcomes(3, killed, tacit.KSync(k=2), [0, 1], "process")
    assert server.name == "PeerLost" and "has no learner left" in server.text


def slow_one(strategy: tacit.Strategy) -> dict:
    return play(strategy, 24, [400] * 4, slow=3)


@pytest.mark.parametrize(
    "strategy", [tacit.KAsync(k=2), tacit.KBatchAsync(k=2), tacit.KSync(k=3), tacit.KBatchSync(k=3)], ids=str
)
def test_no_worker_waits_for_a_slow_one(strategy: tacit.Strategy):
    results = together(4, slow_one, strategy)
    assert results[3]["taken"] * 9 < sum(result["taken"] for result in results[:3])
    if strategy.cancels:
        assert results[3]["run"]["cancelled"] > 0  # its work is dropped, and marked in the trace


def warned_of_speeds(strategy: tacit.Strategy) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quiet_s = 0.02 if isinstance(strategy, tacit.Ringleader) else 1.0  # there the others wait for the slow one
        play(strategy, 170, [400] * 3, slow=2, quiet_s=quiet_s)
    return [str(one.message) for one in caught if issubclass(one.category, tacit.SpeedBias)]


def test_the_server_warns_once_of_learners_it_uses_more_often():
    [warning], *others = together(3, warned_of_speeds, tacit.KAsync(k=1))
    assert "of learner 2. If learners hold different data" in warning and others == [[], []]
    assert together(3, warned_of_speeds, tacit.Ringleader()) == [[], [], []]


def test_alone_or_without_enough_workers_it_says_what_to_do():
    with pytest.raises(tacit.TacitError, match="needs at least two workers.*torchrun --nproc-per-node 2"):
        play(tacit.KAsync(k=1), 5, [5])
    failed = outcomes(2, play, tacit.KSync(k=3), 5, [5, 5])
    assert all("k=3 is more learners than workers=2" in str(one) for one in failed)
    failed = outcomes(2, play, tacit.KSync(k=1, shards=3), 5, [5, 5])
    assert all("shards=3" in str(one) for one in failed)
