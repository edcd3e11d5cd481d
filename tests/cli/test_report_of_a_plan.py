"""``tacit report --plan`` and the notes of ``tacit train --plan``."""

from __future__ import annotations

from pathlib import Path

import tacit as library
from tacit.cli.planned_runs import PlanDisplay, plan_notes, planned_run
from tacit.cli.screens.terminal import console
from tacit.strategies import Strategy
from tests.cli.command_line import Command
from tests.report.synthetic_runs import tiny_run

ALL_REDUCE = library.AllReduce()


def plan_file(strategy: Strategy) -> Path:
    """Write a plan by hand."""
    predicted = "step_s = 1.0\ncomputing_s = 0.5\nhooks_s = 0.0\nwaiting_s = 0.0\nwire_s = 0.5\n"
    Path("plan.toml").write_text(f'strategy = "{strategy}"\nworkers = 2\n\n[predicted]\n{predicted}')
    return Path("plan.toml")


def saved_run(strategy: Strategy) -> None:
    run = tiny_run([(0.0, 2.0), (2.0, 1.0), (4.0, 0.5)])
    run.strategy, run.record = str(strategy), {"world": "processes"}
    run.save("run")


def test_the_report_compares_a_run_with_a_plan(tacit: Command) -> None:
    saved_run(ALL_REDUCE)
    answer = tacit("report", "run", "--plan", str(plan_file(ALL_REDUCE)))
    expected = "AllReduce(): 2 steps took 4.00 s, planned 2.00: +150 % computing, 0 % hooks, −50 % wire, 0 % waiting"
    assert answer.exit_code == 0 and expected in answer.output
    assert "Planned and measured" in Path("run/report.html").read_text()
    assert "planned" not in tacit("report", "run").output


def test_a_plan_of_another_strategy_is_refused(tacit: Command) -> None:
    saved_run(ALL_REDUCE)
    answer = tacit("report", "run", "--plan", str(plan_file(library.LocalSGD())))
    assert answer.exit_code == 2 and "is for a run of LocalSGD" in answer.errors and "hold AllReduce()" in answer.errors


def test_a_run_that_departs_from_its_plan_is_not_compared_with_it(tacit: Command) -> None:
    display = PlanDisplay(console(True), always=True)
    assert display.every_s is None  # quiet
    path = str(plan_file(ALL_REDUCE).absolute())
    assert plan_notes({"plan": path}, ALL_REDUCE, 2) == plan_notes({}, ALL_REDUCE, 2) == []
    assert "is for workers=2 and the run has 3" in plan_notes({"plan": path}, ALL_REDUCE, 3)[0]
    followed = planned_run({"plan": path}, ALL_REDUCE, Path("folder"), display)
    assert followed.predicted["step_s"] == 1.0 and followed.folder == "folder"
    other = library.LocalSGD()
    assert "is a plan for AllReduce()" in plan_notes({"plan": path}, other, 2)[0]
    assert planned_run({"plan": path}, other, Path("folder"), display).predicted == {}
    Path(path).unlink()
    assert "does not exist any more" in plan_notes({"plan": path}, ALL_REDUCE, 2)[0]
    assert planned_run({"plan": path}, ALL_REDUCE, Path("folder"), display).predicted == {}
