"""Plans for a script: curves of observed losses, their cache, the search within a budget, and small whole plans."""

from __future__ import annotations

import math
import runpy
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tacit
from tacit.compare.tasks import Task
from tacit.compare.watcher import Watcher
from tacit.errors import TacitError
from tacit.planning.candidates import Candidate
from tacit.planning.pace import Pace
from tacit.planning.plan import NO_TIME
from tacit.planning.scripts.cache import ScriptCurve, ScriptCurves
from tacit.planning.scripts.losses import BUDGET, STEPS, TARGET, LossFollower
from tacit.planning.scripts.search import ScriptSearch
from tacit.planning.scripts.work import ScriptPlanWork
from tacit.planning.search import Scope
from tacit.planning.work import PlanTask
from tacit.record.run import Run
from tacit.record.smoothing import RunningLoss, smoothed
from tacit.report.planned.causes import planned_run
from tacit.simulation.scripts.following import StepOfScript
from tacit.simulation.scripts.run import simulate_script
from tests.planning.scripts_to_plan import script
from tests.runtime.processes import together

PROFILE = tacit.Profile(workers=2, compute=tacit.Constant(mean_s=0.02), bandwidth_bytes_per_s=2e3)
LOCAL = tacit.LocalSGD(period=tacit.Every(4))
EIGHT = tacit.LocalSGD(period=tacit.Every(8))


@pytest.fixture
def train(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(script())
    return path


# The running mean.


def test_a_straight_line_is_not_delayed_by_the_window() -> None:
    running = RunningLoss(10)
    points = [running.add(step, 2.0 * step, 100.0 - step, 1.0) for step in range(1, 301)]
    assert points[:9] == [None] * 9
    for point in points[9:]:
        assert point is not None
        assert point.loss == pytest.approx(100.0 - point.step) and point.time_s == pytest.approx(2 * point.step)
    assert points[-1].step == pytest.approx(300 - 29 / 2)  # a tenth of 300 mini-batches


def test_rows_of_a_history_are_smoothed_alike() -> None:
    rows = [(step, 0.1 * step, 100.0 - (step - 5) - 0.0) for step in range(10, 301, 10)]  # means over ten steps
    for point in smoothed(rows, workers=2, least=20):
        assert point.loss == pytest.approx(100.0 - point.step)


def follower(**more: object) -> LossFollower:
    return LossFollower(workers=2, least=4, **{"in_step": True, **more})


def test_a_step_counts_once_all_workers_have_ended_it() -> None:
    found = follower(until_loss=1.0)
    for step in (1, 2):
        assert not found(StepOfScript(0, step, float(step), 3.0, 1.0, step))
    assert found.steps == []
    assert not found(StepOfScript(1, 1, 1.5, 1.0, 3.0, 1))
    assert not found(StepOfScript(1, 2, 2.5, 1.0, 3.0, 2))
    assert found.losses == [1.5] and found.times_s == [2.0]  # weighted by samples; both steps, as of the last worker
    assert [found(StepOfScript(rank, 3, 3.0, -9.0, 1.0, 3)) for rank in (0, 1)] == [False, True]
    assert found.ended_by == TARGET


def test_a_run_ends_after_its_steps_or_its_time() -> None:
    capped = follower(most_steps=1)
    assert [capped(StepOfScript(rank, 1, 1.0, None, 1.0, 1)) for rank in (0, 1)] == [False, True]
    assert capped.ended_by == STEPS and capped.losses == []
    late = follower(until_s=5.0, now_s=lambda: 6.0)
    assert late(StepOfScript(0, 1, 1.0, 2.0, 1.0, 1)) and late.ended_by == BUDGET


def test_workers_out_of_step_are_followed_by_updates() -> None:
    found = follower(in_step=False, has_server=True)
    for update in (1, 2, 3, 4):
        found(StepOfScript(0, update, float(update), 2.0, 1.0, update))
    assert (found.steps, found.times_s, found.losses, found.done) == ([2], [2.5], [2.0], 4)


# The cache.


def test_a_longer_curve_answers_for_a_shorter_one(tmp_path: Path) -> None:
    curve = ScriptCurve(steps=(5, 10, 15), losses=(3.0, 2.0, 1.0), done=20)
    curves = ScriptCurves(str(tmp_path))
    curves.put("key", {}, curve)
    for known in (curves, ScriptCurves(str(tmp_path))):
        assert known.get("key", 2.0, 100).steps == (5, 10)
        assert known.get("key", 0.5, 12).done == 12
        assert known.get("key", 0.5, 30) is None and known.get("other", 2.0, 100) is None
    curves.put("key", {}, replace(curve, is_whole=True))
    assert curves.get("key", 0.5, 30).losses == curve.losses


def test_a_changed_module_of_the_script_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text("lr = 0.1")
    curve = ScriptCurve(steps=(5,), losses=(3.0,), done=20, files={str(tmp_path / "parts.py"): "another digest"})
    ScriptCurves(str(tmp_path)).put("key", {}, curve)
    assert ScriptCurves(str(tmp_path)).get("key", 3.0, None) is None


def test_a_run_is_made_once_and_ends_at_the_target(train: Path, tmp_path: Path) -> None:
    work = ScriptPlanWork(str(train), ("--steps", "100"), PROFILE, 0.3, math.inf, str(tmp_path / "cache"))
    task = PlanTask(LOCAL, 0, None, candidate=Candidate(LOCAL, (0, 1)), steps=1000)
    run = work.make(task, None)
    assert run.status == "finished" and run.history[-1]["loss"] <= 0.3 < run.history[-2]["loss"]
    assert run.history[-1]["step"] < run.record["done"] < 100 and run.record["wall_s"] > 0
    again = ScriptPlanWork(str(train), ("--steps", "100"), PROFILE, 0.3, math.inf, str(tmp_path / "cache"))
    found = again.make(task, None)
    assert found.record["wall_s"] == 0
    assert [(row["step"], row["loss"]) for row in found.history] == [(row["step"], row["loss"]) for row in run.history]
    other = replace(again, arguments=("--steps", "99")).make(task, None)
    assert other.record["wall_s"] > 0


# The search.

EVERYONE = (0, 1)
DDP = Candidate(tacit.DDP(), EVERYONE, is_kept=True)
OTHERS = [Candidate(tacit.LocalSGD(period=tacit.Every(n)), EVERYONE) for n in (2, 4, 8)]


def carry_out(search: ScriptSearch, wall_s: float) -> Iterator[PlanTask]:
    """Carry out all tasks, each in ``wall_s`` seconds and 100 steps, and yield them."""
    waiting = [task for _, task in search.first()]
    while waiting:
        task = waiting.pop(0)
        assert isinstance(task, PlanTask)
        yield task
        history = [{"step": 100, "loss": 0.4, "time_s": math.nan}]
        run = Run("w", task.label, 2, task.steps, task.seed, history=history)
        run.record = {"wall_s": wall_s, "done": 100}
        waiting += [more for _, more in search.after(task, run)]


def test_only_runs_that_fit_the_budget_are_made() -> None:
    paces = {
        one: [Pace(step_s=step_s, bytes_per_step=1.0, computing=0.5, hooks=0.0, waiting=0.0)]
        for one, step_s in zip([DDP, *OTHERS], (1.0, 0.7, 0.5, 0.4), strict=True)
    }
    scope = Scope(lr=None, seeds=(0, 1), steps=1000, target_loss=0.5, within_s=None, budget_s=25.0)
    search = ScriptSearch([DDP, *OTHERS], paces, scope, worker_step_s=0.001, jobs=1, now_s=lambda: 0.0)
    done = list(carry_out(search, wall_s=10.0))
    assert [task.candidate for task in done[:3]] == [DDP, OTHERS[2], OTHERS[1]]  # the fastest first, 10.6 and 11.4 s
    assert search.skipped == {OTHERS[0]: NO_TIME} and search.is_cut
    late = ScriptSearch(
        [DDP, *OTHERS], paces, scope, worker_step_s=0.001, jobs=1, now_s=lambda: 0.0, spent_s=10.0, twins={}
    )
    assert {task.candidate for task in carry_out(late, wall_s=10.0)} == {DDP, OTHERS[2]}
    assert {task.lr for task in done} == {None}


# Whole plans.


def test_a_script_is_planned_and_the_plan_is_attached(
    train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--steps", "100"]
    plan = tacit.plan(
        PROFILE, train, arguments, target_loss=0.3, strategies=["LocalSGD(period=Every(8))", tacit.KAsync(k=1)]
    )
    by_name = {(str(row.strategy), row.ranks): row for row in plan.rows}
    assert {name for name, ranks in by_name if ranks == (0, 1)} == {"DDP()", str(LOCAL), str(EIGHT), "KAsync(k=1)"}
    own, ddp, local = by_name[str(LOCAL), (0, 1)], plan.baseline, by_name[str(EIGHT), (0, 1)]
    assert own.is_kept and ddp.is_kept and {row.fidelity for row in (own, ddp, local)} == {"A"}
    assert own.time_s.median == pytest.approx(own.pace.seconds(own.trials[0].steps))
    assert ddp.time_s.median > local.time_s.median and plan.lr is None
    assert any("seeds its own random generators" in one for one in plan.warnings)
    assert plan.what_if(bandwidth=1e3).baseline.time_s.median < ddp.time_s.median
    monkeypatch.chdir(tmp_path)
    replace(plan, best=local).save("plan.toml")
    assert "with your settings" in Path("plan.html").read_text()
    train.write_text(script('"plan.toml"'))
    run = simulate_script(train, arguments, cluster=tacit.Cluster(workers=2))
    assert run.strategy == str(EIGHT)
    train.write_text(script('"not-yet.toml"'))  # a script that names its next plan
    renewed = tacit.plan(PROFILE, train, arguments, target_loss=0.3, strategies=[EIGHT])
    assert {str(row.strategy) for row in renewed.rows} == {"DDP()", str(EIGHT)}


def test_an_all_reduce_of_the_script_has_the_losses_of_ddp(train: Path) -> None:
    train.write_text(script("tacit.AllReduce()"))
    titles = list[str]()

    class Counting(Watcher):
        def begin(self, task: Task) -> None:
            titles.append(str(task.strategy))

    plan = tacit.plan(PROFILE, train, target_loss=0.3, strategies=[], watcher=Counting())
    own = next(row for row in plan.rows if str(row.strategy) == "AllReduce()")
    assert titles.count("AllReduce()") == 0 and own.trials == plan.baseline.trials
    assert own.time_s.median >= plan.baseline.time_s.median


@pytest.mark.processes
def test_a_planned_run_on_real_processes_is_compared_step_by_step(
    train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train.write_text(script('"plan.toml"'))
    arguments = ["--steps", "100", "--out", "measured"]
    plan = tacit.plan(PROFILE, train, arguments, target_loss=0.3, strategies=[EIGHT])
    local = next(row for row in plan.rows if row.strategy == EIGHT)
    replace(plan, best=local).save("plan.toml")
    together(2, play_for_real, str(train), arguments)
    run = tacit.Run.load("measured")
    compared = planned_run(run)
    assert compared is not None and run.record["losses"] == "observed"
    assert compared.steps == compared.planned_steps == local.trials[0].steps
    assert run.predicted["window_batches"] == 20


def play_for_real(path: str, arguments: list[str]) -> None:
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


def test_the_best_loss_is_named_if_nothing_reaches_the_target(train: Path) -> None:
    plan = tacit.plan(PROFILE, train, ["--steps", "30"], target_loss=-1.0, strategies=[])
    assert "No candidate reached the loss -1 before the script ended. The best loss was" in plan.why


def test_losses_after_a_time_are_compared(train: Path) -> None:
    plan = tacit.plan(PROFILE, train, within_s=1.0, strategies=[EIGHT])
    local = next(row for row in plan.rows if row.strategy == EIGHT)
    assert local.trials[0].curve[-1][0] <= local.pace.steps_within(1.0)


def test_a_script_that_observes_no_loss_is_told_the_line_to_add(train: Path) -> None:
    with pytest.raises(
        ValueError, match=r"never calls session\.observe.*add the line session\.observe\(loss\) between"
    ):
        tacit.plan(PROFILE, train, ["--silent"], target_loss=0.3)
    assert {row.fidelity for row in tacit.plan(PROFILE, train, ["--silent"], strategies=[EIGHT]).rows} == {"C"}


def test_a_script_that_fails_is_shown_with_its_line(train: Path) -> None:
    with pytest.raises(TacitError, match=r"(?s)fails in its first steps.*ArithmeticError: the data ended.*line \d+"):
        tacit.plan(PROFILE, train, ["--fail-at", "1"], target_loss=0.3)
    plan = tacit.plan(PROFILE, train, ["--fail-at", "30"], target_loss=0.3, strategies=[])
    assert plan.baseline.remark.startswith("failed: the script of worker")
    assert any("train.py, line" in one and "raise ArithmeticError" in one for one in plan.warnings)


def test_without_time_for_the_baseline_only_paces_are_predicted(train: Path) -> None:
    plan = tacit.plan(PROFILE, train, ["--steps", "4000"], target_loss=-1.0, budget_s=0.3, strategies=[EIGHT])
    assert {row.fidelity for row in plan.rows} == {"C"} and all(row.time_s is None for row in plan.rows)
    assert any("So only paces are predicted" in one for one in plan.warnings)
    plan = tacit.plan(PROFILE, train, ["--steps", "4000"], target_loss=-1.0, budget_s=1e-6, strategies=[EIGHT])
    text = next(one for one in plan.warnings if "So only paces are predicted" in one)
    assert "was spent before the simulation of DDP had a loss" in text and "inf" not in text


def test_ctrl_c_keeps_what_was_simulated(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting(Watcher):
        ended = 0

        def begin(self, task: Task) -> None:
            if self.ended == 2:
                raise KeyboardInterrupt

        def end(self, task: Task, run: Run) -> None:
            self.ended += 1

    plan = tacit.plan(PROFILE, train, target_loss=0.3, strategies=[EIGHT], watcher=Interrupting())
    assert plan.is_interrupted and [len(row.trials) for row in plan.rows if row.is_kept] == [1, 1]
    assert any("interrupted" in one for one in plan.warnings)


def test_strategies_as_text_are_checked() -> None:
    with pytest.raises(ValueError, match="LocalSGD"):
        tacit.plan(PROFILE, tacit.workloads.digits(), strategies=["LocalSDG"])
    with pytest.raises(TypeError, match="strategies=3 must be a strategy or its text"):
        tacit.plan(PROFILE, tacit.workloads.digits(), strategies=[3])  # type: ignore[list-item]


def test_a_missing_plan_is_an_error_in_a_real_run() -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(TacitError, match=r"not-yet\.toml does not exist; tacit plan --out"):
        tacit.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "not-yet.toml")
