"""The benchmark of the time to an accuracy: what is chosen, how long runs are, its verdicts, and a quick run."""

from __future__ import annotations

import json
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tacit
from benchmarks.time_to_accuracy.evaluating import evaluated, reached_at
from benchmarks.time_to_accuracy.kept import Rows
from benchmarks.time_to_accuracy.methods import METHODS, TRIALS, every_of
from benchmarks.time_to_accuracy.places import CAP_S, SHORT_S, SPOTS
from benchmarks.time_to_accuracy.ranks.models import build, flat
from benchmarks.time_to_accuracy.recording import needed
from benchmarks.time_to_accuracy.results import claims_of
from benchmarks.time_to_accuracy.search import Choice
from benchmarks.time_to_accuracy.setting import Setting
from benchmarks.time_to_accuracy.tasks import TASKS, pictures


def setting_of(folder: Path, task: str = "mnist") -> Setting:
    return Setting(task=TASKS[task], data="", root=folder, environments=folder, is_quick=task == "digits")


def choice_of(**changed: Any) -> Choice:
    values = {
        "spot": SPOTS["100mbit"],
        "method": "tacit LocalSGD",
        "crew": "tacit",
        "runner": "tacit",
        "is_ours": True,
        "strategy": tacit.LocalSGD(period=tacit.Every(16)),
        "lr": 0.05,
        "value": 16,
        "steps": 160,
        "time_s": 16.0,
        "step_s": 0.1,
        "tried": 6,
    }
    return Choice(**{**values, **changed})


@pytest.mark.parametrize("task", ["mnist", "cifar10"])
def test_every_method_has_six_trials(task: str) -> None:
    for method in METHODS.values():
        assert len(method.rates(TASKS[task])) + len(method.other_values(TASKS[task])) == TRIALS, method.name


def test_models_are_evaluated_where_a_period_ends() -> None:
    task = TASKS["mnist"]
    periods = {1: 10, 4: 8, 8: 8, 16: 16, 64: 64}
    assert {n: every_of(task, tacit.LocalSGD(period=tacit.Every(n))) for n in periods} == periods
    assert every_of(task, tacit.AllReduce()) == 10
    assert every_of(task, tacit.KBatchAsync(k=4, local_steps=8)) == 1


def test_the_target_is_reached_twice_in_a_row() -> None:
    assert reached_at([0.5, 0.97, 0.95, 0.96, 0.98], 0.96) == 3
    assert reached_at([0.5, 0.95, 0.96], 0.96) is None


def test_rows_survive_a_line_that_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    Rows(file).add({"seed": 0, "method": "DDP"})
    with file.open("a") as out:
        out.write('{"seed": 1, "met')
    assert Rows(file).find(method="DDP") == {"seed": 0, "method": "DDP"}
    assert Rows(file).find(seed=1) is None


def test_a_run_that_was_too_short_is_repeated_once(tmp_path: Path) -> None:
    setting, choice = setting_of(tmp_path), choice_of()
    runs = needed(setting, [choice])
    assert [run.seed for run in runs] == [0, 1, 2] and all(160 < run.steps < 240 for run in runs)
    row = {**runs[0].key, "asked": runs[0].steps, "reached": {"time_s": 15.0}, "is_last": False}
    setting.rows.add(row)
    setting.rows.add({**row, "seed": 1, "reached": None})
    setting.rows.add({**row, "seed": 2, "reached": None, "is_last": True})
    [again] = needed(setting, [choice])
    assert again.seed == 1 and again.steps > runs[0].steps


def test_runs_without_hope_are_short_and_slow_ones_have_one_seed(tmp_path: Path) -> None:
    setting = setting_of(tmp_path)
    [hopeless] = needed(setting, [choice_of(steps=None, time_s=None)])
    assert hopeless.length_s == SHORT_S
    [slow] = needed(setting, [choice_of(steps=1000, time_s=100.0)])
    assert slow.length_s <= CAP_S and slow.steps > 1000
    assert len(needed(setting, [choice_of(method="DDP", steps=1000, time_s=100.0)])) == 3


def test_what_was_spent_counts_until_the_target(tmp_path: Path) -> None:
    setting = setting_of(tmp_path, "digits")
    torch.manual_seed(0)
    module = build("digits")
    training, _ = pictures("digits", "")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    before = flat(module)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(training.x), training.y).backward()
        optimizer.step()
    after = flat(module)
    rank = {
        "began_s": 100.0,
        "clock_s": 0.0,
        "kept": None,
        "ends_s": [101.0, 102.0, 103.0],
        "sent_bytes": [10, 20, 30],
        "cpu_s": [0.5, 1.0, 1.5],
        "models": {1: before, 2: after, 3: after},
        "marked_s": {1: 101.0, 2: 102.0, 3: 103.0},
        "sums": {1: 1.0, 2: 2.0, 3: 3.0},
    }
    other = {**rank, "models": {}, "ends_s": [101.5, 102.5, 103.5], "marked_s": {1: 101.5, 2: 102.5, 3: 103.5}}
    found = evaluated(setting, [rank, other], is_shared=False, is_timed=False)
    assert found["reached"] == {"step": 2, "time_s": 2.5, "bytes": 40, "cpu_s": 2.0, "rank_steps": [2, 2]}
    assert found["spread"] == 0.0 and found["final"] > 0.9
    assert evaluated(setting, [rank, other], is_shared=True, is_timed=False)["reached"]["bytes"] == 20


def cell(place: str, method: str, time_s: float) -> dict[str, Any]:
    own = {"place": place, "method": method, "is_ours": method.startswith("tacit"), "time_s": time_s, "lr": 0.1}
    return own | {"value": None, "seeds": 3, "steps_by_seed": [7, 8, 9], "strategy": method}


def test_verdicts_follow_the_medians() -> None:
    cells = [
        cell("100mbit", "DDP", 100.0),
        cell("100mbit", "DDP, PowerSGD hook", 10.0),
        cell("100mbit", "torch PostLocalSGD", 9.0),
        cell("100mbit", "tacit LocalSGD, Top 2 %", 5.0),
        cell("loopback", "DDP", 4.0),
        cell("loopback", "tacit AllReduce", 4.3),
    ]
    claims = {claim["target"]: claim for claim in claims_of(cells, {})}
    assert claims["100 Mbit/s, DDP's"]["holds"] is True
    assert claims["100 Mbit/s, PowerSGD's"]["holds"] is False
    assert claims["100 Mbit/s, the best LocalSGD or DiLoCo peer's"]["holds"] is True
    assert claims["loopback"]["holds"] is False
    assert claims["DDP = tacit AllReduce"]["measured"].startswith("3 of 3")


@pytest.mark.processes
@pytest.mark.timeout(400)  # 8 s on an idle machine
def test_a_quick_run_measures_every_kind_of_method_and_is_not_made_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], python: Path
) -> None:
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "executable", str(python))
    words = ["--quick", "--folder", str(tmp_path / "runs"), "--out", str(out)]
    before = signal.getsignal(signal.SIGTERM)
    try:
        for more in ([], [], ["--do", "results"]):
            monkeypatch.setattr(sys, "argv", ["time_to_accuracy", *words, *more])
            runpy.run_module("benchmarks.time_to_accuracy", run_name="__main__")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "0 real runs are missing" in capsys.readouterr().out
    made = list(Rows(tmp_path / "runs" / "digits" / "rows.jsonl"))
    again = [row for number, row in enumerate(made) if row["method"] in {one["method"] for one in made[:number]}]
    assert {row["method"] for row in again} <= {"tacit SwarmSGD"} and len(
        again
    ) <= 1  # once if it ended below the target
    written = json.loads(out.read_text())
    assert written["quick"] is True and str(tmp_path) not in written["command"]
    [part] = written["parts"].values()
    cells = {one["method"]: one for one in part["cells"]}
    assert len(cells) == 5 and [one["seeds"] for one in cells.values()] == [1] * 5
    untimed = {method: one["final"] for method, one in cells.items() if method != "tacit SwarmSGD"}  # it ends at a time
    assert min(untimed.values()) > 0.5, untimed
    assert cells["torch PostLocalSGD"]["steps_by_seed"] == cells["tacit LocalSGD"]["steps_by_seed"]
    assert cells["DDP"]["bytes"] > 0 and cells["DDP"]["cpu_s"] > 0
    assert out.with_name("out_digits.svg").read_text().count("<polyline") == len(cells)
