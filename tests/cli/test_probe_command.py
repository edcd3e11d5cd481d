"""``tacit probe``: a script is measured in its own loop, and a probe that ends early leaves what it has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tacit as library
from tacit.cli.settings import read_cluster
from tests.cli import command_line
from tests.cli.command_line import Answer, Command
from tests.runtime.processes import together

SCRIPT = """
import os, pathlib, signal, sys
import torch
import tacit

wanted, last = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e30 if wanted == "diverge" else 0.05, momentum=0.9)
draws = torch.Generator().manual_seed(tacit.rank())
session = tacit.attach(model, optimizer, tacit.KAsync(k=1), steps=5000, log="wandb", rescue_folder="rescue")
try:
    while not session.is_done:
        x = torch.randn(8, 16, generator=draws)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        loss.backward()
        session.observe(loss, samples=8)
        optimizer.step()
        session.checkpoint("checkpoint")
        if session.step == last and wanted == "fail" and tacit.rank() == 1:
            raise ValueError("no such shard")
        if session.step == last and wanted == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        if session.step == last + (wanted == "uneven") * tacit.rank() and wanted in ("end", "uneven"):
            break
finally:
    pathlib.Path(f"finally-{wanted}-{tacit.rank()}").touch()
session.close()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    Path("plain.py").write_text("print('a script without tacit')\n")
    return tmp_path


def probed(folder: Path, *wanted: tuple[str, str]) -> list[Answer]:
    """Probe the script once for each way in which it ends; called in every process."""
    os.chdir(folder)
    return [
        command_line.run("probe", "train.py", "--budget", "10min", "--out", name, "--", name, steps)
        for name, steps in wanted
    ]


@pytest.mark.processes
@pytest.mark.timeout(90)
def test_a_script_is_measured_and_ended(script: Path) -> None:
    [[answer, diverged], [other, _]] = together(2, probed, script, ("run", "5000"), ("diverge", "5000"), timeout_s=80)
    assert (answer.exit_code, other.exit_code, other.output) == (0, 0, "")
    assert answer.output.startswith("probe: 2 workers, 1,476 parameters (5.90 kB), gloo")
    for word in (
        "  steps ",
        "  rounds ",
        "  hooks ",
        "  memory ",
        "  noise ",
        "Wrote the profile to run. Next: tacit ",
    ):
        assert word in answer.output
    assert {path.name for path in script.iterdir()} == {
        "train.py",
        "plain.py",
        "run",
        "diverge",
        *(f"finally-{name}-{rank}" for name in ("run", "diverge") for rank in range(2)),
    }, "finally blocks ran; neither checkpoints nor logs were written"

    profile = library.Profile.load(script / "run")
    assert (profile.workers, profile.strategy, profile.steps, profile.batch) == (2, "KAsync(k=1)", 5000, 8.0)
    assert profile.optimizer == "SGD(lr=0.05, momentum=0.9)"
    assert {"flatten", "divide", "update", "encode TopK", "decode QSGD"} <= profile.costs.keys()
    sizes = sorted(profile.collectives.all_reduce)  # 1 KB; an eighth of the model is like it; the model
    assert (
        sizes[0] < 1_100 and sizes[-1] == pytest.approx(4 * 1476, rel=0.2) and len(profile.collectives.all_gather) > 1
    )
    assert profile.noise_scale is not None and profile.noise_scale > 0
    assert profile.memory_bytes.keys() == profile.peak_memory_bytes.keys() == {0, 1}
    assert not any("Missing" in sentence for sentence in profile.warnings)
    assert read_cluster(script / "run")["workers"] == 2

    assert diverged.exit_code == 0 and "Gradients became NaN or infinite" in " ".join(diverged.output.split())


@pytest.mark.processes
@pytest.mark.timeout(90)
def test_a_probe_that_ends_early_leaves_a_partial_profile(script: Path) -> None:
    ends = ("fail", "70"), ("interrupt", "70"), ("end", "70"), ("uneven", "70")
    [first, second] = together(2, probed, script, *ends, timeout_s=80)
    assert [answer.exit_code for answer in first] == [1, 130, 0, 0]
    assert [answer.exit_code for answer in second] == [1, 130, 0, 0]
    assert 'raise ValueError("no such shard")' in second[0].errors and "runpy" not in second[0].errors
    reasons = {
        "fail": "because the script failed on rank 1 (ValueError: no such shard). Missing: ",
        "interrupt": "because it was interrupted. Missing: ",
        "end": "because the script closed its session after 70 steps. Missing: ",
        "uneven": "because the script closed its session after 70 steps. Missing: ",
    }
    for answer, (name, reason) in zip(first, reasons.items(), strict=True):
        assert reason in " ".join(answer.output.split()), answer.output
        assert f"Wrote the partial profile to {name}." in answer.output
        profile = library.Profile.load(script / name)
        assert profile.warnings[0].startswith(f"The probe ended early, {reason}")
        assert len(profile.compute) == 2
    assert not (script / "rescue").exists() and not (script / "checkpoint").exists()


def test_one_worker_has_steps_alone_and_bad_input_is_explained(
    script: Path, tacit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(script)
    for options, message in {
        ("train.py", "--budget", "0"): "--budget 0 must be positive; 60s is usually enough.",
        ("nothing.py",): "the script nothing.py does not exist",
        ("train.py", "--lr", "0.1"): "--lr cannot be used with a script",
        ("train.py", "--workers", "0"): "--workers 0 must be at least 1.",
    }.items():
        answer = tacit("probe", *options)
        assert answer.exit_code == 2 and message in answer.errors
    Path("old").mkdir()
    Path("old/profile.toml").touch()
    assert "replace its profile with --force" in tacit("probe", "train.py", "--out", "old").errors
    [answers] = together(1, alone, script)
    assert [answer.exit_code for answer in answers] == [0, 2, 0]
    assert "rounds" not in answers[0].output and "probe: 1 worker, 650 parameters" in answers[0].output
    profile = library.Profile.load(script / "one")
    assert (profile.workers, profile.batch, profile.strategy) == (1, 32, "AllReduce()")
    assert "plain.py ended without a call of tacit.attach, so there is nothing to probe" in answers[1].errors
    assert "no profile was written: the probe has step times of 0 of 1 workers" in answers[2].errors


def test_ctrl_c_before_the_first_steps_says_why_nothing_was_written(
    script: Path, tacit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tacit.cli.commands.probe.launch", interrupted)
    answer = tacit("probe", "train.py", "--workers", "2")
    assert answer.exit_code == 130 and "no steps were measured yet" in answer.errors
    assert "Start the probe again and wait for them" in answer.errors
    assert "probe: starts train.py on 2 workers; from tacit.attach on it measures for" in answer.output
    assert tacit("probe", "train.py", "--quiet").output == ""


def alone(folder: Path) -> list[Answer]:
    os.chdir(folder)
    workload = ("--workload", 'digits(model="softmax")', "--out", "one", "--budget", "10min")
    return [
        command_line.run("probe", *workload),
        command_line.run("probe", "plain.py"),
        command_line.run("probe", "train.py", "--", "end", "3"),
    ]
