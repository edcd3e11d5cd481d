"""``tacit compare``: what it writes, and what it does when something fails."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tacit import Run
from tacit.compare import tasks
from tests.cli.command_line import Command

TWO = ("-s", "AllReduce", "-s", "local-sgd(period=Every(4))")


def test_strategies_are_compared_at_times(tiny: Command) -> None:
    both = ("-s", "AllReduce", "-s", "SwarmSGD", "--evaluate-every-s", "0.05", "--target", "0.5")
    answer = tiny("compare", *both, "--jobs", "1", "--out", "here")
    assert answer.exit_code == 0, answer.errors
    histories = [Run.load(folder).history for folder in Path("here/runs").iterdir()]
    assert [[row["time_s"] for row in rows[:3]] for rows in histories] == [[0.0, 0.05, 0.1]] * 2
    assert "evaluate_every_s = 0.05" in Path("here/compare.toml").read_text()


def test_it_writes_report_numbers_settings_and_runs(tiny: Command) -> None:
    answer = tiny("compare", *TWO, "--seeds", "2", "--out", "here", "--json", "numbers.json")
    assert answer.exit_code == 0, answer.errors
    assert answer.errors == ""
    assert "Report: here/report.html" in answer.output
    assert "plotly" in Path("here/report.html").read_text().lower()
    assert json.loads(Path("numbers.json").read_text()) == json.loads(Path("here/compare.json").read_text())
    assert [s["label"] for s in json.loads(Path("numbers.json").read_text())["strategies"]] == [
        "AllReduce()",
        "LocalSGD(period=Every(4))",
    ]
    assert {path.name for path in Path("here/runs").iterdir()} == {
        "AllReduce-0",
        "AllReduce-1",
        "LocalSGD-period-Every-4-0",
        "LocalSGD-period-Every-4-1",
    }
    assert "\x1b" not in answer.output


def test_its_settings_make_it_again(tiny: Command, tacit: Command) -> None:
    options = ("--speed", "1=0.5", "--latency", "2ms", "--bandwidth", "1MB/s", "--fault", "Slow(rank=0, factor=2.0)")
    options += ("--schedule", "StepDecay(at=(0.5,))", "--momentum", "0.9", "--compute", "Pareto()", "--target", "0.1")
    assert tiny("compare", *TWO, *options, "--out", "first").exit_code == 0
    assert tacit("compare", "--config", "first/compare.toml", "--out", "second").exit_code == 0
    assert Path("first/compare.toml").read_text() == Path("second/compare.toml").read_text()
    for run in ("AllReduce-0", "LocalSGD-period-Every-4-0"):
        assert Run.load(f"first/runs/{run}").digest == Run.load(f"second/runs/{run}").digest


def test_each_of_its_runs_can_be_made_again_alone(tiny: Command, tacit: Command) -> None:
    assert tiny("compare", "-s", "AllReduce", "--tune", "--seeds", "5,", "--out", "here").exit_code == 0
    lr = tomllib.loads(Path("here/runs/AllReduce-5/run.toml").read_text())["lr"]
    assert lr != 0.1, "tuning a quadratic from 0.1 moves the rate"
    assert tacit("simulate", "--config", "here/runs/AllReduce-5/run.toml", "--out", "alone").exit_code == 0
    assert Run.load("alone").digest == Run.load("here/runs/AllReduce-5").digest


@pytest.mark.slow
def test_tuning_says_what_it_chose_and_what_the_others_gave(tiny: Command) -> None:
    answer = tiny("compare", *TWO, "--tune", "--out", "here")
    assert answer.exit_code == 0
    assert "best of 8 on seed 1" in answer.output
    assert "final loss by lr on seed 1: 0.0125 →" in answer.output
    assert len(json.loads(Path("here/compare.json").read_text())["tuning"]["AllReduce()"]["candidates"]) == 8


def test_options_override_the_file(tacit: Command) -> None:
    Path("mine.toml").write_text(
        'workload = "quadratic(dimension=5)"\nstrategies = ["AllReduce"]\nsteps = 7\nseeds = 2\n'
        '[cluster]\nworkers = 3\nlatency_s = 0.5\nspeed = {"2" = 0.5}\nlinks = {"0,1" = "Link(latency_s=1.0)"}\n'
        'faults = ["Pause(rank=0, at_s=0.1, for_s=0.1)"]\n'
    )
    assert tacit("compare", "--config", "mine.toml", "--steps", "9", "--latency", "1ms", "--out", "o").exit_code == 0
    settings = tomllib.loads(Path("o/compare.toml").read_text())
    assert (settings["steps"], settings["seeds"], settings["strategies"]) == (9, [0, 1], ["AllReduce()"])
    assert settings["cluster"]["latency_s"] == 0.001
    assert settings["cluster"]["links"] == {"0,1": "Link(latency_s=1.0)"}
    assert settings["cluster"]["speed"] == {"2": 0.5}
    assert Run.load("o/runs/AllReduce-1").workers == 3


def test_a_nan_keeps_the_history_and_the_comparison_goes_on(tiny: Command) -> None:
    answer = tiny("compare", *TWO, "--lr", "1e6", "--steps", "200", "--out", "here")
    assert answer.exit_code == 1
    assert "AllReduce(), seed 0: failed: the loss of worker" in answer.errors
    assert "smaller learning rate is the usual way out" in answer.errors
    run = Run.load("here/runs/AllReduce-0")
    assert run.status.startswith("failed") and len(run.history) > 1
    assert Path("here/report.html").exists() and Path("here/runs/LocalSGD-period-Every-4-0").exists()


def test_force_replaces_results_and_nothing_else(tiny: Command) -> None:
    assert tiny("compare", "-s", "AllReduce", "--out", "here").exit_code == 0
    assert tiny("compare", "-s", "LocalSGD", "--out", "here", "--force").exit_code == 0
    assert [path.name[:8] for path in Path("here/runs").iterdir()] == ["LocalSGD"]
    Path("here/thesis.tex").write_text("years of work")
    answer = tiny("compare", "--out", "here", "--force")
    assert answer.exit_code == 2
    assert "--force replaces only results of tacit, and the folder also holds thesis.tex" in answer.errors
    assert Path("here/thesis.tex").exists() and Path("here/report.html").exists()


def test_quiet_prints_nothing(tiny: Command) -> None:
    answer = tiny("compare", "-s", "AllReduce", "--out", "here", "--quiet")
    assert (answer.exit_code, answer.output, answer.errors) == (0, "", "")


def test_without_out_the_folder_carries_the_date(tiny: Command) -> None:
    assert tiny("compare", "-s", "AllReduce").exit_code == 0
    assert tiny("compare", "-s", "AllReduce").exit_code == 0
    assert len(list(Path("runs").glob("compare-20*/report.html"))) == 2


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the seed of every run that is really made."""
    made: list[int] = []
    real = tasks.simulate

    def simulate(*arguments: Any, **settings: Any) -> Run:
        made.append(settings["seed"])
        return real(*arguments, **settings)

    monkeypatch.setattr(tasks, "simulate", simulate)
    return made


def test_a_comparison_is_resumed_and_extended(tiny: Command, tacit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ("--fault", "Slow(rank=0, factor=2.0)", "--speed", "1=0.5")
    assert tiny("compare", *TWO, *whole, "--seeds", "2", "--out", "here").exit_code == 0
    digest = Run.load("here/runs/AllReduce-0").digest
    shutil.rmtree("here/runs/AllReduce-1")  # as if it had been interrupted there
    made = _counted(monkeypatch)
    answer = tacit("compare", "--resume", "here")
    assert answer.exit_code == 0, answer.errors
    assert made == [1]
    assert Run.load("here/runs/AllReduce-0").digest == digest
    assert tacit("compare", "--resume", "here", "--seeds", "3").exit_code == 0
    assert made == [1, 2, 2]
    assert len(json.loads(Path("here/compare.json").read_text())["strategies"][0]["seeds"]) == 3


def test_resuming_keeps_the_search_for_learning_rates(
    tiny: Command, tacit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny("compare", "-s", "AllReduce", "--tune", "--out", "here").exit_code == 0
    before = json.loads(Path("here/compare.json").read_text())["tuning"]
    made = _counted(monkeypatch)
    assert tacit("compare", "--resume", "here").exit_code == 0
    assert made == []
    assert json.loads(Path("here/compare.json").read_text())["tuning"] == before


def test_resume_names_the_folder(tacit: Command) -> None:
    answer = tacit("compare", "--resume", "nowhere")
    assert answer.exit_code == 2
    assert "--resume nowhere must hold a comparison, and it has no compare.toml; give" in answer.errors
    answer = tacit("compare", "--resume", "here", "--out", "there")
    assert answer.exit_code == 2
    assert "--resume already names the folder; leave out --out, --config and --force." in answer.errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--steps", "50"), "steps=50 instead of 12"),
        (("--lr", "0.01"), "lr=0.01 instead of 0.1"),
        (("--workers", "3"), "cluster.workers=3 instead of 2"),
        (
            ("--latency", "3ms", "--optimizer", "adam"),
            "optimizer='adam' instead of 'sgd', cluster.latency_s=0.003 instead of 0.0001",
        ),
        (("--workload", "quadratic(dimension=6)"), "workload='quadratic(dimension=6)' instead of"),
        (("--evaluate-every", "3"), "evaluate_every=3 instead of None"),
        (("--tune",), "tune=True instead of False"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_resuming_refuses_what_would_replace_finished_runs(
    tiny: Command, tacit: Command, options: tuple[str, ...], found: str
) -> None:
    assert tiny("compare", *TWO, "--out", "here").exit_code == 0
    before = {path: path.read_bytes() for path in Path("here").rglob("*") if path.is_file()}
    answer = tacit("compare", "--resume", "here", *options)
    assert answer.exit_code == 2
    assert f"--resume here would replace 2 finished runs: {found}" in answer.errors
    assert "--resume may add --seeds and --strategy and change --target;" in answer.errors
    assert "tacit compare --config here/compare.toml … --out FOLDER" in answer.errors
    assert {path: path.read_bytes() for path in Path("here").rglob("*") if path.is_file()} == before


def test_resuming_adds_seeds_and_strategies_to_those_there_are(
    tiny: Command, tacit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny("compare", "-s", "AllReduce", "--seeds", "4,7", "--out", "here").exit_code == 0
    made = _counted(monkeypatch)
    assert tacit("compare", "--resume", "here", "-s", "LocalSGD", "--seeds", "2", "--target", "0.5").exit_code == 0
    assert made == [4, 7, 0, 0, 1, 1]
    found = json.loads(Path("here/compare.json").read_text())
    assert [row["label"] for row in found["strategies"]] == ["AllReduce()", "LocalSGD(period=Every(8))"]
    assert found["target_loss"] == 0.5


@pytest.mark.slow
def test_resuming_a_tuned_comparison_keeps_its_learning_rates(
    tiny: Command, tacit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny("compare", "-s", "AllReduce", "--tune", "--seeds", "2", "--out", "here").exit_code == 0
    made = _counted(monkeypatch)
    answer = tacit("compare", "--resume", "here", "--seeds", "3")
    assert (answer.exit_code, made) == (2, [])
    assert (
        "seed 2 was used to choose the learning rates in here and cannot be reported; use other seeds, such as --seeds"
        in (answer.errors)
    )
    assert tacit("compare", "--resume", "here", "--seeds", "3,4").exit_code == 0
    assert made == [3, 4]


def test_a_comparison_without_finished_runs_may_be_changed(tiny: Command, tacit: Command) -> None:
    assert tiny("compare", "-s", "AllReduce", "--out", "here").exit_code == 0
    shutil.rmtree("here/runs")
    assert tacit("compare", "--resume", "here", "--steps", "9").exit_code == 0
    assert Run.load("here/runs/AllReduce-0").steps == 9


def test_resuming_refuses_an_edited_file_that_would_replace_finished_runs(tiny: Command, tacit: Command) -> None:
    assert tiny("compare", "-s", "AllReduce", "--out", "here").exit_code == 0
    file = Path("here/compare.toml")
    file.write_text(file.read_text().replace("momentum = 0.0", "momentum = 0.5"))
    answer = tacit("compare", "--resume", "here")
    assert answer.exit_code == 2
    assert "--resume here would replace 1 finished run: momentum=0.5 instead of 0.0" in answer.errors


@pytest.mark.slow
def test_several_learning_rates_give_the_best_row_or_all_rows(tiny: Command, tacit: Command) -> None:
    answer = tiny("compare", *TWO, "--lr", "0.01,0.1", "--seeds", "2", "--out", "here")
    assert answer.exit_code == 0, answer.errors
    assert "8/8  " in answer.output and "lr=0.1, best of 2 by final loss" in answer.output
    assert "mean final loss by lr: 0.01 → " in answer.output and "AllReduce(), lr=" not in answer.output
    assert tomllib.loads(Path("here/compare.toml").read_text())["lr"] == [0.01, 0.1]
    assert Path("here/runs/AllReduce-lr0.01-1").is_dir() and len(list(Path("here/runs").iterdir())) == 8
    assert json.loads(Path("here/compare.json").read_text())["rates"]["AllReduce()"]["best"] == 0.1
    shown = tacit("report", "here")
    assert "AllReduce(), lr=" not in shown.output and "best of 2 by final loss" in shown.output
    assert "AllReduce(), lr=0.01" in tacit("report", "here", "--all-rates").output
    answer = tacit("compare", "--resume", "here", "--all-rates")
    assert answer.exit_code == 0, answer.errors
    assert "AllReduce(), lr=0.01" in answer.output


@pytest.mark.slow
def test_resuming_makes_the_missing_learning_rates_only(
    tiny: Command, tacit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny("compare", *TWO, "--lr", "0.01,0.1", "--seeds", "4,7", "--out", "here").exit_code == 0
    shutil.rmtree("here/runs/AllReduce-lr0.1-7")
    made = _counted(monkeypatch)
    assert tacit("compare", "--resume", "here").exit_code == 0
    assert made == [7]
    answer = tacit("compare", "--resume", "here", "--lr", "0.01,0.3")
    assert answer.exit_code == 2 and "lr=[0.01, 0.3] instead of [0.01, 0.1]" in answer.errors


def test_an_output_folder_with_a_comparison_names_resume(tiny: Command) -> None:
    assert tiny("compare", "-s", "AllReduce", "--out", "here").exit_code == 0
    answer = tiny("compare", "-s", "AllReduce", "--out", "here")
    assert answer.exit_code == 2
    assert "continue its comparison with --resume here, choose another --out, or replace" in answer.errors


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--jobs", "0"), "jobs=0 must be at least 1"),
        (("--executor", "slurm"), "executor='slurm' must be 'local', 'ray'"),
        (("--lr", "0.1,x"), "lr='0.1,x' must be a learning rate (0.1) or a list of rates (0.1,0.3)."),
        (("--lr", "0.1,0.2", "--tune"), "lr=[0.1, 0.2]: tune=True searches around one rate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_options_leave_no_folder(tiny: Command, options: tuple[str, ...], reason: str) -> None:
    answer = tiny("compare", *options, "--out", "here")
    assert answer.exit_code == 2 and reason in answer.errors
    assert not Path("here").exists()


def test_a_file_of_one_run_has_one_learning_rate(tacit: Command) -> None:
    Path("mine.toml").write_text('workload = "quadratic(dimension=5)"\nlr = [0.1, 0.2]\n')
    answer = tacit("simulate", "--config", "mine.toml")
    assert answer.exit_code == 2 and "lr=[0.1, 0.2] must be a number." in answer.errors
