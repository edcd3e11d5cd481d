"""`make demo`: its commands exist, and its page shows what their results say. The demo itself takes minutes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import tacit
from tacit.planning.files import read_plan
from tests.cli.command_line import run
from tests.report.synthetic_runs import tiny_run
from tools import demo_page
from tools.check_readme import command_problem

ROOT = Path(__file__).parents[1]


def test_every_command_of_the_demo_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "examples" / "demo.sh").read_text().replace("\\\n", " ")
    lines = [line.partition("||")[0] for line in text.splitlines() if line.startswith("run tacit ")]
    assert [line.split()[2] for line in lines] == ["compare", "probe", "plan", "train", "report"]
    for line in lines:
        for name, value in (("out", "demo"), ("workload", "digits()"), ("lr", "0.1"), ("target", "0.1")):
            line = line.replace(f"${name}", value)
        assert command_problem(shlex.split(line)[2:]) is None


@pytest.mark.slow
def test_the_page_shows_comparison_plan_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    workload = tacit.workloads.digits(model="softmax")
    options = ("--workload", str(workload), "-s", "AllReduce", "-s", "LocalSGD", "--steps", "20", "--workers", "2")
    assert run("compare", *options, "--out", "demo/compare", "--quiet").exit_code == 0
    profile = tacit.Profile(workers=2, compute=tacit.Constant(mean_s=0.02), bandwidth_bytes_per_s=1e5)
    local = tacit.LocalSGD(period=tacit.Every(8))
    plan = tacit.plan(
        profile, workload, target_loss=1.5, strategies=[local], steps=60, seeds=[0], tune=False, budget_s=60
    )
    plan.save("demo/plan.toml")
    measured = tiny_run([(0.0, 2.0), (1.0, 1.6), (2.0, 1.4)])
    measured.record = {"world": "processes", "predicted": dict(read_plan(Path("demo/plan.toml")).predicted)}
    measured.save("demo/run")
    demo_page.main(Path("demo"))
    text = Path("demo/report.html").read_text()
    assert "loss 1.5 took 2.00 s, planned" in text and "LocalSGD(period=Every(8))" in text and "<polyline" in text
    assert 'href="compare/report.html"' in text and 'href="plan.html"' in text and 'href="run/report.html"' in text
    assert "http:" not in text and "https:" not in text and "@import" not in text
