"""Bad input ends with code 2 and one message that shows the way out; nothing is computed, nothing is overwritten."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from tacit.cli.exit_messages import describe
from tacit.errors import TacitError
from tests.cli.command_line import Command

CASES = [
    (("-s", "LocalSDG"), "unknown strategy 'LocalSDG'; did you mean 'LocalSGD'?"),
    (
        ("-s", "LocalSGD(period=Every(0))"),
        "period=0 must be a whole number, at least 1; to average after every step use",
    ),
    (("-s", "AllReduce", "-s", "all-reduce"), "contains AllReduce() twice"),
    (("--workload", "digit"), "unknown workload 'digit'; did you mean 'digits'?"),
    (("--workers", "0"), "workers=0 must be a whole number, at least 1."),
    (("--steps", "0"), "steps=0 must be a whole number, at least 1."),
    (("--lr", "-1"), "lr=-1.0 must be positive."),
    (("--speed", "3"), "speed='3' must be RANK=FACTOR; 3=0.33 runs worker 3 at a third of the speed."),
    (("--speed", "99=1"), "speed names worker 99, but workers=2 have ranks 0 to 1."),
    (("--latency", "fast"), "'fast' must be a time such as 0.1ms, 20us or 1.5s."),
    (("--bandwidth", "1parsec"), "'1parsec' must be a rate such as 1Gbit/s, 100MB/s or 125e6 (bytes per second)."),
    (("--seeds", "x"), "seeds='x' must be a number of seeds (3) or a list of seeds (4,7,9)."),
    (("--seeds", "0"), "seeds=[] is empty"),
    (("--seeds", "2", "--seed", "1"), "--seeds and --seed cannot be combined"),
    (("--fault", "Crash(rank=1)"), "Crash needs at_s; its arguments are rank (required), at_s (required), for_s=inf."),
    (("--schedule", "Cosine(final=2)"), "final=2 must lie between 0 and 1."),
    (("--optimizer", "sdg"), "did you mean 'sgd'?"),
    (("--engine", "vmpa"), "did you mean 'vmap'?"),
    (("--threads", "0"), "threads=0 must be at least 1."),
    (("--device", "gpu"), "device='gpu' must be a device of torch; write cpu, cuda or cuda:1."),
    (("-s", "KAsync(2)"), "KAsync takes no argument without its name; write KAsync(k=2)."),
    (("-s", "ADPSG"), "unknown strategy 'ADPSG'; did you mean 'ADPSGD'?"),
    (("--config", "absent.toml"), "--config absent.toml cannot be read: No such file or directory; give the path"),
    (("--json", "absent/numbers.json"), "the folder absent is not writable: No such file or directory"),
    (("--json", "."), ". must be a file, and it is a folder; give the name of a file."),
    (("--out", "/dev/null"), "the folder /dev/null exists and is not empty; it is a file; choose another --out."),
    (
        ("--out", "/proc/here"),
        "the folder /proc/here cannot be created: No such file or directory; choose another --out.",
    ),
]


@pytest.mark.parametrize(("options", "message"), CASES, ids=[" ".join(options) for options, _ in CASES])
def test_bad_options_are_answered(tiny: Command, options: tuple[str, ...], message: str) -> None:
    answer = tiny("compare", *options)
    assert answer.exit_code == 2
    assert message in answer.errors
    assert "Traceback" not in answer.errors
    assert not list(Path().glob("**/run.json"))


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("stesp = 3", "mine.toml: unknown key 'stesp'; did you mean 'steps'?"),
        ("[cluster]\nworkres = 3", "mine.toml, table [cluster]: unknown key 'workres'; did you mean 'workers'?"),
        ("cluster = 3", "cluster=3 must be a table"),
        ("steps = 'many'", "steps='many' must be a whole number."),
        ("steps = true", "steps=True must be a whole number."),
        ("strategies = 'AllReduce'", "strategies='AllReduce' must be a list."),
        ("strategies = [8]", "strategies=8 must be a text such as 'LocalSGD(period=Every(8))'."),
        ("[cluster]\nspeed = {three = 0.5}", "'three' is not a rank"),
        ("[cluster]\nlinks = {'0' = 'Link()'}", 'such as "0,3"'),
        ("steps = = 3", "mine.toml is not TOML: Invalid value (at line 1, column 9)."),
    ],
)
def test_bad_files_are_answered(tacit: Command, toml: str, message: str) -> None:
    Path("mine.toml").write_text(toml)
    answer = tacit("compare", "--config", "mine.toml")
    assert answer.exit_code == 2
    assert message in answer.errors


def test_a_folder_that_holds_something_is_refused_before_anything_runs(tiny: Command) -> None:
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("years of work")
    answer = tiny("compare", "--out", "full")
    assert answer.exit_code == 2
    assert answer.output == ""
    assert (
        "the folder full exists and is not empty; choose another --out, or replace its results with --force"
        in answer.errors
    )
    assert [path.name for path in Path("full").iterdir()] == ["thesis.tex"]


def test_what_turns_out_to_be_wrong_at_the_start_of_the_run_leaves_no_folder(tiny: Command) -> None:
    answer = tiny("simulate", "--strategy", "KSync(k=99)", "--out", "folder")
    assert answer.exit_code == 2 and "k=99 is more learners than workers=2" in answer.errors
    assert not Path("folder").exists()


def test_debug_shows_the_traceback(tiny: Command) -> None:
    with pytest.raises(ValueError, match="unknown strategy"):
        tiny("compare", "-s", "LocalSDG", "--debug")


def test_a_full_disk_is_called_so() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/out/trace.npz")
    wrapped = TacitError("could not write")
    wrapped.__cause__ = full
    for error in (full, wrapped):
        assert describe(error).startswith("the disk is full (/out/trace.npz); free some space, or choose --out")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("command", ["compare", "simulate", "train"])
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_device_that_is_not_there_is_said_in_a_line(tiny: Command, command: str, device: str) -> None:
    answer = tiny(command, "--device", device)
    assert answer.exit_code == 2
    assert f"device='{device}': torch finds no GPU on this machine; leave out --device to use the CPU." in answer.errors
    assert not Path("runs").exists()
