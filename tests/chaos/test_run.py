"""Faults that happen to processes, and a whole run of ``tacit chaos``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import tomllib
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

import tacit
from tacit.chaos import ChaosFault, ChaosPlan
from tacit.chaos.injector import Injector
from tacit.chaos.report import not_injected, recovery
from tacit.chaos.run import has_equal_models, last_updates, updates_per_step
from tacit.chaos.small_training import checksum, network
from tests.cli.command_line import run
from tests.runtime.forked_python import forked_python
from tests.runtime.processes import Module


@pytest.fixture
def sleepers(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three processes whose records say that they have attached."""
    running = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    for seat, process in enumerate(running):
        rows = [{"event": "started", "process": process.pid}, {"event": "attached", "step": 0}]
        (tmp_path / f"seat-{seat}-life-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    yield running
    for process in running:
        process.kill()
        process.wait()


def state_of(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def play(injector: Injector, until: object) -> None:
    end_s = time.monotonic() + 20
    while not until() and time.monotonic() < end_s:  # type: ignore[operator]
        time.sleep(min(0.01, injector.poll()))


def test_faults_happen_to_their_processes_and_are_undone(sleepers, tmp_path: Path):
    plan = ChaosPlan(
        workers=3,
        for_s=10.0,
        faults=(
            ChaosFault(kind="kill", seats=(0,), at_s=0.0),
            ChaosFault(kind="stop", seats=(1,), at_s=0.05, for_s=0.3),
            ChaosFault(kind="kill", seats=(0,), at_s=0.1),
            ChaosFault(kind="slow", seats=(2,), at_s=0.15, for_s=5.0, factor=4.0),
        ),
    )
    injector = Injector(plan, tmp_path, None, None)
    injector.start()
    assert sleepers[0].poll() is None
    play(injector, lambda: sleepers[0].poll() is not None)
    assert sleepers[0].returncode == -signal.SIGKILL
    play(injector, lambda: state_of(sleepers[1]) == "T")
    play(injector, lambda: state_of(sleepers[1]) != "T")
    play(injector, lambda: state_of(sleepers[2]) == "T")
    play(injector, lambda: state_of(sleepers[2]) != "T")
    play(injector, lambda: state_of(sleepers[2]) == "T")
    injector.end()
    assert "T" not in [state_of(process) for process in sleepers[1:]]
    hit = [(fault["kind"], fault["seats"], fault["missed"]) for fault in injector.done]
    assert hit == [("kill", [0], []), ("stop", [1], []), ("slow", [2], []), ("kill", [], [0])]


def test_a_fault_waits_for_its_worker_and_until_enough_others_are_there(sleepers, tmp_path: Path):
    """Workers 0 and 2 are killed at once; until one of them is back, nobody else is stopped or killed."""
    plan = ChaosPlan(
        workers=3,
        for_s=30.0,
        faults=(
            ChaosFault(kind="kill", seats=(0, 2), at_s=0.0),
            ChaosFault(kind="slow", seats=(0,), at_s=0.01, for_s=0.1, factor=2.0),
            ChaosFault(kind="slow", seats=(1,), at_s=0.02, for_s=0.1, factor=2.0),
        ),
    )
    kill = ChaosFault(kind="kill", seats=(1,), at_s=0.01)
    injector = Injector(plan, tmp_path, None, None)
    injector.start()
    injector._at(time.monotonic() + 0.01, partial(injector._apply, kill))  # a plan with it would be refused
    play(injector, lambda: len(injector.done) == 2)
    assert [(fault["kind"], fault["seats"]) for fault in injector.done] == [("kill", [0, 2]), ("slow", [1])]
    assert sleepers[1].poll() is None
    with subprocess.Popen(["sleep", "60"]) as process:
        rows = [{"event": "started", "process": process.pid}, {"event": "attached", "step": 0}]
        (tmp_path / "seat-0-life-2.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        play(injector, lambda: len(injector.done) == 4)
        process.kill()
    assert sorted((fault["kind"], fault["seats"]) for fault in injector.done[2:]) == [("kill", [1]), ("slow", [0])]
    assert all(fault["late_s"] > 0 for fault in injector.done)
    injector.end()
    assert len(injector.done) == 4


def test_a_fault_that_had_to_wait_does_not_begin_in_the_last_steps(sleepers, tmp_path: Path):
    """Worker 0 is killed twice; its next life attaches when the run is nearly over. One fault has not had to wait."""
    twice = tuple(ChaosFault(kind="kill", seats=(0,), at_s=at_s) for at_s in (0.0, 0.01))
    plan = ChaosPlan(workers=3, for_s=30.0, faults=twice)
    injector = Injector(plan, tmp_path, None, None, last=100)
    injector.start()
    play(injector, lambda: sleepers[0].poll() is not None and injector._waiting)
    with (tmp_path / "seat-1-life-1.jsonl").open("a") as file:
        file.write(json.dumps({"step": 101, "updates": 101}) + "\n")
    with subprocess.Popen(["sleep", "60"]) as process:
        rows = [{"event": "started", "process": process.pid}, {"event": "attached", "step": 100}]
        (tmp_path / "seat-0-life-2.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        play(injector, lambda: len(injector.done) == 2)
        injector._at(time.monotonic(), partial(injector._apply, ChaosFault(kind="kill", seats=(2,), at_s=0.02)))
        play(injector, lambda: len(injector.done) == 3)
        assert process.poll() is None
        process.kill()
    injector.end()
    assert [(fault["seats"], fault["missed"]) for fault in injector.done] == [([0], []), ([], [0]), ([2], [])]
    assert not_injected(injector.done) == 1


def test_how_many_updates_are_the_last_ones():
    strategy = tacit.KAsync(k=2)
    assert last_updates(strategy, 8, 12_000, 0.02) == 1_200  # a tenth of a short run
    assert last_updates(strategy, 8, 100_000, 0.02) == 1_600  # eight seconds, four updates in 0.02 s


@pytest.mark.slow
def test_a_run_with_a_stopped_worker_is_reported(tmp_path: Path):
    plan = ChaosPlan(workers=3, for_s=3.0, faults=(ChaosFault(kind="stop", seats=(2,), at_s=0.5, for_s=0.8),))
    plan.write(tmp_path / "plan.toml")
    words = ("chaos", str(tmp_path / "plan.toml"), "-s", "LocalSGD(period=Every(4))", "--out", str(tmp_path / "out"))
    with forked_python(tmp_path) as python, Module("tacit", *words, "--no-undisturbed", python=python) as command:
        code, output, errors = command.end(90)
    assert code == 0, output + errors
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    [fault] = report["faults"]
    assert fault["seats"] == [2] and fault["recovery_s"] >= 0.7 and fault["others_stalled"] == 2
    assert report["rounds_compared"] > 20 and report["unequal_rounds"] == [] and report["final_models"] == 1
    assert report["finished_seats"] == [0, 1, 2] and report["left_processes"] == 0
    assert "| 1 stop of 2 at 0.5 s for 0.8 s |" in (tmp_path / "out" / "report.md").read_text()
    simulated = tomllib.loads((tmp_path / "out" / "simulator.toml").read_text())
    faults = ["Pause(rank=2, at_s=0.5, for_s=0.8)"]
    assert simulated["cluster"] == {"workers": 3, "min_workers": plan.min_workers, "faults": faults}
    assert ChaosPlan.read(tmp_path / "out" / "plan.toml") == plan


@pytest.mark.slow
def test_a_signal_during_the_undisturbed_run_leaves_the_report(tmp_path: Path):
    ChaosPlan(workers=2, for_s=1.0).write(tmp_path / "plan.toml")
    out = tmp_path / "out"
    words = ("chaos", str(tmp_path / "plan.toml"), "-s", "AllReduce()", "--out", str(out))
    with forked_python(tmp_path) as python, Module("tacit", *words, python=python) as command:
        until_s = time.monotonic() + 60
        while not (out / "undisturbed" / "records").exists() and time.monotonic() < until_s:
            time.sleep(0.01)
        os.kill(command.pid, signal.SIGTERM)
        code, _, errors = command.end(60)
    assert code != 0 and "Traceback" not in errors
    assert json.loads((out / "report.json").read_text())["finished_seats"] == [0, 1]
    assert "of the same run without faults: not measured" in (out / "report.md").read_text()


def test_what_the_command_refuses(tmp_path: Path):
    words = {
        ("--kinds", "kill,flood"): "flood is unknown; known kinds are kill, stop, slow, cut, fill",
        ("--kinds", ""): "--kinds '' names no kind; give one or more of kill, stop, slow, cut, fill",
        ("-s", "KSync(k=9)", "--workers", "4", "--draw-only"): "k=9 is more learners than workers=4; use k=4",
        ("-s", "KAsync(k=1, shards=3)", "--workers", "2", "--draw-only"): "shards=3 must be at most workers=2",
        ("never.py",): "give a plan of faults (PLAN.toml) or none, and the strategy with -s. To start a script, type",
        ("--interval", "0"): "--interval 0.0 must be a positive time in seconds.",
        (str(tmp_path / "none.toml"),): "cannot be read: No such file",
    }
    for given, message in words.items():
        answer = run("chaos", *given, "--out", str(tmp_path / "out"))
        assert answer.exit_code == 2 and message in answer.errors, (given, answer)
    assert not (tmp_path / "out").exists()


def test_the_checksum_of_a_model_is_that_of_its_bytes(monkeypatch: pytest.MonkeyPatch):
    """torchft's environment has no NumPy, so ``Tensor.numpy`` raises there."""
    model = network(8)
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().tobytes()
    monkeypatch.setattr(torch.Tensor, "numpy", None)
    assert checksum(model) == zlib.crc32(flat)
    with torch.no_grad():
        next(model.parameters()).view(-1)[3] += 1e-3
    assert checksum(model) != zlib.crc32(flat)


def test_recovery_by_kind_counts_only_faults_that_hit_somebody():
    faults = [
        {"kind": "kill", "seats": [1], "recovery_s": 0.2, "return_s": 3.0},
        {"kind": "kill", "seats": [2], "recovery_s": 0.4, "return_s": None},
        {"kind": "kill", "seats": [], "recovery_s": 9.0},
    ]
    assert recovery(faults) == {
        "kill": {"count": 2, "median": pytest.approx(0.3), "worst": 0.4, "return_median": 3.0, "return_worst": 3.0}
    }


def test_which_strategies_have_equal_models_and_how_many_updates_a_step_makes():
    assert has_equal_models(tacit.AllReduce()) and has_equal_models(tacit.LocalSGD(period=tacit.Every(4)))
    assert not has_equal_models(tacit.LocalSGD(period=tacit.Every(4), overlap_steps=2))
    assert not has_equal_models(tacit.SwarmSGD()) and not has_equal_models(tacit.KAsync(k=1))
    assert updates_per_step(tacit.KAsync(k=2), 8) == 4 and updates_per_step(tacit.KSync(k=2), 8) == 1
    assert updates_per_step(tacit.AllReduce(), 8) == 1
