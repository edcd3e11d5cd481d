"""More or fewer steps than were announced: what is ignored, what ends early, and what is warned of."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

import tacit
from tacit.simulation.scripts.run import simulate_script
from tests.runtime.processes import together

SCRIPT = """
import torch, tacit

torch.manual_seed(tacit.rank())
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with tacit.attach(model, optimizer, tacit.strategy(STRATEGY), steps=STEPS) as session:
    for _ in range(TAKEN):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
"""


def simulated(folder: Path, strategy: str, steps: int | None, taken: int) -> tacit.Run:
    path = folder / "train.py"
    path.write_text(
        SCRIPT.replace("STRATEGY", repr(strategy)).replace("STEPS", str(steps)).replace("TAKEN", str(taken))
    )
    return simulate_script(path, cluster=tacit.Cluster(workers=2))


@pytest.mark.parametrize(
    ("strategy", "rounds"), [("AllReduce()", 5), ("LocalSGD(period=Every(2))", 3), ("CompressedGradient()", 6)]
)
def test_a_run_that_all_workers_stop_early_ends_after_one_round_more(strategy, rounds, tmp_path):
    run = simulated(tmp_path, strategy, steps=20_000, taken=4)
    assert run.status == "finished" and run.summary()["steps"] == 4
    assert run.summary()["rounds"] <= rounds


def stop_early() -> dict:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tacit.attach(model, optimizer, tacit.AllReduce(), steps=20_000) as session:
        for _ in range(4 + 2 * tacit.rank()):  # the second has more data than the first
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    return {"rounds": session.run.summary()["rounds"], "model": session.run.parameters}


@pytest.mark.timeout(120)
def test_real_processes_that_stop_early_end_with_equal_models():
    first, second = together(2, stop_early)
    assert first["rounds"] == 7 and torch.equal(first["model"], second["model"])


@pytest.mark.parametrize(
    ("strategy", "warning"),
    [
        ("LocalSGD(period=Every(2))", "all steps=6 announced steps are taken, so further steps change nothing"),
        ("KAsync(k=1)", "the server has made all steps=6 updates, so further steps change nothing"),
    ],
)
def test_steps_that_change_nothing_are_warned_of(strategy, warning, tmp_path, caplog):
    assert simulated(tmp_path, strategy, steps=6, taken=20).status == "finished"
    assert any(warning in message for message in caplog.messages)


@pytest.mark.parametrize(("steps", "is_warned"), [(None, True), (4, False)])
def test_the_full_messages_at_the_end_of_ef21_are_announced(steps, is_warned, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="tacit"):
        simulated(tmp_path, "CompressedGradient(compressor=TopK(k=1), feedback=EF21())", steps=steps, taken=4)
    assert any("sends its estimate back in full" in message for message in caplog.messages) == is_warned
