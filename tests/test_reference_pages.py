"""The pages of docs/reference agree with the program: generated pages are current, tables name every key, file and
field.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from typer.testing import CliRunner

import tacit
from tacit.cli import app, settings
from tacit.record.progress import progress_file
from tests.watch.progress_files import Worker
from tools import reference_pages

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"


def _named(page: str, heading: str) -> set[str]:
    """Return the names in code style in the first column of the tables below a heading, up to the next heading."""
    text = (REFERENCE / page).read_text()
    section = text.split(f"# {heading}\n", 1)[1].split("\n#", 1)[0]
    cells = re.findall(r"^\| (.*?) \|", section, re.M)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_generated_pages_are_current(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["reference_pages.py", "--check"])
    assert reference_pages.main() == 0, capsys.readouterr().out


def test_every_public_name_is_in_the_api_reference() -> None:
    text = (REFERENCE / "api.md").read_text()
    listed = set(re.findall(r"^::: tacit\.(\w+)$", text, re.M))
    modules = {name for name in tacit.__all__ if isinstance(getattr(tacit, name), ModuleType)}
    assert listed == set(tacit.__all__) - modules - {"compare"}
    for module in modules:
        assert f"::: tacit.{module}." in text
    assert "::: tacit.compare.workloads.compare\n" in text  # a package has its name too


def test_toml_page_names_every_key() -> None:
    assert _named("toml.md", "Keys of one run and of a comparison") == {*settings.DEFAULTS, "strategy", "seed"}
    assert _named("toml.md", "Table `[cluster]`") == {field.name for field in dataclasses.fields(tacit.Cluster)}
    assert _named("toml.md", "Table `[train]`") == {*settings._TRAIN_KEYS}


def test_toml_example_is_accepted(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", (REFERENCE / "toml.md").read_text(), re.S)
    assert example is not None
    (tmp_path / "run.toml").write_text(example[1])
    arguments = [
        "--config",
        str(tmp_path / "run.toml"),
        "--steps",
        "3",
        "--timing-only",
        "--out",
        str(tmp_path / "out"),
    ]
    answer = CliRunner().invoke(app, ["simulate", *arguments, "--quiet"])
    assert answer.exit_code == 0, answer.output
    assert tacit.Run.load(tmp_path / "out").config["cluster"]["links"] == {"0,3": "Link(latency_s=0.01)"}


def test_trace_page_names_fields_and_kinds() -> None:
    trace = tacit.Run("", "", 1, 0, 0).trace
    assert _named("trace-format.md", "Fields") == {*trace.columns()}
    assert _named("trace-format.md", "Kinds") == {*sys.modules[type(trace).__module__].KINDS}


def test_run_folder_page_names_files_and_keys(tmp_path: Path) -> None:
    cluster = tacit.Cluster(workers=2, compute=tacit.Recorded(times_s=[0.01 + number / 1e4 for number in range(40)]))
    run = tacit.simulate(tacit.workloads.digits(), tacit.KAsync(k=1), cluster=cluster, steps=2)
    run.save(tmp_path / "run")
    written = {re.sub("^step-times-.*", "step-times-*.txt", path.name) for path in (tmp_path / "run").iterdir()}
    assert written == _named("run-folder.md", "A run") - {"report.html", "checkpoint/", "progress/"}
    described = json.loads((tmp_path / "run" / "run.json").read_text())
    assert {*described} == _named("run-folder.md", "run.json")
    two = tacit.Cluster(workers=2)
    gossip = tacit.simulate(tacit.workloads.digits(), tacit.SwarmSGD(), cluster=two, steps=2, until_loss=0.0)
    named = _named("run-folder.md", "summary")
    assert {*described["summary"]} <= named and {*gossip.summary()} <= named
    assert named == {*described["summary"], *gossip.summary(), "logged", "missing_workers"}
    assert {*gossip.history[-1]} == _named("run-folder.md", "history.json")


def test_progress_page_names_all_keys(tmp_path: Path) -> None:
    worker = Worker(tmp_path, 0, parameter_bytes=396)
    worker.writer.observe(1.0)
    worker.work(1.0, 1, 0.5, 0.1, 10, updates=1, period=2.0)
    worker.writer.evaluated(1, 1.0, {"loss": 1.0})
    worker.writer.end("finished")
    lines = progress_file(tmp_path, 0).read_text().splitlines()
    written = {key for line in lines for key in json.loads(line)}
    section = (REFERENCE / "run-folder.md").read_text().split("### progress\n")[1].split("\n## ")[0]
    assert written <= set(re.findall(r"`([a-z_]+)`", section))


def test_checkpoint_page_names_files_and_keys(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, tacit.AllReduce()) as session:
        session.checkpoint(tmp_path)
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    page = (REFERENCE / "run-folder.md").read_text()
    assert written == {"manifest.json", "step-00000000/rank-0.pt"}
    assert _named("run-folder.md", "A checkpoint") >= {"manifest.json", "step-00000120/rank-0.pt"}
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert all(f"`{key}`" in page for key in manifest)
    shard = torch.load(tmp_path / "step-00000000" / "rank-0.pt", weights_only=True)
    assert {*shard} <= _named("run-folder.md", "A checkpoint")
