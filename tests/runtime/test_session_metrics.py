"""Metrics over workers: the same values on real processes, under the simulator and alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import tacit
from tacit.simulation.scripts.run import simulate_script
from tests.runtime.processes import outcomes, together

SCRIPT = """
import torch, tacit

rank = tacit.rank()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with tacit.attach(model, optimizer, tacit.strategy(STRATEGY), steps=2) as session:
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert session.mean(float(rank)) == (tacit.size() - 1) / 2
    assert session.mean(rank == 0) == 1 / tacit.size()
    assert torch.equal(session.mean(torch.full((2,), rank)), torch.full((2,), (tacit.size() - 1) / 2))
    gathered = session.gather({"rank": rank, "name": "x" * rank, "t": torch.tensor([rank])})
    assert [one["rank"] for one in gathered] == list(range(tacit.size()))
    assert [one["name"] for one in gathered] == ["x" * r for r in range(tacit.size())]
    assert [int(one["t"]) for one in gathered] == list(range(tacit.size()))
    session.barrier()
print("checked")
"""
STRATEGIES = ["LocalSGD(period=Every(2))", "SwarmSGD(local_steps=1)", "KAsync(k=1)"]


def script(folder: Path, strategy: str) -> Path:
    path = folder / "metrics.py"
    path.write_text(SCRIPT.replace("STRATEGY", repr(strategy)))
    return path


def execute(path: str) -> str:
    exec(compile(Path(path).read_text(), path, "exec"), {"__name__": "__main__"})
    return "done"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_values_are_averaged_and_gathered_in_the_simulator(strategy, tmp_path, capsys):
    run = simulate_script(script(tmp_path, strategy), cluster=tacit.Cluster(workers=3))
    assert run.status == "finished"
    assert capsys.readouterr().out == "checked\n"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_values_are_averaged_and_gathered_on_real_processes(strategy, tmp_path):
    assert together(3, execute, str(script(tmp_path, strategy))) == ["done"] * 3


def test_metrics_send_no_bytes_of_the_strategy(tmp_path):
    path = tmp_path / "plain.py"
    path.write_text(SCRIPT.replace("STRATEGY", repr("LocalSGD(period=Every(2))")).partition("    assert")[0])
    plain = simulate_script(path, cluster=tacit.Cluster(workers=3))
    measured = simulate_script(script(tmp_path, "LocalSGD(period=Every(2))"), cluster=tacit.Cluster(workers=3))
    assert measured.summary()["bytes_sent"] == plain.summary()["bytes_sent"] > 0
    assert measured.summary()["time_s"] == plain.summary()["time_s"]


def attached() -> tacit.Session:
    model = nn.Linear(2, 1)
    return tacit.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), tacit.AllReduce())


def test_one_worker_gets_its_own_values_back():
    with attached() as session:
        assert session.mean(3) == 3.0
        tensor = torch.arange(3.0)
        mean = session.mean(tensor)
        assert torch.equal(mean, tensor) and mean is not tensor
        assert session.gather(("a", [1, None])) == [("a", [1, None])]
        session.barrier()
    for call in (lambda: session.mean(1.0), lambda: session.gather(1.0), session.barrier):
        with pytest.raises(tacit.MisplacedCall, match="after the session was closed"):
            call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda session: session.mean("0.5"), r"session.mean\('0.5'\): the value must be a number or a tensor"),
        (lambda session: session.mean(torch.ones(1, dtype=torch.complex64)), "is not real"),
        (lambda session: session.gather(Path("x")), "convert it first"),
    ],
)
def test_values_that_cannot_travel_are_refused(call, message):
    session = attached()
    with pytest.raises(TypeError, match=message):
        call(session)


def mean_on_rank_0_only() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, tacit.AllReduce(), timeout_s=30) as session:
        if session.rank == 0:
            session.mean("no number")


@pytest.mark.timeout(120)
def test_a_value_refused_on_one_rank_ends_the_run_on_all():
    first, second = outcomes(2, mean_on_rank_0_only)
    assert first.name == "TypeError"
    assert second.name == "PeerLost" and "no number" in second.text
