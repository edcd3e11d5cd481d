"""``tacit train``: real processes from the command line.

Three launches: a run, a run that loses a worker, the same run resumed.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
import tomllib
from pathlib import Path

import pytest
import torch

from tacit import Run
from tacit.cli.commands.train_worker import _end_in_round
from tacit.cli.settings import Table, renamed_value_notes, train_settings
from tests.cli.command_line import Command
from tests.runtime.processes import Module

TRAIN = ("tacit", "train")
LONGEST_S = 100  # of one launch; most of it is importing torch


def test_a_simulated_run_becomes_real_and_is_predicted_again(tacit: Command, python: Path) -> None:
    options = ("--workload", "quadratic(dimension=5)", "--lr", "0.05", "--steps", "12", "--seed", "3", "--workers", "2")
    cluster = ("--latency", "2ms", "--strategy", "LocalSGD(period=Every(5))")
    assert tacit("simulate", *options, *cluster, "--out", "simulated").exit_code == 0
    options = ("--config", "simulated/run.toml", "--out", "real", "--json", "real.json", "--timeout", "50s")
    with Module(*TRAIN, *options, python=python) as process:
        code, shown, errors = process.end(LONGEST_S)
    assert (code, errors) == (0, "")
    assert "latency_s, bandwidth_bytes_per_s" in shown and "of [cluster] are settings of the simulator" in shown
    assert "status      finished" in shown and "(virtual)" not in shown
    assert "Report: real/report.html · run again: tacit train --config real/run.toml" in shown

    real, simulated = Run.load("real"), Run.load("simulated")
    torch.testing.assert_close(real.parameters, simulated.parameters, rtol=1e-12, atol=1e-12)
    for name in ("steps", "rounds", "bytes_sent"):
        assert real.summary()[name] == simulated.summary()[name]
    assert real.record["world"] == "processes" and real.cluster == "2 processes on one machine"
    assert json.loads(Path("real.json").read_text())["summary"] == real.summary()
    settings = tomllib.loads(Path("real/run.toml").read_text())
    assert settings["cluster"]["latency_s"] == 0.002 and settings["train"] == {"timeout_s": 50.0}

    assert tacit("simulate", "--config", "real/run.toml", "--out", "again").exit_code == 0
    assert Run.load("again").digest == simulated.digest
    assert tacit("simulate", "--config", "real/run.toml", "--cluster", "real", "--out", "predicted").exit_code == 0
    predicted = tomllib.loads(Path("predicted/run.toml").read_text())["cluster"]
    assert [text[:18] for text in predicted["compute"]] == ["Recorded(times_s=["] * 2 and predicted["workers"] == 2
    assert tacit("simulate", "--config", "predicted/run.toml", "--out", "repeated").exit_code == 0
    assert Run.load("predicted").digest == Run.load("repeated").digest
    answer = tacit("report", "real", "predicted", "--out", "both.html")
    assert answer.exit_code == 0, answer.errors
    assert "LocalSGD(period=Every(5)) measured" in answer.output
    assert "LocalSGD(period=Every(5)) simulated" in answer.output
    assert "LocalSGD(period=Every(5)): predicted " in answer.output and " % off." in answer.output
    assert "did not use the step times" not in answer.output
    assert "did not use the step times" in " ".join(
        tacit("report", "real", "again", "--out", "old.html").output.split()
    )

    for more, message in ((), "give a larger --steps"), (("--steps", "99"), "without a checkpoint to continue"):
        answer = tacit("train", "--resume", "real", *more)
        assert (answer.exit_code, message in answer.errors) == (2, True)


@pytest.mark.timeout(3 * LONGEST_S)
def test_a_lost_worker_is_named_and_its_run_goes_on(tmp_path: Path, tacit: Command, python: Path) -> None:
    out, manifest = tmp_path / "run", tmp_path / "run" / "checkpoint" / "manifest.json"
    options = ("--workload", "quadratic(dimension=5)", "--strategy", "LocalSGD(period=Every(4))", "--lr", "1e-3")
    options += ("--steps", "10000000", "--evaluate-every", "10000000", "--checkpoint-every", "200", "--out", str(out))
    with Module(*TRAIN, *options, "--workers", "2", python=python) as process:
        until = time.monotonic() + LONGEST_S
        while not manifest.exists() and process.exit_code is None and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(worker_of(process.pid, rank=1), signal.SIGKILL)
        code, shown, errors = process.end(LONGEST_S)
    assert code == 1, errors
    assert "error: worker 1 was lost after" in errors and "Worker 1 was killed by SIGKILL" in errors
    assert f"tacit train --resume {out} continues from its checkpoint of step" in errors
    assert "Traceback" not in errors and "torch" not in errors and errors.count("error:") == 1
    assert "status      failed: worker 1 was lost" in shown
    rescued = json.loads(manifest.read_text())
    assert rescued["ranks"] == [0] and rescued["place"].endswith(".rescued")
    lost = Run.load(out)
    assert lost.status.startswith("failed: worker 1 was lost")
    assert lost.summary()["missing_workers"] == lost.missing_workers == [1]
    missing = "The numbers of worker 1 of 2 are missing"
    assert missing in shown and missing in (out / "report.html").read_text()
    assert missing in " ".join(tacit("report", str(out), "--out", str(tmp_path / "page.html")).output.split())

    before, too_few = (out / "run.toml").read_text(), rescued["step"] - 1
    answer = tacit("train", "--resume", str(out), "--steps", str(too_few))
    assert answer.exit_code == 2
    assert (
        f"--steps {too_few} must be at least {rescued['step']:,}, the step of the checkpoint in {out}" in answer.errors
    )
    assert f"tacit train --config {out / 'run.toml'} --steps {too_few} --out FOLDER" in answer.errors
    assert (out / "run.toml").read_text() == before

    steps = rescued["step"] + 10
    extended = ("--resume", str(out), "--steps", str(steps), "--evaluate-every", "5", "--quiet")
    with Module(*TRAIN, *extended, python=python) as process:
        assert process.end(LONGEST_S) == (0, "", "")
    run = Run.load(out)
    assert run.status == "finished" and run.workers == 2
    assert run.history[0]["step"] == 0, "what was measured before the loss is kept"
    assert run.history[-1]["step"] == steps
    assert min(event.step for event in run.trace.of("compute")) == rescued["step"] + 1, "no step is taken twice"

    answer = tacit("train", "--resume", str(out), "--steps", str(steps + 10), "--lr", "0.5", "--strategy", "AllReduce")
    assert answer.exit_code == 2
    kept = f"the run in {out} is finished after {steps} steps, and an extension must keep its settings"
    assert f"{kept}: strategy='AllReduce()' instead of" in answer.errors
    assert "change only --steps and --workers" in answer.errors
    assert Run.load(out).digest == run.digest


@pytest.mark.timeout(2 * LONGEST_S)
def test_an_interrupted_run_has_the_numbers_of_all_workers(tmp_path: Path, tacit: Command, python: Path) -> None:
    out = tmp_path / "run"
    options = ("--workload", "quadratic(dimension=5)", "--strategy", "LocalSGD(period=Every(4))", "--lr", "1e-3")
    options += ("--steps", "10000000", "--evaluate-every", "10000000", "--checkpoint-every", "200", "--out", str(out))
    with Module(*TRAIN, *options, "--workers", "2", python=python) as process:
        until = time.monotonic() + LONGEST_S
        while not (out / "checkpoint" / "manifest.json").exists() and time.monotonic() < until:
            assert process.exit_code is None, process.end(1.0)
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        code, shown, errors = process.end(LONGEST_S)
    assert code == 130, errors
    assert "status      interrupted" in shown and "missing" not in shown
    run = Run.load(out)
    summary = run.summary()
    assert run.missing_workers == [] and "missing_workers" not in summary
    assert summary["gradients"] == 2 * summary["steps"]
    computed = {rank: int(max(e.step for e in run.trace.of("compute") if e.rank == rank)) for rank in (0, 1)}
    assert computed == {0: summary["steps"], 1: summary["steps"]}
    by_rank = [sum(e.size_bytes for e in run.trace.of("exchange") if e.rank == rank) for rank in (0, 1)]
    assert by_rank[0] == by_rank[1] > 0 and summary["bytes_sent"] == sum(by_rank)
    assert set(run.record["cores"]) == {"0", "1"}
    logs = {path.name: path.read_text() for path in (out / "logs").iterdir()}
    assert set(logs) == {"worker-0.txt", "worker-1.txt"}
    assert "worker 1 ended with exit code 130" in logs["worker-1.txt"]


def worker_of(parent: int, rank: int) -> int:
    """Return the process that ``parent`` started as ``rank``."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return next(
        int(c) for c in children if f"RANK={rank}".encode() in Path(f"/proc/{c}/environ").read_bytes().split(b"\0")
    )


def test_ctrl_c_ends_a_worker_as_a_scheduler_does_and_only_once() -> None:
    before, asked = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}, []
    try:
        signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
        signal.signal(signal.SIGINT, _end_in_round)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert asked == [signal.SIGTERM]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # no session yet, and nothing to lose
        signal.signal(signal.SIGINT, _end_in_round)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-s", "LocalSDG"), "unknown strategy 'LocalSDG'; did you mean 'LocalSGD'?"),
        (("--workers", "0"), "workers=0 must be a whole number, at least 1."),
        (("--checkpoint-every", "-1"), "checkpoint_every=-1 must be at least 1; leave it out for no checkpoints."),
        (("--timeout", "soon"), "'soon' must be a time such as 0.1ms, 20us or 1.5s."),
        (("--device", "cuda"), "device='cuda': torch finds no GPU on this machine; leave out --device to use the CPU."),
        (("--resume", "absent"), "--resume absent must hold a run, and it has no run.toml; give a folder"),
        (
            ("--resume", "absent", "--out", "here"),
            "--resume already names the folder; leave out --out, --config and --force.",
        ),
        (
            ("-s", "KAsync(k=1)", "--server", "remote"),
            "--server remote needs --host ADDRESS, at which the server's machine",
        ),
        (("--min-workers", "3"), "--min-workers 3 must be from 1 to 2, the number of workers."),
        (("--max-restarts", "-1"), "--max-restarts -1 must be at least 0."),
        (("--max-restarts", "1", "--print-command"), "--max-restarts is an option of the launcher; leave it out"),
        (("--nodes", "2"), "--nodes 2 needs --print-command; run the command that it prints on each machine."),
        (
            ("--workers", "3", "--nodes", "2", "--print-command"),
            "--workers 3 must be a multiple of --nodes 2; every machine",
        ),
        (("--config", "mine.toml"), "mine.toml, table [train]: unknown key 'securty'; did you mean 'security'?"),
        (("--json", "absent/numbers.json"), "the folder absent is not writable: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_starts_nothing(tacit: Command, options: tuple[str, ...], message: str) -> None:
    if torch.cuda.is_available() and "cuda" in options:
        pytest.skip("there is a GPU here")
    Path("mine.toml").write_text('[train]\nsecurty = "plain"\n')
    answer = tacit("train", *options)
    assert answer.exit_code == 2
    assert message in answer.errors
    assert "Traceback" not in answer.errors
    assert not Path("runs").exists()


def test_a_folder_that_holds_something_is_refused(tacit: Command) -> None:
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("years of work")
    answer = tacit("train", "--out", "full")
    assert answer.exit_code == 2
    assert (
        "the folder full exists and is not empty; choose another --out, or replace its results with --force"
        in answer.errors
    )
    answer = tacit("train", "--out", "full", "--force")
    assert answer.exit_code == 2
    assert "--force replaces only results of tacit, and the folder also holds thesis.tex" in answer.errors


def test_the_line_for_several_machines(tacit: Command) -> None:
    options = (
        "-s",
        "LocalSGD(period=Every(8))",
        "--workers",
        "4",
        "--timeout",
        "10min",
        "--out",
        "runs/two",
        "--quiet",
    )
    answer = tacit("train", *options, "--nodes", "2", "--print-command")
    assert answer.exit_code == 0, answer.errors
    words = shlex.split(answer.output)
    assert words[:3] == ["torchrun", "--nnodes", "2"]
    assert words[words.index("--nproc-per-node") + 1] == "2"
    assert words[words.index("-m") + 1 :] == [
        "tacit",
        "train",
        "--strategy",
        "LocalSGD(period=Every(8))",
        "--timeout",
        "10min",
        "--out",
        "runs/two",
        "--quiet",
    ]
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--workers", "3", "--out", "here"),
            "--workers 3 must be the number of processes, and torchrun started 2; leave out --workers.",
        ),
        ((), "under torchrun all processes must use the same folder; give --out FOLDER or --resume FOLDER."),
    ],
    ids=["workers", "folder"],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_under_torchrun_one_rank_speaks_for_all(
    tacit: Command, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str, rank: int
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "error.json")
    answer = tacit("train", *options)
    assert answer.exit_code == 2
    assert (message in answer.errors) == (rank == 0)
    assert json.loads(Path("error.json").read_text())["message"]["message"] == message


def test_old_values_of_server_are_read_and_noted() -> None:
    for old, new in (("beside", "rank0"), ("apart", "process"), ("elsewhere", "remote")):
        tables: list[Table] = [{}, {"train": {"server": old}}]
        assert train_settings(*tables) == {"server": new}
        assert renamed_value_notes(*tables) == [
            f"server={old} is deprecated and will be removed in version 0.3; use server={new}."
        ]
        assert renamed_value_notes({"train": {"server": new}}) == []
    with pytest.raises(ValueError, match="server='rank1' must be one of rank0, process, remote; did you mean 'rank0'"):
        train_settings({"train": {"server": "rank1"}})
