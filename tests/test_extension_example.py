"""The example package, copied out of the repository, through the commands of its README. One launch of processes."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import tacit
from tacit.cli import app
from tacit.registry import FAMILIES, find

EXAMPLE = Path(__file__).parents[1] / "examples" / "extension"
STRATEGY = "my_package.strategy:RingAverage(period=my_package.period:Doubling(first=2))"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a copy of the example, which is not on the path."""
    copy = tmp_path / "elsewhere"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    monkeypatch.chdir(copy)
    monkeypatch.setattr(sys, "path", list(filter(None, sys.path)))
    yield copy
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def run(line: str, python: Path) -> str:
    """Return what a command prints; real processes are started by the installed command, which ``python`` runs."""
    arguments = shlex.split(line)[1:]
    if arguments[0] == "train":
        installed = [str(python), str(Path(sys.executable).with_name("tacit")), *arguments]
        done = subprocess.run(installed, capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout
    jobs = ["--jobs", "1"] if arguments[0] == "compare" else []  # in this process
    answer = CliRunner().invoke(app, [*arguments, *jobs], prog_name="tacit")
    assert answer.exit_code == 0, answer.stderr
    return answer.stdout


def test_the_commands_of_the_readme(folder: Path, python: Path) -> None:
    block = re.search(r"```sh\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert block is not None
    lines = block[1].replace("\\\n", " ").splitlines()
    printed = {shlex.split(line)[1]: run(line, python) for line in lines}
    assert list(printed) == ["list", "simulate", "compare", "train", "replay"]
    assert "average the own model with that of the previous rank" in " ".join(printed["list"].split())
    assert printed["compare"].count("my_package.") >= 3
    assert (
        "names modules outside tacit, which are imported: my_package.strategy, my_package.period." in printed["replay"]
    )

    simulated, real, replayed = (tacit.Run.load(f"runs/{name}") for name in ("simulated", "real", "replayed"))
    assert simulated.strategy == real.strategy == replayed.strategy == STRATEGY
    assert real.record["world"] == "processes" and real.workers == 2
    torch.testing.assert_close(replayed.parameters, real.parameters, rtol=1e-9, atol=1e-9)
    assert tomllib.loads(Path("runs/real/run.toml").read_text())["strategy"] == STRATEGY

    run("tacit simulate --config runs/simulated/run.toml --out runs/again", python)
    assert tacit.Run.load("runs/again").digest == simulated.digest
    resumed = run("tacit compare --resume runs/compared --seeds 2", python)
    assert "which are imported: my_package.strategy" in resumed
    assert len(list(Path("runs/compared/runs").iterdir())) == 8


def test_the_checks_of_the_example_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    module = importlib.import_module("test_my_package")
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()


def test_the_entry_points_of_the_example_name_its_classes(folder: Path) -> None:
    groups = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    assert sorted(groups) == ["tacit.compressors", "tacit.periods", "tacit.strategies"]
    for group, entries in groups.items():
        for name, reference in entries.items():
            named = find(reference, group.removeprefix("tacit."))
            assert named.constructor.__name__ == name and name not in FAMILIES[named.family].members


def test_the_readme_is_short() -> None:
    assert len((EXAMPLE / "README.md").read_text().splitlines()) <= 40
