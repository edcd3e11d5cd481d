"""After a loss of power at any moment the last complete checkpoint, or a later one, can be resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tacit.errors import TacitError
from tacit.session import checkpoints
from tests.session.power_loss import Disk, recorded, write_tree

INSIDE = Path("run", "checkpoint")  # both are made by the first checkpoint


class Alone:
    """A backend of one rank, as far as ``checkpoints.write`` uses it."""

    rank, size, live_ranks = 0, 1, (0,)

    def all_gather(self, data: bytes) -> list[bytes]:
        return [data]


def write_workers(folder: Path, step: int) -> None:
    shard = {"model": {"w": torch.full((3,), float(step))}}
    checkpoints.write(folder, Alone(), shard, step)  # type: ignore[arg-type]


def write_server(folder: Path, step: int) -> None:
    model = {"parameters": torch.full((3,), float(step)), "updates": step}
    checkpoints.write_server(folder, {"strategy": "KAsync(k=1)", "model": model}, step)


def write_rescued(folder: Path, step: int) -> None:
    shard = {"model": {"w": torch.full((3,), float(step))}}
    checkpoints.write_surviving(folder, 0, [0], shard, step, None, lambda rank: True)


def step_of_content(folder: Path) -> int:
    """Return the step of the checkpoint in ``folder``, read from its tensors."""
    names = {path.name for path in (folder / (checkpoints.current_place(folder) or "none")).glob("*.pt")}
    shard = checkpoints.read_server(folder) if "server.pt" in names else checkpoints.read(folder, 0, 1)[0]
    tensor = shard["model"].get("parameters", shard["model"].get("w"))
    assert int(tensor[0]) == checkpoints.step_of(folder)
    return int(tensor[0])


def lost_states(disk: Disk, complete: list[tuple[int, int]], folder: Path) -> list[str]:
    """Return each moment at which the last complete checkpoint could be lost; complete: moment and step of each."""
    lost, seen = [], set()
    for number, states in enumerate(disk.moments):
        last = max((step for moment, step in complete if moment <= number), default=0)
        for kind, tree in states.items():
            if (key := (last, repr(tree))) in seen:
                continue
            seen.add(key)
            place = folder / f"{number}-{kind}"
            write_tree(tree, place)
            try:
                if last and step_of_content(place / INSIDE) < last:
                    lost.append(f"{kind} after call {number}: an older checkpoint than {last}")
            except TacitError as error:
                lost.append(f"{kind} after call {number}: {error}")
    return lost


def play(write: Callable[[Path, int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drops: str) -> list[str]:
    root, complete = tmp_path / "disk", list[tuple[int, int]]()
    root.mkdir()
    with recorded(root, monkeypatch, drops=drops) as disk:
        for step in (2, 4, 6, 8):
            write(root / INSIDE, step)
            complete.append((len(disk.moments), step))
        (root / INSIDE / "after.txt").touch()
        disk.look()
    assert len(disk.moments) > 40
    return lost_states(disk, complete, tmp_path)


@pytest.mark.parametrize("write", [write_workers, write_server, write_rescued])
def test_a_complete_checkpoint_survives_a_loss_of_power_at_any_moment(write, tmp_path, monkeypatch):
    assert play(write, tmp_path, monkeypatch, drops="") == []


@pytest.mark.parametrize("drops", ["files", "folders"])
def test_the_imitation_finds_a_missing_sync(drops, tmp_path, monkeypatch):
    assert play(write_workers, tmp_path, monkeypatch, drops=drops) != []
