"""The examples do what their first lines say, in small. Two launches of torchrun."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tacit import Run

EXAMPLES = Path(__file__).parents[1] / "examples"
ALONE = (sys.executable,)
TWO = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
TINY_GPT = (
    "--context",
    "16",
    "--width",
    "16",
    "--layers",
    "1",
    "--batch",
    "4",
    "--period",
    "3",
    "--evaluate-every",
    "4",
)


def run(command: tuple[str, ...], example: str, *arguments: str, timeout_s: float = 100) -> str:
    """Return what an example prints."""
    line = [*command, str(EXAMPLES / example), *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("command", "workers", "rounds"), [(ALONE, 1, 0), (TWO, 2, 5)], ids=["alone", "two"])
def test_digits(command: tuple[str, ...], workers: int, rounds: int) -> None:
    printed = run(command, "train_digits.py", "--steps", "40")
    found = re.fullmatch(r"(\d) workers, (\d+) rounds: accuracy (0\.\d+) on held-out digits\n", printed)
    assert found is not None, printed
    assert (int(found[1]), int(found[2])) == (workers, rounds)
    assert float(found[3]) > 0.5, "guessing would get one in ten"


def test_gpt_with_two_workers_goes_on_with_one(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Wovon man nicht sprechen kann, darüber muss man schweigen. " * 40, encoding="utf-8")
    options = ("--data", str(text), *TINY_GPT, "--checkpoint-every", "4")
    printed = run(TWO, "train_gpt.py", *options, "--steps", "8", "--checkpoints", str(tmp_path / "kept"), "--bf16")
    assert "step 8: validation loss " in printed
    assert "2 workers, 8 steps, 3 rounds" in printed
    printed = run(ALONE, "train_gpt.py", *options, "--steps", "12", "--resume", str(tmp_path / "kept"))
    assert "step 8:" not in printed and "step 12: validation loss " in printed
    assert "1 workers, 12 steps" in printed


def test_the_slurm_script_is_bash() -> None:
    subprocess.run(["bash", "-n", str(EXAMPLES / "slurm.sh")], check=True, timeout=20)


@pytest.mark.timeout(400)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='needs Ray: pip install "tacit[ray]"')
def test_ray(tmp_path: Path) -> None:
    options = ("--steps", "40", "--out", str(tmp_path / "run"), "--storage", str(tmp_path / "ray"))
    run(ALONE, "ray_train.py", *options, timeout_s=300)
    made = Run.load(tmp_path / "run")
    assert (made.workers, made.status, made.summary()["rounds"]) == (2, "finished", 5)
