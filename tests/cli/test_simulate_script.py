"""``tacit simulate train.py``: a script on a simulated cluster, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit import Run
from tests.cli.command_line import Command

SCRIPT = """
import sys
import torch, tacit

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]))
with tacit.attach(model, optimizer, tacit.LocalSGD(period=tacit.Every(2)), steps=4) as session:
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
print("ran with", sys.argv[1:], "on", tacit.size())
"""


@pytest.fixture
def script(tacit: Command) -> str:
    """Return the path of a script in the empty folder where commands run."""
    Path("train.py").write_text(SCRIPT)
    return "train.py"


def test_a_script_runs_and_its_run_is_made_again_bit_for_bit(tacit: Command, script: str) -> None:
    answer = tacit("simulate", script, "--workers", "3", "--seed", "4", "--out", "a", "--", "--lr", "0.1")
    assert answer.exit_code == 0, answer.errors
    assert answer.output.count("ran with ['--lr', '0.1'] on 3") == 1
    assert "LocalSGD(period=Every(2)) on train.py, seed 4" in answer.output
    assert tacit("simulate", "--config", "a/run.toml", "--out", "b", "--quiet").output == ""
    first, second = Run.load("a"), Run.load("b")
    assert first.digest == second.digest
    assert first.workers == 3
    assert Path("a/report.html").exists()


def test_the_cluster_comes_from_a_file_and_options_override_it(tacit: Command, script: str) -> None:
    Path("cluster.toml").write_text('workers = 5\ncompute = "Constant(mean_s=2.0)"\nlatency_s = 0.5\n')
    answer = tacit("simulate", script, "--cluster", "cluster.toml", "--workers", "2", "--out", "a", "--", "--lr", "0.1")
    assert answer.exit_code == 0, answer.errors
    run = Run.load("a")
    assert run.workers == 2
    assert run.summary()["time_s"] > 8.0 + 2 * 2 * 0.5
    assert tacit("simulate", "--cluster", "a/run.toml", "--steps", "3", "--out", "b").exit_code == 0
    assert Run.load("b").summary()["time_s"] > 6.0 + 3 * 2 * 0.5


def test_compute_can_be_measured(tacit: Command, script: str) -> None:
    arguments = ("--workers", "2", "--compute", "measured", "--out", "a")
    assert tacit("simulate", script, *arguments, "--", "--lr", "0.1").exit_code == 0
    assert 'compute = "measured"' in Path("a/run.toml").read_text()
    assert tacit("simulate", "--config", "a/run.toml", "--out", "b").exit_code == 0


def test_what_the_script_decides_is_refused(tacit: Command, script: str) -> None:
    answer = tacit("simulate", script, "--optimizer", "adam", "--out", "a")
    assert answer.exit_code == 2
    assert "leave out --optimizer, or pass it to the script after --" in answer.errors
    ended = tacit("simulate", script, "--until-loss", "0.3", "--out", "a")
    assert ended.exit_code == 2
    assert "--until-loss cannot be used with a script: the losses of its steps are those of single" in ended.errors


def test_an_error_in_the_script_is_shown_with_its_line(tacit: Command, script: str) -> None:
    answer = tacit("simulate", script, "--workers", "2", "--out", "a")
    assert answer.exit_code == 1
    assert (
        "the script of worker 0 raised IndexError: list index out of range train.py, line 7, in <module>"
        in answer.errors
    )
    assert Run.load("a").status.startswith("failed: the script of worker 0")


def test_unknown_keys_of_a_cluster_file_are_named(tacit: Command, script: str) -> None:
    Path("cluster.toml").write_text("worker = 5\n")
    answer = tacit("simulate", script, "--cluster", "cluster.toml")
    assert answer.exit_code == 2
    assert "unknown key 'worker'; did you mean 'workers'?" in answer.errors


@pytest.mark.parametrize(
    ("fault", "way_out"),
    [("Crash(rank=1, at_s=0.1, for_s=0.2)", "remove for_s=0.2"), ("Join(rank=1, at_s=0.1)", "remove it")],
)
def test_a_worker_that_returns_or_joins_is_refused_before_the_script_starts(
    tacit: Command, script: str, fault: str, way_out: str
) -> None:
    answer = tacit("simulate", script, "--workers", "2", "--fault", fault, "--out", "a")
    assert answer.exit_code == 2
    assert f"faults contains {fault}, but a script cannot start while others train; {way_out}, or" in answer.errors
    assert not Path("a").exists()
