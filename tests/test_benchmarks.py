"""Every part of the papers' benchmarks runs to its end in its quick form: the verdicts mean nothing there, a traceback
would.
"""

from __future__ import annotations

import bz2
import json
import runpy
import signal
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import tacit
from benchmarks.papers.__main__ import SHARED

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
PAPERS = BENCHMARKS / "papers"

SCRIPTS = {path.stem: path for path in sorted(PAPERS.glob("[!_]*.py")) if path.stem not in SHARED}
PARTS = [(name, part) for name in SCRIPTS for part in import_module(f"benchmarks.papers.{name}").PARTS]


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder like the real one, with small files of drawn samples in place of LIBSVM's and MNIST's."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    features = rng.random((256, 12)) < 0.3
    features[0] = True  # every column occurs
    labels = np.where(features @ rng.standard_normal(12) + rng.standard_normal(256) > 0, "+1", "-1")
    lines = [
        f"{label} {' '.join(f'{column + 1}:1' for column in np.flatnonzero(row))}"
        for label, row in zip(labels, features, strict=True)
    ]
    (folder / "libsvm").mkdir()
    for name in ("a9a", "mushrooms"):
        (folder / "libsvm" / f"{name}.bz2").write_bytes(bz2.compress("\n".join(lines).encode()))
    (folder / "mnist").mkdir()
    for name, count in (("train", 256), ("t10k", 64)):
        pictures = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        for kind, values in (("images-idx3", pictures), ("labels-idx1", np.arange(count, dtype=np.uint8) % 10)):
            header = bytes((0, 0, 8, values.ndim)) + np.array(values.shape, ">i4").tobytes()
            (folder / "mnist" / f"{name}-{kind}-ubyte").write_bytes(header + values.tobytes())
    return folder


def run_script(monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> None:
    """Run a benchmark in this process, as its command line would."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPTS[name]), *words])
    runpy.run_path(str(SCRIPTS[name]), run_name="__main__")


@pytest.mark.paper
@pytest.mark.parametrize(("name", "part"), PARTS)
def test_a_quick_run_measures_every_target_of_its_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data_folder: Path, name: str, part: int
):
    out = tmp_path / "results.json"
    run_script(monkeypatch, name, "--quick", "--only", str(part), "--data", str(data_folder), "--out", str(out))
    written = json.loads(out.read_text())
    assert written["quick"] is True
    assert list(written["parts"]) == [str(part)]
    targets = written["parts"][str(part)]["targets"]
    assert targets and all(claim["measured"] for claim in targets)
    for claim in targets:
        assert claim["measured"] in out.with_suffix(".md").read_text()


def test_a_part_whose_data_is_missing_says_which_file_it_wants(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        run_script(monkeypatch, "local_sgd", "--quick", "--only", "1", "--data", str(tmp_path))
    assert "a9a.bz2 is missing; pass the folder" in capsys.readouterr().err


def test_runs_that_were_made_are_not_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data_folder: Path, capsys: pytest.CaptureFixture[str]
):
    words = ("--quick", "--only", "4", "--data", str(data_folder), "--out", str(tmp_path / "results.json"))
    run_script(monkeypatch, "servers_mnist", *words)
    first, rows = capsys.readouterr().out, (tmp_path / "results_rows.jsonl").read_text()
    assert "K = 2, 0.01, 100" in first and len(rows.splitlines()) > 10
    run_script(monkeypatch, "servers_mnist", *words)
    assert "K = 2, 0.01, 100" not in capsys.readouterr().out
    assert (tmp_path / "results_rows.jsonl").read_text() == rows


def test_the_speed_benchmark_measures_what_it_compares():
    speed = runpy.run_path(str(BENCHMARKS / "simulator.py"))
    rates = speed["best"](
        {
            "tacit": lambda: speed["simulated"](4, 16),
            "plain loop": lambda: speed["plain_loop"](4, 8, "sgd"),
            "bare vmap": lambda: speed["bare_vmap"](4, 2),
        },
        repetitions=1,
    )
    assert all(rate > 0 for rate in rates.values())
    sizes: list[int] = []
    assert speed["served"](tacit.KSync(k=2), 4, 3, sizes) > 0
    assert sum(sizes) >= 6
    assert speed["served"](speed["KSyncAtOnce"](k=2), 4, 3, sizes) > 0
    assert set(sizes) == {1}


@pytest.mark.processes
def test_the_end_to_end_benchmark_runs_every_method_on_its_slow_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: Path
):
    out, script = tmp_path / "end_to_end.json", str(BENCHMARKS / "end_to_end.py")
    if (reason := runpy.run_path(script)["namespaces"].refused()) is not None:
        pytest.skip(reason)
    monkeypatch.setattr(sys, "argv", [script, "--quick", "--out", str(out)])
    monkeypatch.setattr(sys, "executable", str(python))
    before = signal.getsignal(signal.SIGTERM)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        signal.signal(signal.SIGTERM, before)
    written = json.loads(out.read_text())
    assert "SYNTHETIC" in written["data"] and str(tmp_path) not in written["command"]
    sent = {name: result["sent_bytes_per_step"] for name, result in written["methods"].items()}
    assert len(sent) == 7 and all(sent["DDP"] > sent[name] > 0 for name in sent if name != "DDP")
    for result in written["methods"].values():
        assert [mark["mark"] for mark in result["marks"]] == [0, 0.25, 0.5, 0.75, 1]
