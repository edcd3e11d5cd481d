"""The command as a process of its own: exit codes, interruption, and output that a log can hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tacit import Run

COMPARE = (sys.executable, "-m", "tacit.cli", "compare", "--workload", "quadratic(dimension=5)", "--workers", "4")


def _hear_ctrl_c() -> None:
    """A shell makes what it starts in the background deaf to Ctrl-C, and so all that is started from there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_saves_what_there_is_and_ends_with_130(tmp_path: Path) -> None:
    out = tmp_path / "here"
    options = ("--steps", "400", "--seeds", "500", "--out", str(out))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*COMPARE, *options], preexec_fn=_hear_ctrl_c, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("1/2000  AllReduce() · seed 0: loss ")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"interrupted; finished runs are saved. tacit compare --resume {out} continues." in errors
    assert "Traceback" not in errors
    assert (out / "report.html").exists()
    assert Run.load(out / "runs" / "AllReduce-0").status == "finished"


def test_a_log_holds_no_control_characters(tmp_path: Path) -> None:
    options = ("--steps", "4", "--out", "here", "--strategy", "AllReduce")
    environment = {**os.environ, "TERM": "xterm-256color"}
    done = subprocess.run([*COMPARE, *options], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert all(character.isprintable() or character == "\n" for character in done.stdout)
    assert "1/1  AllReduce() · seed 0: loss " in done.stdout


def test_bad_input_ends_with_2(tmp_path: Path) -> None:
    done = subprocess.run([*COMPARE, "-s", "LocalSDG"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown strategy 'LocalSDG'; did you mean 'LocalSGD'?\n"
