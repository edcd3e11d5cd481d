"""Checkpoints on a full disk, of models that are not finite, and the one before; rescue by several survivors."""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from pathlib import Path

import pytest
import torch

import tacit
from tacit.session import checkpoints

FAMILIES = [tacit.LocalSGD(period=tacit.Every(2)), tacit.DPSGD(), tacit.SwarmSGD()]


def attached(
    strategy: tacit.Strategy = FAMILIES[0],
) -> tuple[torch.nn.Linear, torch.optim.Optimizer, tacit.Session]:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, tacit.attach(model, optimizer, strategy, steps=20)


def take_step(model: torch.nn.Linear, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def places(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def fill_disk_for(folder: Path, step: int) -> None:
    """Let the shard of ``step`` be written to a device without space."""
    place = folder / f"step-{step:08d}"
    place.mkdir(parents=True)
    (place / f".rank-0.pt.part-{os.getpid()}").symlink_to("/dev/full")


@pytest.mark.parametrize("strategy", FAMILIES, ids=str)
def test_a_full_disk_is_named_and_ends_the_run_at_the_third_checkpoint(
    tmp_path: Path, caplog, strategy: tacit.Strategy
):
    model, optimizer, session = attached(strategy)
    take_step(model, optimizer)
    assert session.checkpoint(tmp_path) == tmp_path / "step-00000001"
    for step in (2, 3):
        take_step(model, optimizer)
        fill_disk_for(tmp_path, step)
        with caplog.at_level(logging.WARNING, "tacit"):
            assert session.checkpoint(tmp_path) is None
        assert "rank 0 could not write its checkpoint: the disk is full" in caplog.records[-1].message
        assert places(tmp_path) == ["step-00000001"] and checkpoints.step_of(tmp_path) == 1
    assert session.checkpoint(tmp_path) is not None  # there is space again: failures are counted from 0
    for step in (4, 5, 6):
        take_step(model, optimizer)
        fill_disk_for(tmp_path, step)
        if step < 6:
            assert session.checkpoint(tmp_path) is None
    with pytest.raises(tacit.TacitError, match="the disk is full"):
        session.checkpoint(tmp_path)
    assert checkpoints.step_of(tmp_path) == 3 and places(tmp_path) == ["step-00000001", "step-00000003"]


@pytest.mark.parametrize("strategy", FAMILIES, ids=str)
def test_a_model_that_is_not_finite_is_never_published(tmp_path: Path, strategy: tacit.Strategy):
    model, optimizer, session = attached(strategy)
    take_step(model, optimizer)
    session.checkpoint(tmp_path)
    take_step(model, optimizer)
    with torch.no_grad():
        model.weight[0, 1] = float("nan")
    with pytest.raises(tacit.TacitError, match=r"the model of rank 0 contains NaN or infinity.*previous checkpoint"):
        session.checkpoint(tmp_path)
    assert checkpoints.step_of(tmp_path) == 1 and places(tmp_path) == ["step-00000001"]
    with pytest.raises(tacit.TacitError, match="the model of the server contains NaN"):
        model = {"parameters": torch.tensor([1.0, float("inf")])}
        checkpoints.write_server(tmp_path, {"strategy": "KAsync(k=1)", "model": model}, 7)
    assert checkpoints.step_of(tmp_path) == 1


def test_the_last_two_checkpoints_are_kept_and_the_older_one_can_be_resumed(tmp_path: Path):
    model, optimizer, session = attached()
    for _ in range(4):
        take_step(model, optimizer)
        session.checkpoint(tmp_path)
    session.close()
    assert places(tmp_path) == ["step-00000003", "step-00000004"]
    shard = tmp_path / "step-00000004" / "rank-0.pt"
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(tacit.TacitError, match=r"cannot be read.*replace manifest\.json by previous\.json"):
        checkpoints.read(tmp_path, 0, 1)
    (tmp_path / "previous.json").replace(tmp_path / "manifest.json")
    _, _, session = attached()
    assert session.resume(tmp_path) == 3
    session.close()


def test_everything_is_on_the_disk_before_the_checkpoint_before_is_removed(tmp_path: Path, monkeypatch):
    """Folders are written after their entries, the manifest after the shards, and only then is anything removed."""
    model, optimizer, session = attached()
    for _ in range(2):
        take_step(model, optimizer)
        session.checkpoint(tmp_path)
    calls: list[str] = []
    synced, replaced, removed = os.fsync, Path.replace, os.unlink

    def record_sync(descriptor: int) -> None:
        calls.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        synced(descriptor)

    def record_replace(self: Path, target: Path) -> Path:
        calls.append(f"rename {target.name}")
        return replaced(self, target)

    def record_unlink(path, *arguments, **rest) -> None:
        calls.append("remove")
        removed(path, *arguments, **rest)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_replace)
    monkeypatch.setattr(os, "unlink", record_unlink)
    take_step(model, optimizer)
    session.checkpoint(tmp_path)
    monkeypatch.undo()
    steps = [call for call in calls if not call.startswith("sync .")]
    place, folder = "sync step-00000003", f"sync {tmp_path.name}"
    assert steps[: steps.index("remove")] == [
        *("rename rank-0.pt", place, place, folder),
        *("rename previous.json", folder, "rename manifest.json", folder),
    ]
    session.close()


def rescue(folder: Path, rank: int, others: list[int], gone: set[int], results: dict[int, object]) -> None:
    shard = {"model": {"w": torch.tensor([float(rank)])}}
    results[rank] = checkpoints.write_surviving(
        folder, rank, others, shard, 10 + rank, "name", lambda other: other in gone
    )


def test_the_publisher_of_a_rescue_checkpoint_is_one_that_has_written(tmp_path: Path):
    """Workers 0 and 1 are gone, and the survivors know of only one of them, not of the same one."""
    results: dict[int, object] = {}
    known = {2: [0, 2, 3], 3: [1, 2, 3]}
    threads = [threading.Thread(target=rescue, args=(tmp_path, rank, known[rank], {0, 1}, results)) for rank in known]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == dict.fromkeys(known, tmp_path / "step-name.rescued")
    assert [int(shard["model"]["w"]) for shard in checkpoints.read(tmp_path, 0, 4)] == [2, 3]
    assert checkpoints.step_of(tmp_path) == 12


def test_a_checkpoint_of_another_strategy_is_refused_with_the_first_difference(tmp_path: Path):
    model, optimizer, session = attached()
    take_step(model, optimizer)
    session.checkpoint(tmp_path)
    session.close()
    for strategy, difference in (
        (tacit.LocalSGD(period=tacit.Every(3)), "period=Every(2) there, period=Every(3) here"),
        (tacit.LocalSGD(), "period=Every(2) there, period=Every(8) here"),
        (tacit.LocalSGD(period=tacit.Every(2), overlap_steps=1), "overlap_steps left out there, overlap_steps=1 here"),
        (tacit.AllReduce(), "LocalSGD there, AllReduce here"),
        (tacit.DPSGD(), "LocalSGD there, DPSGD here"),
        (tacit.SwarmSGD(), "LocalSGD there, SwarmSGD here"),
    ):
        other = tacit.attach(model, optimizer, strategy, steps=20)
        with pytest.raises(tacit.TacitError, match=re.escape(difference)) as caught:
            other.resume(tmp_path)
        assert "Attach the strategy that wrote it" in str(caught.value)
    server = {"strategy": "KAsync(k=1)", "model": {"parameters": torch.ones(3), "updates": 4}}
    checkpoints.write_server(tmp_path, server, 4)
    _, _, session = attached()
    with pytest.raises(tacit.TacitError, match="KAsync there, LocalSGD here"):
        session.resume(tmp_path)


def test_a_rescue_folder_without_space_or_without_permission_is_named_and_left_empty(tmp_path: Path, monkeypatch):
    place, shard = tmp_path / "step-00000003.rescued", {"model": {"w": torch.ones(1)}}
    place.mkdir()
    (place / f".rank-0.pt.part-{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(tacit.TacitError, match="rank 0 could not write its checkpoint: the disk is full"):
        checkpoints.write_surviving(tmp_path, 0, [0], shard, 3, None, lambda other: True)
    assert list(place.iterdir()) == [] and checkpoints.step_of(tmp_path) is None

    def refuse(*arguments, **rest) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(tacit.TacitError, match="rank 0 could not write its checkpoint: Read-only file system"):
        checkpoints.write_surviving(tmp_path / "other", 0, [0], shard, 3, None, lambda other: True)
