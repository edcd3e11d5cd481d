"""Checkpoints of servers in shards: all parts at one version, whatever each shard is at when they are asked for."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import torch

import tacit
from tacit.session import checkpoint_files, checkpoints
from tests.runtime.processes import outcomes, together

SHARDED = tacit.KSync(k=3, shards=2)  # waits for all, so a resumed run can be compared with a straight one
RACING = [tacit.KAsync(k=1, shards=2), tacit.KBatchSync(k=2, shards=3), tacit.AdaSync(tacit.KBatchAsync(k=1, shards=2))]


def learn(
    strategy: tacit.Strategy, updates: int, folder: str | None = None, *, keep_at: int = 0, resumes: bool = False
) -> tuple[torch.Tensor, int]:
    """Train until the server has made ``updates``; worker 0 asks for a checkpoint at ``keep_at`` and then every step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    session = tacit.attach(model, optimizer, strategy, steps=updates, seed=3, timeout_s=20.0)
    begun = session.resume(folder) if resumes else 0
    while not session.is_done:
        draw = torch.Generator().manual_seed(1000 * session.updates + tacit.rank())
        x = torch.randn(8, 4, generator=draw)
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        session.observe(loss)
        optimizer.step()
        if keep_at and session.updates >= keep_at:
            session.checkpoint(folder)
    session.close()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]), begun


def exact_run(folder: str) -> tuple[torch.Tensor, torch.Tensor, int]:
    straight, _ = learn(SHARDED, 25)
    learn(SHARDED, 14, folder, keep_at=9)
    return straight, *learn(SHARDED, 25, folder, resumes=True)


def resumed_with(strategy: tacit.Strategy, folder: str) -> tuple[torch.Tensor, int]:
    return learn(strategy, 30, folder, resumes=True)


def test_a_server_in_shards_is_resumed_exactly(tmp_path: Path):
    for straight, resumed, begun in together(3, exact_run, str(tmp_path)):
        assert begun == 14 and torch.equal(straight, resumed)
    kept = tmp_path / "step-00000014"
    assert sorted(path.name for path in kept.iterdir()) == ["server-1.pt", "server.pt"]
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2
    with_one = outcomes(2, resumed_with, tacit.KSync(k=2), str(tmp_path))
    assert all(
        "is of KSync(k=3, shards=2), but the session runs KSync(k=2): k=3 there, k=2 here" in o.text for o in with_one
    )


def race(folder: str) -> list[tuple[torch.Tensor, int]]:
    results = []
    for number, strategy in enumerate(RACING):
        place = f"{folder}/{number}"
        learn(strategy, 20, place, keep_at=5)
        results.append(learn(strategy, 30, place, resumes=True))
    return results


def test_shards_that_race_write_their_parts_at_one_version(tmp_path: Path):
    results = together(4, race, str(tmp_path))
    for number, strategy in enumerate(RACING):
        folder, models = tmp_path / str(number), [result[number] for result in results]
        shards = [checkpoints.read_server(folder, shard) for shard in range(strategy.shards)]
        versions = {part["model"]["updates"] for part in shards} | {part["state"]["version"] for part in shards}
        assert versions == {checkpoints.step_of(folder)} and len(versions) == 1, strategy
        assert {begun for _, begun in models} == versions
        assert all(torch.equal(model, models[0][0]) for model, _ in models), strategy


def failing_run(folder: str) -> tuple[list[object], str, list[str]]:
    """Shard 1 cannot write its second part; the third checkpoint holds NaN in that shard's part of the model.

    Return what was written, the error, and the threads that the session has left.
    """
    saved, results, failures = checkpoint_files.save_shard, [], ["", "the disk is full"]

    def save(path: Path, shard: dict) -> str:
        return (failures.pop(0) if failures and path.name == "server-1.pt" else "") or saved(path, shard)

    checkpoint_files.save_shard = save
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = tacit.attach(model, optimizer, tacit.KSync(k=2, shards=2), steps=3, timeout_s=20.0)
    try:
        while not session.is_done:
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            if session.step == 3 and tacit.rank() == 1:
                session._server._model.parameters.fill_(float("nan"))
            session.barrier()
            results.append(session.checkpoint(folder))
            session.barrier()
        session.close()
    except tacit.TacitError as error:
        return results, f"{type(error).__name__}: {error}", [thread.name for thread in threading.enumerate()]
    raise AssertionError("a checkpoint that is not finite was written")


def test_a_shard_that_cannot_write_leaves_the_checkpoint_before(tmp_path: Path):
    """All workers end at once, though the shard of worker 1 still has a learner to dismiss."""
    (written, first, _), (_, second, threads) = together(2, failing_run, str(tmp_path))
    assert written == [tmp_path / "step-00000001", None]
    assert "the model of the server contains NaN or infinity" in first and second.startswith("PeerLost")
    assert "tacit-server" not in threads
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["step-00000001"]
    assert checkpoints.step_of(tmp_path) == 1


def served(folder: str, updates: int) -> tuple[int, int] | None:
    """Train with a server process, which writes a checkpoint every 10 updates; return what it resumed and ended with."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
    os.environ["WORLD_SIZE"] = str(size)
    if rank == size:
        os.environ.update(TACIT_SERVE="1", RANK="0", TACIT_SERVE_CHECKPOINTS=f"{folder}:10")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        with tacit.attach(model, optimizer, tacit.KAsync(k=1), steps=updates, server="process") as session:
            while not session.is_done:
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
        return session.updates, session.run.summary()["steps"]
    except SystemExit:
        return None


def test_a_server_process_writes_between_updates_and_repeats_none(tmp_path: Path):
    together(3, served, str(tmp_path), 30)
    kept = checkpoints.read_server(tmp_path)
    assert kept["model"]["updates"] == kept["state"]["version"] == 30
    assert together(3, served, str(tmp_path), 40)[0] == (40, 40)
    kept = checkpoints.read_server(tmp_path)
    assert kept["model"]["updates"] == kept["state"]["version"] == 40
