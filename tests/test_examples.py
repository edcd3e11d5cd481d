"""The examples do what their first lines say, in small, on forked processes with the variables that torchrun sets."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tacit import Run
from tests.runtime.processes import run_script, run_script_alone, together

EXAMPLES = Path(__file__).parents[1] / "examples"
TINY_GPT = shlex.split("--context 16 --width 16 --layers 1 --batch 4 --period 3 --evaluate-every 4")


def run(workers: int, example: str, *arguments: str) -> str:
    """Return what an example prints on ``workers`` processes; one process is started as if by hand."""
    function = run_script_alone if workers == 1 else run_script
    return "".join(together(workers, function, str(EXAMPLES / example), *arguments, timeout_s=100))


@pytest.mark.parametrize(("workers", "rounds"), [(1, 0), (2, 5)], ids=["alone", "two"])
def test_digits(workers: int, rounds: int) -> None:
    printed = run(workers, "train_digits.py", "--steps", "40")
    found = re.fullmatch(rf"{workers} workers, {rounds} rounds: accuracy (0\.\d+) on held-out digits\n", printed)
    assert found is not None, printed
    assert float(found[1]) > 0.5, "guessing would get one in ten"


def test_gpt_with_two_workers_goes_on_with_one(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Wovon man nicht sprechen kann, darüber muss man schweigen. " * 40, encoding="utf-8")
    options = ("--data", str(text), *TINY_GPT, "--checkpoint-every", "4")
    kept = str(tmp_path / "kept")
    printed = run(2, "train_gpt.py", *options, "--steps", "8", "--checkpoints", kept, "--bf16")
    assert "step 8: validation loss " in printed
    assert "2 workers, 8 steps, 3 rounds" in printed
    printed = run(1, "train_gpt.py", *options, "--steps", "12", "--resume", kept)
    assert "step 8:" not in printed and "step 12: validation loss " in printed
    assert "1 workers, 12 steps" in printed


def test_the_slurm_script_is_bash() -> None:
    subprocess.run(["bash", "-n", str(EXAMPLES / "slurm.sh")], check=True, timeout=20)


@pytest.mark.timeout(400)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='needs Ray: pip install "tacit[ray]"')
def test_ray(tmp_path: Path) -> None:
    options = ("--steps", "40", "--out", str(tmp_path / "run"), "--storage", str(tmp_path / "ray"))
    command = [sys.executable, str(EXAMPLES / "ray_train.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    made = Run.load(tmp_path / "run")
    assert (made.workers, made.status, made.summary()["rounds"]) == (2, "finished", 5)
