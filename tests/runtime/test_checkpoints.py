"""Checkpoints: resumed in mid-period, with another number of workers, after a write that failed."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

import tacit
from tacit.session import checkpoints
from tests.runtime.processes import outcomes, together
from tests.runtime.small_runs import COMPRESSED, batches, close, flat, learn, network, sgd


def interrupted_run(folder: str, strategy: tacit.Strategy, stop: int, steps: int) -> torch.Tensor:
    """Train to ``stop``, checkpoint, continue for steps that will be lost, and leave."""
    model = network()
    optimizer = sgd(model)
    session = tacit.attach(model, optimizer, strategy, steps=steps, seed=3)
    learn(model, optimizer, batches(tacit.rank(), stop), session)
    session.checkpoint(folder)
    learn(model, optimizer, batches(tacit.rank(), 1, first=stop), session)
    session._end.fail(KeyboardInterrupt())
    return flat(model)


def resumed_run(folder: str, strategy: tacit.Strategy, steps: int) -> tuple[torch.Tensor, dict[str, int]]:
    model = network(seed=9)  # whatever it is: the checkpoint knows better
    optimizer = sgd(model)
    session = tacit.attach(model, optimizer, strategy, steps=steps, seed=3)
    done = session.resume(folder)
    learn(model, optimizer, batches(tacit.rank(), steps - done, first=done), session)
    session.close()
    return flat(model), counts(session.run)


def counts(run: tacit.Run) -> dict[str, int]:
    summary = run.summary()
    return {name: summary[name] for name in ("steps", "rounds", "bytes_sent")} | {"rows": len(run.history)}


def straight_run(strategy: tacit.Strategy, steps: int) -> tuple[torch.Tensor, dict[str, int]]:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, strategy, steps=steps, seed=3) as session:
        learn(model, optimizer, batches(tacit.rank(), steps), session)
    return flat(model), counts(session.run)


def with_and_without_interruption(
    folder: str, strategies: list[tacit.Strategy]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = []
    for number, strategy in enumerate(strategies):
        place = f"{folder}/{number}"
        straight = straight_run(strategy, 17)
        interrupted_run(place, strategy, 8, 17)
        pairs.append((straight, resumed_run(place, strategy, 17)))
    return pairs


def test_resuming_in_the_middle_of_a_period_is_bit_exact(tmp_path):
    strategies = [
        tacit.AllReduce(),
        tacit.LocalSGD(period=tacit.Every(5)),
        tacit.LocalSGD(period=tacit.Every(7), overlap_steps=4),
        tacit.LocalSGD(period=tacit.VariancePeriod(initial=3), outer=tacit.OuterSGD(lr=0.7, momentum=0.9)),
        tacit.LocalSGD(period=tacit.LossPeriod(initial=3), outer=tacit.OuterAdam()),
        tacit.LocalSGD(period=tacit.PacePeriod(communication=1e-6, maximum=3)),  # the same period at any speed
        *COMPRESSED,
    ]
    for pairs in together(2, with_and_without_interruption, str(tmp_path), strategies, timeout_s=110):
        for strategy, (straight, resumed) in zip(strategies, pairs, strict=True):
            assert torch.equal(straight[0], resumed[0]), strategy
            assert straight[1] == resumed[1], strategy


def test_resuming_with_three_workers_instead_of_four(tmp_path):
    strategy = tacit.LocalSGD(period=tacit.Every(7), overlap_steps=3)
    models = together(4, checkpointed_models, str(tmp_path), strategy, 8)
    results = together(3, started_from, str(tmp_path), strategy, 17)
    for start, end in results:
        close(start, torch.stack(models).mean(0))
        close(end, results[0][1])


def test_resuming_compressed_runs_with_another_number_of_workers(tmp_path):
    """What is believed of the mean gradient survives; all ranks agree afterwards."""
    runs = [(str(tmp_path / str(number)), strategy) for number, strategy in enumerate(COMPRESSED[:4])]
    models = [*zip(*together(3, checkpointed_models_of, runs), strict=True)]
    for size in (2, 4):
        for (_, strategy), model, results in zip(
            runs, models, zip(*together(size, started_from_each, runs), strict=True), strict=True
        ):
            for start, end in results:
                close(start, torch.stack(model).mean(0))
                assert torch.equal(end, results[0][1]), strategy


def checkpointed_models_of(runs: list[tuple[str, tacit.Strategy]]) -> list[torch.Tensor]:
    return [checkpointed_models(folder, strategy, 8) for folder, strategy in runs]


def started_from_each(runs: list[tuple[str, tacit.Strategy]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [started_from(folder, strategy, 17) for folder, strategy in runs]


def checkpointed_models(folder: str, strategy: tacit.Strategy, stop: int) -> torch.Tensor:
    model = network()
    optimizer = sgd(model)
    session = tacit.attach(model, optimizer, strategy, seed=3)
    learn(model, optimizer, batches(tacit.rank(), stop), session)
    session.checkpoint(folder)
    own = flat(model)
    session.close()
    return own


def started_from(folder: str, strategy: tacit.Strategy, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    model = network(seed=9)
    optimizer = sgd(model)
    session = tacit.attach(model, optimizer, strategy, seed=3)
    assert session.resume(folder) == 8
    start = flat(model)
    learn(model, optimizer, batches(tacit.rank(), steps - 8, first=8), session)
    session.close()
    return start, flat(model)


def killed_while_writing(folder: str, strategy: tacit.Strategy, dead: int) -> None:
    model = network()
    optimizer = sgd(model)
    session = tacit.attach(model, optimizer, strategy, timeout_s=30)
    learn(model, optimizer, batches(tacit.rank(), 3), session)
    session.checkpoint(folder)
    if tacit.rank() == 0:
        (Path(folder) / "before").write_text(str(checkpoints.step_of(Path(folder))))
    learn(model, optimizer, batches(tacit.rank(), 1, first=3), session)
    if tacit.rank() == dead:
        torch.save = lambda shard, file: (
            file.write(b"half a shard"),
            file.flush(),
            os.kill(os.getpid(), signal.SIGKILL),
        )
    session.checkpoint(folder)
    learn(model, optimizer, batches(tacit.rank(), 1, first=4), session)


@pytest.mark.parametrize(
    ("strategy", "dead", "errors"),
    [
        (tacit.LocalSGD(period=tacit.Every(5)), 1, ["worker 1 was lost"]),
        (tacit.DPSGD(), 1, ["worker 1 was lost"]),
        (tacit.SwarmSGD(), 1, [None]),
        (tacit.KAsync(k=1), 0, [None, "the server was lost"]),  # a push does not wait for an answer
    ],
    ids=str,
)
def test_a_checkpoint_that_dies_half_way_leaves_one_that_is_whole(tmp_path, strategy, dead, errors):
    results = outcomes(2, killed_while_writing, str(tmp_path), strategy, dead)
    assert results[dead].name == "Died"
    survivor = results[1 - dead]
    assert any(survivor is None if text is None else text in str(survivor) for text in errors), survivor
    before, step = int((tmp_path / "before").read_text()), checkpoints.step_of(tmp_path)
    if strategy.has_server:
        assert checkpoints.read_server(tmp_path)["model"]["updates"] == step == before
    elif strategy.keeps_models_apart:  # the survivor's part is a checkpoint of its own
        assert (step, len(checkpoints.read(tmp_path, 0, 4))) == (4, 1)
    else:
        assert (step, len(checkpoints.read(tmp_path, 0, 3))) == (3, 2)


def not_shared(shared: str, own: str, strategy: tacit.Strategy) -> tuple[Path | None, str]:
    """Write into a folder of this rank's own; then resume where rank 1 finds an older checkpoint than rank 0."""
    model, mine = network(), Path(own) / str(tacit.rank())
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, strategy) as session:
        for number in (1, 2):
            learn(model, optimizer, batches(tacit.rank(), 1, first=number), session)
            session.checkpoint(shared)
        checkpoints._SHARDS_TIMEOUT_S = 0.2  # the other rank's part never comes
        written = session.checkpoint(mine)
    shutil.copytree(shared, mine, dirs_exist_ok=True)
    if tacit.rank() == 1:
        (mine / "previous.json").replace(mine / "manifest.json")
    session = tacit.attach(model, optimizer, strategy)
    try:
        session.resume(mine)
    except tacit.TacitError as error:
        return written, str(error)
    raise AssertionError("ranks resumed different checkpoints")


@pytest.mark.parametrize("strategy", [tacit.AllReduce(), tacit.SwarmSGD(), tacit.DPSGD(), tacit.KSync(k=2)], ids=str)
def test_folders_that_machines_do_not_share_are_noticed(tmp_path, strategy):
    """When a checkpoint is written, it stays incomplete, unless worker 0 writes it alone, with a server; when one is
    resumed, all ranks compare what they find.
    """
    results = together(2, not_shared, str(tmp_path / "shared"), str(tmp_path / "own"), strategy)
    for written, error in results:
        assert strategy.has_server or written is None
        assert "rank 0 finds step-00000002" in error and "rank 1 finds step-00000001" in error


def lost_without_a_folder(folder: str) -> None:
    model = network()
    optimizer = sgd(model)
    session = tacit.attach(model, optimizer, tacit.AllReduce(), rescue_folder=folder)
    learn(model, optimizer, batches(tacit.rank(), 3), session)
    if tacit.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    Path(folder).rmdir()
    Path(folder).touch()
    learn(model, optimizer, batches(tacit.rank(), 3), session)


def test_a_rescue_folder_that_cannot_be_used_hides_nothing(tmp_path):
    """A folder that turns out to be none when it is needed; one that is none at first is refused by attach."""
    (tmp_path / "folder").mkdir()
    first, _ = outcomes(2, lost_without_a_folder, str(tmp_path / "folder"))
    assert first.name == "PeerLost" and "worker 1 was lost" in first.text
    assert f"No checkpoint was written into {tmp_path / 'folder'}" in first.text


def failed_without_a_folder(folder: str, strategy: tacit.Strategy, who: int) -> None:
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, strategy, rescue_folder=folder, timeout_s=30) as session:
        learn(model, optimizer, batches(tacit.rank(), 3), session)
        if tacit.rank() == 0:
            Path(folder).rmdir()
            Path(folder).touch()
        session.barrier()
        while True:
            learn(model, optimizer, batches(tacit.rank(), 3), session)
            if tacit.rank() == who:
                raise ZeroDivisionError("a bug in the loop")


@pytest.mark.parametrize(
    ("strategy", "who"), [(tacit.DPSGD(), 1), (tacit.SwarmSGD(), 1), (tacit.KAsync(k=1), 0)], ids=str
)
def test_an_error_is_reported_also_if_the_rescue_folder_cannot_be_used(tmp_path, strategy, who):
    (tmp_path / "folder").mkdir()
    results = outcomes(2, failed_without_a_folder, str(tmp_path / "folder"), strategy, who)
    assert results[who].name == "ZeroDivisionError"
    assert results[1 - who].name == "PeerLost" and "ZeroDivisionError: a bug in the loop" in results[1 - who].text
    assert f"No checkpoint was written into {tmp_path / 'folder'}" in results[0].text


def test_a_rescue_folder_that_is_none_is_refused_at_once(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match=f"{tmp_path / 'file'} is a file; give a folder."):
            tacit.attach(model := network(), sgd(model), tacit.AllReduce(), rescue_folder=folder)
    tacit.attach(model := network(), sgd(model), tacit.AllReduce(), rescue_folder=tmp_path / "new" / "folder").close()


def local_state() -> bool:
    """Only rank 0 asks: no rank may wait for another."""
    model = network()
    optimizer = sgd(model)
    with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(4), overlap_steps=2), steps=10) as session:
        learn(model, optimizer, batches(tacit.rank(), 5), session)
        if tacit.rank() == 0:
            state = session.state_dict()
            assert state["meter"]["step"] == 5
        learn(model, optimizer, batches(tacit.rank(), 5, first=5), session)
    return True


def test_state_dict_never_communicates():
    assert together(2, local_state) == [True, True]


def test_a_shard_that_carries_code_is_not_executed(tmp_path):
    together(1, checkpointed_models, str(tmp_path), tacit.AllReduce(), 2)
    shard = next(tmp_path.rglob("rank-0.pt"))
    torch.save({"model": Bomb(str(tmp_path / "exploded"))}, shard)
    with pytest.raises(tacit.TacitError, match="cannot be read"):
        checkpoints.read(tmp_path, 0, 1)
    assert not (tmp_path / "exploded").exists()


class Bomb:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))
