"""``tacit simulate`` and ``tacit report``: one run, made again, drawn again."""

from __future__ import annotations

import json
from pathlib import Path

from tacit import Run
from tests.cli.command_line import Command


def test_a_run_saves_what_makes_it_again_bit_for_bit(tiny: Command, tacit: Command) -> None:
    answer = tiny(
        "simulate", "-s", "LocalSGD(period=VariancePeriod())", "--seed", "3", "--out", "a", "--json", "a.json"
    )
    assert answer.exit_code == 0, answer.errors
    assert "run again: tacit simulate --config a/run.toml" in answer.output
    assert tacit("simulate", "--config", "a/run.toml", "--out", "b").exit_code == 0
    first, second = Run.load("a"), Run.load("b")
    assert first.digest == second.digest == json.loads(Path("a.json").read_text())["digest"]
    assert first.seed == 3
    assert tacit("simulate", "--config", "a/run.toml", "--seed", "4", "--out", "c").exit_code == 0
    assert Run.load("c").digest != first.digest


def test_a_run_ends_at_a_loss(tiny: Command, tacit: Command) -> None:
    assert tiny("simulate", "--steps", "60", "--out", "whole").exit_code == 0
    history = Run.load("whole").history
    loss = str(history[len(history) // 2]["loss"])
    answer = tiny("simulate", "--steps", "60", "--until-loss", loss, "--out", "a")
    assert answer.exit_code == 0, answer.errors
    run = Run.load("a")
    assert f"reached at step {run.record['target']['step']}, after" in answer.output
    assert len(run.history) < len(history) and run.summary()["target"] == run.record["target"]
    assert tacit("simulate", "--config", "a/run.toml", "--out", "b").exit_code == 0
    assert Run.load("b").digest == run.digest
    never = tiny("simulate", "--until-loss", "-1", "--out", "c")
    assert "loss -1 not reached; best loss " in never.output


def test_a_run_is_evaluated_at_times(tiny: Command, tacit: Command) -> None:
    answer = tiny("simulate", "-s", "SwarmSGD", "--evaluate-every-s", "0.05", "--out", "a")
    assert answer.exit_code == 0, answer.errors
    run = Run.load("a")
    assert [row["time_s"] for row in run.history[:3]] == [0.0, 0.05, 0.1]
    assert tacit("simulate", "--config", "a/run.toml", "--out", "b").exit_code == 0
    assert Run.load("b").digest == run.digest


def test_a_failed_run_is_saved_as_far_as_it_came(tiny: Command) -> None:
    answer = tiny("simulate", "--fault", "Crash(rank=1, at_s=0.05)", "--out", "here")
    assert answer.exit_code == 1
    assert "worker 1 was lost at 0.05 s" in answer.errors
    assert "the unfinished run is saved in here" in answer.errors
    assert len(Run.load("here").history) >= 1
    assert Path("here/report.html").exists()


def test_a_report_is_drawn_again(tiny: Command, tacit: Command) -> None:
    two = ("-s", "LocalSGD", "-s", "AllReduce", "--seeds", "11,2")
    assert tiny("compare", *two, "--target", "0.5", "--tune", "--out", "both").exit_code == 0
    before = Path("both/report.html").read_text()
    Path("both/report.html").unlink()
    answer = tacit("report", "both")
    assert answer.exit_code == 0, answer.errors
    assert Path("both/report.html").read_text() == before
    assert "best of 8" in answer.output


def test_reports_put_folders_side_by_side(tiny: Command, tacit: Command) -> None:
    assert tiny("simulate", "--out", "a").exit_code == 0
    assert tiny("simulate", "--lr", "0.2", "--out", "b").exit_code == 0
    answer = tacit("report", "a", "b")
    assert answer.exit_code == 0, answer.errors
    assert "AllReduce() (b)" in answer.output
    assert Path("report.html").exists()


def test_reports_of_different_workloads_are_refused(tiny: Command, tacit: Command) -> None:
    assert tiny("simulate", "--out", "a").exit_code == 0
    assert tiny("simulate", "--workload", "quadratic(dimension=6)", "--out", "b").exit_code == 0
    answer = tacit("report", "a", "b")
    assert answer.exit_code == 2
    assert "the runs train different things (quadratic(dimension=5) and quadratic(dimension=6))" in answer.errors


def test_a_folder_without_runs_is_refused(tacit: Command) -> None:
    answer = tacit("report", "nowhere")
    assert answer.exit_code == 2
    assert "nowhere does not exist; give a folder that tacit compare, simulate or train wrote" in answer.errors
