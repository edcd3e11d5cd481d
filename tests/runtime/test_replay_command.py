"""``tacit replay``: a real run again, from its folder."""

from __future__ import annotations

from pathlib import Path

import torch
from typer.testing import CliRunner

import tacit
from tacit import workloads
from tacit.cli import app
from tacit.runtime.train import train
from tests.runtime.processes import together

SETTINGS = {"steps": 20, "seed": 5}


def record(strategy: tacit.SwarmSGD) -> tacit.Run:
    return train(workloads.quadratic(dimension=5), strategy, **SETTINGS)


def test_a_run_is_played_again_from_its_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = together(3, record, tacit.SwarmSGD(local_steps=2))[0]
    run.save("real")

    answer = CliRunner().invoke(app, ["replay", "real", "--out", "again"], prog_name="tacit")
    assert answer.exit_code == 0, answer.output
    assert "The models differ by at most" in answer.stdout and "run again: tacit replay real" in answer.stdout
    torch.testing.assert_close(tacit.Run.load("again").parameters, run.parameters, rtol=1e-12, atol=1e-12)

    run.parameters = run.parameters + 1.0
    run.save("other")
    answer = CliRunner().invoke(app, ["replay", "other", "--out", "third"], prog_name="tacit")
    assert answer.exit_code == 1 and "more than --tolerance 0.001" in " ".join(answer.stderr.split())

    for folder, message in (("again", "was not made on real processes"), ("nowhere", "is not a run folder")):
        answer = CliRunner().invoke(app, ["replay", folder], prog_name="tacit")
        assert (answer.exit_code, message in " ".join(answer.stderr.split())) == (2, True)
    assert not Path("runs").exists()  # what cannot be played leaves nothing behind
