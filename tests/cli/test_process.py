"""The command as a process of its own: exit codes, interruption, and output that a log can hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tacit import Run
from tests.runtime.processes import Module

COMPARE = ("tacit.cli", "compare", "--workload", "quadratic(dimension=5)", "--workers", "4")


def test_ctrl_c_saves_what_there_is_and_ends_with_130(tmp_path: Path) -> None:
    out = tmp_path / "here"
    options = ("--steps", "400", "--seeds", "500", "--jobs", "2", "--out", str(out))
    with Module(*COMPARE, *options) as process:
        assert process.output.readline().startswith("1/2000  ")
        os.kill(process.pid, signal.SIGINT)
        code, _, errors = process.end(timeout_s=60)
    assert code == 130, errors
    assert f"interrupted; finished runs are saved. tacit compare --resume {out} continues." in errors
    assert "Traceback" not in errors
    assert (out / "report.html").exists()
    statuses = [Run.load(folder).status for folder in (out / "runs").iterdir()]
    assert "finished" in statuses and set(statuses) <= {"finished", "interrupted"}


def test_a_log_holds_no_control_characters(tmp_path: Path) -> None:
    options = ("--steps", "4", "--out", "here", "--strategy", "AllReduce")
    with Module(*COMPARE, *options, folder=tmp_path, TERM="xterm-256color") as process:
        code, output, errors = process.end(timeout_s=60)
    assert code == 0, errors
    assert all(character.isprintable() or character == "\n" for character in output)
    assert "1/1  AllReduce() · seed 0: loss " in output


def test_bad_input_ends_with_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", *COMPARE, "-s", "LocalSDG"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown strategy 'LocalSDG'; did you mean 'LocalSGD'?\n"
