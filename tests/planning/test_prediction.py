"""What a plan predicts for its run: the numbers in plan.toml and plan.json, re-planning, and the ledger."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tacit
from tacit.planning.files import read_plan
from tacit.planning.ledger import PRIOR, Ledger
from tacit.planning.prediction import round_times
from tacit.planning.replanning import measured_profile, replanned
from tacit.planning.sized import Sized
from tacit.record.run import Run
from tacit.session.plan_watch.drift import NETWORK, Drift, DriftRule, Expected
from tacit.session.planned import Planned

PROFILE = tacit.Profile(workers=2, compute=tacit.Constant(mean_s=0.02), bandwidth_bytes_per_s=1e6)
LOCAL = tacit.LocalSGD(period=tacit.Every(4))


@pytest.fixture(scope="module")
def made() -> tacit.Plan:
    plan = tacit.plan(
        PROFILE,
        tacit.workloads.digits(model="softmax"),
        target_loss=0.6,
        strategies=[LOCAL, tacit.LocalSGD(period=tacit.Every(16))],
        steps=200,
        seeds=(0, 1),
        tune=False,
    )
    return replace(plan, best=next(row for row in plan.rows if row.strategy == LOCAL and len(row.ranks) == 2))


def test_the_parts_of_a_step_add_up_and_the_curve_ends_at_the_target(made: tacit.Plan) -> None:
    predicted = made.prediction
    parts = sum(predicted[f"{name}_s"] for name in ("computing", "hooks", "waiting", "wire"))
    assert parts == pytest.approx(predicted["step_s"], rel=1e-4)
    assert predicted["step_s"] == pytest.approx(made.best.pace.step_s, rel=1e-4)
    curve = predicted["curve"]
    assert curve["step"][-1] == predicted["steps"] and curve["loss"][-1] <= 0.6 < curve["loss"][-2]
    assert curve["time_s"][-1] == pytest.approx(predicted["steps"] * predicted["step_s"], rel=1e-4)
    assert len(curve["step"]) <= 65 and curve["step"] == sorted(curve["step"])


def test_the_planned_times_of_rounds_are_those_of_the_simulation(made: tacit.Plan) -> None:
    rounds = made.prediction["rounds"]
    run = tacit.simulate(made.workload, LOCAL, cluster=PROFILE.cluster(), steps=40, timing_only=True)
    times = round_times(run)
    assert [one.steps for one in times] == [4] * 10 and rounds["period"] == 4.0
    assert times[3].compute_s == pytest.approx((0.08, 0.08))
    assert rounds["compute_s"] == [[0.02] * 3] * 2
    assert rounds["wire_s"][1] == pytest.approx(times[3].wire_s, rel=1e-4)
    assert rounds["round_s"] == pytest.approx(0.08 + rounds["wire_s"][1], rel=1e-2)
    rule = DriftRule(Expected.of(made.prediction) or pytest.fail("no rounds"))
    assert all(rule.add(one) is None for one in times * 5)


def test_plan_toml_is_short_and_plan_json_has_the_rest(made: tacit.Plan, tmp_path: Path) -> None:
    path = made.save(tmp_path / "plan.toml")
    assert len(path.read_text().splitlines()) < 50
    assert "curve" not in tomllib.loads(path.read_text())["predicted"]
    found = read_plan(path)
    assert found.predicted == made.as_planned().predicted == json.loads(json.dumps(made.prediction))
    assert found.replan is not None and found.ended is not None
    path.write_text(path.read_text().replace("Every(4)", "Every(8)"))  # plan.json is now about another strategy
    edited = read_plan(path)
    assert "curve" not in edited.predicted and edited.replan is None and "step_s" in edited.predicted
    (tmp_path / "plan.json").write_text("{")
    assert read_plan(path).predicted == edited.predicted


def test_ddp_is_predicted_as_real_processes_run_it() -> None:
    workload = Sized(parameters=2_000_000)
    plan = tacit.plan(replace(PROFILE, bandwidth_bytes_per_s=1e8), workload, strategies=[])
    plan = replace(plan, best=plan.baseline)
    assert plan.prediction["step_s"] > 1.05 * plan.baseline.pace.step_s
    assert plan.prediction["wire_s"] > 0.07  # 8 MB at 100 MB/s, without overlap


def test_plan_toml_has_the_times_of_the_table_or_says_why_not(tmp_path: Path) -> None:
    """Delays are random with a heavy tail: other draws have other means."""
    times_s = [0.001] * 20 + [0.1]
    profile = replace(PROFILE, compute=tacit.Recorded(times_s=times_s), bandwidth_bytes_per_s=1e8)
    plan = tacit.plan(profile, Sized(parameters=2_000_000), strategies=[])
    alone = replace(plan, best=next(row for row in plan.rows if len(row.ranks) == 1))
    alone.save(tmp_path / "alone.toml")
    written = tomllib.loads((tmp_path / "alone.toml").read_text())["predicted"]["step_s"]
    assert written == pytest.approx(alone.best.pace.step_s, rel=1e-5)
    assert "without overlap" not in (tmp_path / "alone.toml").read_text()
    replace(plan, best=plan.baseline).save(tmp_path / "ddp.toml")
    assert "Times under [predicted] are those of DDP as tacit runs it" in (tmp_path / "ddp.toml").read_text()


def drift(wire_s: float, compute_s: tuple[float, float] = (0.02, 0.02)) -> Drift:
    return Drift(NETWORK, None, 0.01, wire_s, True, compute_s, wire_s)


def test_re_planning_fits_the_network_to_the_measured_round(made: tacit.Plan) -> None:
    wire_s = made.prediction["rounds"]["wire_s"][1]
    profile = measured_profile(PROFILE, made.prediction, [0, 1], LOCAL, drift(3 * wire_s, (0.02, 0.04)))
    assert profile.mean_step_s(0) == pytest.approx(0.02) and profile.mean_step_s(1) == pytest.approx(0.04)
    workload = Sized(parameters=made.prediction["parameters"])
    run = tacit.simulate(workload, LOCAL, cluster=profile.cluster(), steps=40, timing_only=True)
    assert round_times(run)[3].wire_s == pytest.approx(3 * wire_s, rel=0.1)


def test_re_planning_names_another_strategy_only_if_it_gains(made: tacit.Plan) -> None:
    table, wire_s = PROFILE.table(), made.prediction["rounds"]["wire_s"][1]
    own = next(one for one in made.prediction["alternatives"] if one["strategy"] == str(LOCAL))
    only = {**made.prediction, "alternatives": [own]}
    assert replanned(only, table, LOCAL, drift(3 * wire_s)) == "A new plan would choose the same strategy."
    longer = {**own, "strategy": "LocalSGD(period=Every(16))", "step_s": 0.9 * own["step_s"]}
    both = {**only, "alternatives": [own, longer]}
    slow = replanned(both, table, LOCAL, drift(30 * wire_s), budget_s=math.inf)
    assert slow is not None and slow.startswith("LocalSGD(period=Every(16)) would now take ")
    assert (
        replanned(both, table, LOCAL, drift(30 * wire_s), budget_s=-1.0) == "A new plan would choose the same strategy."
    )
    assert replanned({**only, "alternatives": []}, table, LOCAL, drift(3 * wire_s)) is None


def test_re_planning_leaves_the_random_numbers_of_the_training_alone(made: tacit.Plan) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    replanned(made.prediction, PROFILE.table(), LOCAL, drift(0.1))
    assert torch.equal(torch.rand(3), expected)


def finished(predicted: dict[str, object], loss: float, **record: object) -> Run:
    """Return a run of 50 steps of 0.1 s that reaches ``loss`` at its end."""
    run = Run("w", str(LOCAL), 2, 50, 0, record={"predicted": predicted, **record})
    run.history = [{"time_s": 4.0, "step": 40, "loss": 1.0}, {"time_s": 5.0, "step": 50, "loss": loss}]
    for step in range(50):
        run.trace.compute(0, step + 1, 0.1 * step, 0.1 * step + 0.1)
    return run


def test_a_run_with_a_plan_widens_later_intervals(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    predicted = {"step_s": 0.08, "target_loss": 0.5, "time_low_s": 3.8, "time_high_s": 4.4, "widened": 1.1}
    ledger.add_run(finished(predicted, 0.9))
    assert ledger.widening("rounds") == pytest.approx(PRIOR["rounds"])  # one run of ten may lie outside
    ledger.add_run(finished(predicted, 0.4))
    assert ledger.widening("rounds") == pytest.approx(1.25)
    line = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[1])
    assert (line["target_predicted_s"], line["target_measured_s"]) == (pytest.approx(4.0), 5.0)
    assert ledger.widening("asynchronous") == pytest.approx(PRIOR["asynchronous"])


def test_a_change_during_the_run_is_no_error_of_the_plan(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for _ in range(2):
        ledger.add_run(finished({"step_s": 0.01}, 0.9, drift=[{"was_as_planned": True}]))
    assert ledger.widening("rounds") == pytest.approx(PRIOR["rounds"])
    for _ in range(2):
        ledger.add_run(finished({"step_s": 0.01}, 0.9, drift=[{"was_as_planned": False}]))
    assert ledger.widening("rounds") == pytest.approx(10.0)


def test_nine_of_ten_are_within_the_widening(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for ratio in (1.01, 1.02, 1.03, 1.04, 3.0):  # with the prior's nine: one of fourteen is outside
        ledger.add("rounds", predicted_s=1.0, measured_s=ratio, strategy="LocalSGD()")
    assert ledger.widening("rounds") == pytest.approx(PRIOR["rounds"])


def test_an_attached_plan_stays_with_the_run(made: tacit.Plan, tmp_path: Path) -> None:
    path = made.save(tmp_path / "plan.toml")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, path, steps=25) as session:
        assert session.run.predicted["step_s"] == made.prediction["step_s"]
        for _ in range(25):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    session.run.save(tmp_path / "run")
    assert tacit.Run.load(tmp_path / "run").predicted == session.run.predicted
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 1


def test_the_lines_of_a_run_go_to_the_display_of_its_plan(made: tacit.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Shown:
        every_s = 0.0

        def progress(self, text: str) -> None:
            shown.append(text)

        def drift(self, text: str) -> None:
            shown.append(text)

    monkeypatch.setattr("tacit.session.plan_watch.watch._FIRST_S", 0.0)
    planned = replace(made.as_planned(), workers=1, display=Shown())
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, planned, steps=3) as session:
        for _ in range(3):
            loss = model(torch.ones(1, 2)).square().sum()
            loss.backward()
            session.observe(loss)
            optimizer.step()
    assert isinstance(planned, Planned) and len(shown) == 3
    assert shown[0].startswith("step 1/3  loss ") and "planned)" in shown[0] and ", ends " in shown[0]
