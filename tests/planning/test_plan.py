"""Plans: the choice and its reason, files, other networks, and small whole plans."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tacit
from tacit.planning.ledger import PRIOR, Ledger
from tacit.planning.memory import memory_bytes
from tacit.planning.pace import Pace
from tacit.planning.plan import NO_TIME, Row
from tacit.planning.results import Interval, Trial
from tacit.planning.sized import Sized
from tacit.planning.verdict import Objective, chosen
from tacit.profiles.strategy_memory import models_of

pytestmark = pytest.mark.slow

PROFILE = tacit.Profile(workers=4, compute=tacit.Constant(mean_s=0.02), speed={3: 1 / 3}, bandwidth_bytes_per_s=1e6)
TIME = Objective()
EVERYONE = (0, 1, 2, 3)


def row(
    strategy: tacit.Strategy, time_s: float | None, ranks: tuple[int, ...] = EVERYONE, computing: float = 0.5
) -> Row:
    pace = Pace(step_s=0.1, bytes_per_step=10.0, computing=computing, hooks=0.0, waiting=0.0)
    interval = None if time_s is None else Interval(time_s, 0.95 * time_s, 1.05 * time_s)
    trial = Trial(lr=0.1, seed=0, steps=None, best_loss=0.7)
    return Row(
        strategy=strategy, ranks=ranks, pace=pace, fidelity="A", time_s=interval, best_time_s=interval, trials=(trial,)
    )


LOCAL = tacit.LocalSGD(period=tacit.Every(8))


@pytest.mark.parametrize(
    ("ddp_s", "local_s", "stays", "words"),
    [
        (10.0, 5.0, False, "fall from 50 % of the time to 10 %"),
        (10.0, 9.5, True, "would gain 5 % only"),
        (10.0, 12.0, True, "no other candidate is faster"),
        (None, 5.0, False, "DDP on all workers did not reach the target"),
        (None, None, True, "No candidate reached the target. The best loss was 0.7"),
    ],
)
def test_the_choice(ddp_s: float | None, local_s: float | None, stays: bool, words: str) -> None:
    baseline, local = row(tacit.DDP(), ddp_s), row(LOCAL, local_s, computing=0.9)
    best, why = chosen([baseline, local], baseline, PROFILE, TIME, "the target")
    assert (best is baseline) is stays and words in why


def test_ranges_that_overlap_keep_ddp() -> None:
    baseline, local = row(tacit.DDP(), 10.0), row(LOCAL, 8.0)
    local = replace(local, best_time_s=Interval(8.0, 6.0, 9.6), time_s=None)
    best, why = chosen([baseline, local], baseline, PROFILE, TIME, "the target")
    assert best is baseline and "which overlap" in why


def test_rows_with_all_seeds_are_compared_by_their_means() -> None:
    baseline, one = row(tacit.DDP(), 10.0), row(tacit.SwarmSGD(), 4.0)
    rows = [
        replace(row(strategy, None), time_s=Interval.of(times_s, seeds=3))
        for strategy, times_s in ((LOCAL, (4.0, 5.0, 5.1)), (tacit.KAsync(k=1), (4.8, 4.9, 6.0)))
    ]
    best, why = chosen([baseline, one, *rows], baseline, PROFILE, TIME, "the target")
    assert best is rows[0]  # although the median of the other is smaller
    assert "on 4 workers is predicted with 4 s, but was simulated with 1 seed only" in why
    best, why = chosen([baseline, one], baseline, PROFILE, TIME, "the target")
    assert best is one and "seed" not in why
    own = replace(rows[0], is_kept=True)  # with all seeds, although no candidate was simulated with them
    assert chosen([baseline, one, own], baseline, PROFILE, TIME, "the target")[0] is one


def test_candidates_that_the_budget_left_out_are_not_called_slower() -> None:
    baseline, slow = row(tacit.DDP(), 10.0), row(LOCAL, 12.0)
    left_out = replace(row(tacit.SwarmSGD(), None), trials=(), remark=NO_TIME)
    pruned = replace(left_out, remark="takes at least 11 s")
    assert "no other candidate is faster" in chosen([baseline, slow, pruned], baseline, PROFILE, TIME, "")[1]
    why = chosen([baseline, slow, left_out], baseline, PROFILE, TIME, "")[1]
    assert "no other candidate that was simulated within the budget is faster" in why


def test_a_row_that_overlaps_ddp_does_not_hide_one_that_does_not() -> None:
    baseline, certain = row(tacit.DDP(), 10.0), row(LOCAL, 8.0)
    unsure = replace(row(tacit.SwarmSGD(), 7.0), time_s=Interval(7.0, 4.0, 12.0), best_time_s=None)
    assert chosen([baseline, unsure, certain], baseline, PROFILE, TIME, "the target")[0] is certain


@pytest.mark.parametrize(
    ("ddp_loss", "local_loss", "highest", "stays", "words"),
    [
        (0.8, 0.2, 0.3, False, "fall from 50 % of the time to 10 %"),
        (0.8, 0.76, 0.77, True, "the loss of LocalSGD(period=Every(8)) on 4 of 4 workers is only 5 % lower"),
        (0.8, 0.7, 0.9, True, "would end at a loss of 0.665 to 0.9 and DDP 0.76 to 0.84, which overlap"),
        (0.2, 0.8, 0.9, True, "no other candidate has a lower loss"),
    ],
)
def test_the_choice_by_losses_after_a_time(
    ddp_loss: float, local_loss: float, highest: float, stays: bool, words: str
) -> None:
    baseline, local = (
        replace(row(strategy, None, computing=computing), loss=Interval(loss, 0.95 * loss, high))
        for strategy, loss, high, computing in (
            (tacit.DDP(), ddp_loss, 1.05 * ddp_loss, 0.5),
            (LOCAL, local_loss, highest, 0.9),
        )
    )
    best, why = chosen([baseline, local], baseline, PROFILE, TIME, "the end of 5 s")
    assert (best is baseline) is stays and words in why


def test_the_reason_names_who_is_left_out() -> None:
    baseline = row(tacit.DDP(), 10.0)
    fewer, alone = row(LOCAL, 3.0, (0, 1, 2)), row(tacit.DDP(), 2.0, (1,))
    assert (
        "Without worker 3, whose steps take 3.0 times as long"
        in chosen([baseline, fewer], baseline, PROFILE, TIME, "")[1]
    )
    assert "Worker 1 alone needs no network" in chosen([baseline, alone], baseline, PROFILE, TIME, "")[1]


def test_without_losses_the_smallest_period_with_little_communication_is_recommended() -> None:
    """Compressors, overlap and outer optimizers are not: what they cost in steps is unknown."""
    rows = [
        replace(row(strategy, None, computing=computing), trials=(), pace=Pace(step_s, 1.0, computing, 0.0, 0.0))
        for strategy, step_s, computing in (
            (tacit.DDP(), 0.1, 0.3),
            (tacit.CompressedGradient(compressor=tacit.TopK(fraction=0.01)), 0.06, 0.95),
            (tacit.LocalSGD(period=tacit.Every(4), overlap_steps=2), 0.055, 0.99),
            (tacit.LocalSGD(period=tacit.Every(8)), 0.05, 0.92),
            (tacit.LocalSGD(period=tacit.Every(16)), 0.04, 0.97),
        )
    ]
    best, why = chosen(rows, rows[0], PROFILE, TIME, "")
    assert best is rows[3] and "from 70 % of the time to 8 %" in why
    assert "LocalSGD(period=Every(16)) on 4 workers has a shorter step" in why and "no strategy" not in why
    best, why = chosen(rows[:3], rows[0], PROFILE, TIME, "")
    assert best is rows[0] and "no period of LocalSGD among the candidates has a shorter step" in why


def test_without_losses_waiting_counts_as_it_does_in_the_table() -> None:
    def timed(strategy: tacit.Strategy, step_s: float, computing: float, waiting: float) -> Row:
        return replace(row(strategy, None), trials=(), pace=Pace(step_s, 1.0, computing, 0.0, waiting))

    ddp = timed(tacit.DDP(), 0.116, 0.63, 0.21)
    periods = {period: tacit.LocalSGD(period=tacit.Every(period)) for period in (2, 8, 16)}
    two, eight = timed(periods[2], 0.0972, 0.73, 0.18), timed(periods[8], 0.0786, 0.89, 0.08)
    best, why = chosen([eight, two, ddp, timed(periods[16], 0.0804, 0.94, 0.02)], ddp, PROFILE, TIME, "")
    assert best.strategy == periods[16] and "from 37 % of the time to 6 %" in why
    assert "LocalSGD(period=Every(8)) on 4 workers has a shorter step" in why
    best, why = chosen([eight, two, ddp], ddp, PROFILE, TIME, "")
    assert best is eight and "at least 11 % of the time with each period" in why and "from 37 %" in why
    best, why = chosen([two, ddp], ddp, PROFILE, TIME, "")
    assert best is ddp and "take 37 % of its time, and at least 27 % with each period of LocalSGD" in why
    assert "LocalSGD(period=Every(2)) on 4 workers has a shorter step" in why
    slow = timed(periods[8], 0.09, 0.6, 0.1)
    best, why = chosen([slow, ddp], ddp, PROFILE, TIME, "")
    assert best is ddp and "no period of LocalSGD among the candidates brings them to 10 %" in why


def test_objectives() -> None:
    one = replace(row(LOCAL, 3600.0), bytes_to_target=2e9)
    assert Objective(name="bytes").value(one) == 2e9
    assert Objective(name="cost", price_per_worker_hour=2.0, price_per_gigabyte=0.5).value(one) == 4 * 2.0 + 1.0
    assert TIME.value(row(LOCAL, None)) == math.inf


def test_memory_is_that_of_the_profile_and_the_models_of_the_strategy() -> None:
    profile = replace(PROFILE, peak_memory_bytes={0: 1000, 1: 900}, parameter_bytes=100)
    assert memory_bytes(tacit.DDP(), profile) == 1000 + 100 * models_of(tacit.DDP())
    quantized = tacit.LocalSGD(period=tacit.Every(4), compressor=tacit.QSGD(bits=8))
    assert 1000 < memory_bytes(LOCAL, profile) < memory_bytes(quantized, profile)
    assert memory_bytes(LOCAL, PROFILE) is None


def test_the_ledger_widens_intervals_by_earlier_errors(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.widening("rounds") == pytest.approx(PRIOR["rounds"])
    for _ in range(20):
        ledger.add("rounds", predicted_s=10.0, measured_s=13.0, strategy="LocalSGD()")
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('{"kind": "rounds", "predi')
    assert ledger.widening("rounds") == pytest.approx(1.3)
    assert ledger.widening("asynchronous") == pytest.approx(PRIOR["asynchronous"])


def test_one_bad_run_does_not_decide_and_two_are_named(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    made = []
    for _ in range(2):
        ledger.add("rounds", predicted_s=1.0, measured_s=3.0, strategy="LocalSGD()")
        made.append(tacit.plan(PROFILE, Sized(parameters=1000), strategies=[], ledger=ledger))
    assert ledger.widening("rounds") == pytest.approx(3.0)
    assert not made[0].warnings
    [warning] = made[1].warnings
    assert "a factor of 3," in warning and str(ledger.path) in warning


@pytest.fixture(scope="module")
def made() -> tacit.Plan:
    """A whole plan, with few candidates, on a cluster with a slow worker and a slow network."""
    return tacit.plan(
        PROFILE,
        tacit.workloads.digits(model="softmax"),
        target_loss=0.6,
        strategies=[LOCAL, tacit.KAsync(k=1)],
        steps=200,
        seeds=(0, 1),
        lr=0.1,
    )


def test_a_plan_finds_a_strategy_that_the_simulation_confirms(made: tacit.Plan) -> None:
    assert not made.stays_with_ddp
    ours, theirs = made.best.shortest_s, made.baseline.shortest_s
    assert ours is not None and theirs is not None and ours.high < theirs.low
    confirmed = tacit.simulate(
        tacit.workloads.digits(model="softmax"),
        made.best.strategy,
        cluster=PROFILE.of_ranks(made.best.ranks).cluster(),
        steps=200,
        seed=0,
        lr=made.best.best_lr,
        evaluate_every=5,
        until_loss=0.6,
    )
    reached = confirmed.first_reaching(0.6)
    assert reached is not None and ours.low <= reached["time_s"] <= ours.high


def test_a_target_that_takes_few_steps_is_warned_of(made: tacit.Plan) -> None:
    assert any("Plans are meant for 50 steps and more" in sentence for sentence in made.warnings)


def test_rows_are_in_order_and_say_what_they_are(made: tacit.Plan) -> None:
    times_s = [row.shortest_s.median for row in made.rows if row.shortest_s is not None]
    assert times_s == sorted(times_s)
    assert {len(row.ranks) for row in made.rows} == {4, 3, 1}
    assert all(row.fidelity == "A" or row.remark for row in made.rows)


def test_another_network_has_other_times(made: tacit.Plan) -> None:
    slower = made.what_if(bandwidth=0.1)
    assert slower.baseline.shortest_s.median > 1.5 * made.baseline.shortest_s.median
    same = made.what_if()
    assert [row.shortest_s for row in same.rows] == [row.shortest_s for row in made.rows]
    with pytest.raises(ValueError, match="bandwidth=0 is a factor and must be positive"):
        made.what_if(bandwidth=0)


def test_a_plan_for_a_price_keeps_the_price_on_another_network() -> None:
    options = {"target_loss": 0.6, "strategies": [LOCAL], "steps": 200, "seeds": (0,), "tune": False, "lr": 0.1}
    plan = tacit.plan(
        PROFILE, tacit.workloads.digits(model="softmax"), objective="cost", price_per_worker_hour=2.0, **options
    )
    assert not plan.stays_with_ddp and not plan.what_if(bandwidth=0.5).stays_with_ddp
    assert plan.as_json()["prices"] == {"price_per_worker_hour": 2.0, "price_per_gigabyte": 0.0}


def test_losses_after_a_given_time_are_compared(tmp_path: Path) -> None:
    plan = tacit.plan(
        PROFILE,
        tacit.workloads.digits(model="softmax"),
        within_s=2.0,
        strategies=[LOCAL],
        seeds=(0, 1),
        tune=False,
        lr=0.1,
    )
    assert plan.best.loss is not None and plan.baseline.loss is not None and plan.best.time_s is None
    assert plan.best.loss.high < 0.9 * plan.baseline.loss.median
    confirmed = tacit.simulate(
        tacit.workloads.digits(model="softmax"),
        plan.best.strategy,
        cluster=PROFILE.of_ranks(plan.best.ranks).cluster(),
        steps=500,
        seed=0,
        lr=0.1,
        evaluate_every_s=1.9,
    )
    assert plan.best.loss.low <= confirmed.history[1]["loss"] <= plan.best.loss.high
    plan.save(tmp_path / "plan.toml")
    predicted = tomllib.loads((tmp_path / "plan.toml").read_text())["predicted"]
    assert predicted["within_s"] == 2.0 and predicted["loss_low"] < predicted["loss_high"]
    assert f"loss {plan.best.loss.median:.3g}, DDP" in (tmp_path / "plan.html").read_text()
    with pytest.raises(ValueError, match="what_if compares times to a target"):
        plan.what_if(bandwidth=0.5)


def test_rows_that_may_be_as_good_are_ties(made: tacit.Plan) -> None:
    ours = made.best.shortest_s
    assert ours is not None and made.best not in made.ties
    assert all(ours.low <= row.shortest_s.median <= ours.high for row in made.ties if row.shortest_s is not None)
    twin = replace(made.best, remark="a twin")
    assert replace(made, rows=[*made.rows, twin]).ties[-1] is twin


def test_a_plan_is_saved_and_attached(made: tacit.Plan, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = replace(made, best=next(row for row in made.rows if row.strategy == LOCAL))
    path = made.save(tmp_path / "plan.toml")
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["rows"][written["best"]]["strategy"] == str(made.best.strategy)
    for given in (made, path, str(path)):
        model = torch.nn.Linear(2, 2)
        session = tacit.attach(model, torch.optim.SGD(model.parameters(), lr=0.123), given, steps=1)
        assert session.run.strategy == str(made.best.strategy)
        session.close()
    assert f"the plan is for {len(made.best.ranks)} workers and this run has 1" in caplog.text


def test_a_target_that_nothing_reaches_is_said() -> None:
    plan = tacit.plan(
        replace(PROFILE, workers=2, speed={}),
        tacit.workloads.quadratic(dimension=5),
        target_loss=-1.0,
        strategies=[LOCAL],
        steps=10,
        seeds=(0,),
        tune=False,
    )
    assert plan.stays_with_ddp and "No candidate reached the loss -1 within 10 steps" in plan.why


def test_without_a_target_only_paces_are_predicted() -> None:
    plan = tacit.plan(replace(PROFILE, bandwidth_bytes_per_s=1e5), tacit.workloads.digits(model="softmax"))
    assert {row.fidelity for row in plan.rows} == {"C"} and all(row.time_s is None for row in plan.rows)
    assert "Losses were not simulated" in plan.why


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"target_loss": 1.0, "within_s": 5.0}, "not both"),
        ({"objective": "fame"}, "must be one of time, bytes, cost"),
        ({"budget_s": 0}, "budget_s=0 must be positive"),
        ({"seeds": (1, 1)}, "must be different"),
        ({"steps": 0}, "must be at least 1"),
        ({"objective": "cost", "target_loss": 1.0}, "needs price_per_worker_hour"),
        ({"objective": "bytes", "within_s": 5.0}, "objective='bytes' needs target_loss instead"),
        ({"objective": "bytes"}, "to reach a loss; add target_loss"),
        (
            {"objective": "cost", "target_loss": 1.0, "price_per_gigabyte": -1.0},
            "price_per_gigabyte=-1 must be a price",
        ),
        ({"pilot": True, "within_s": 5.0}, "give target_loss instead of within_s"),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tacit.plan(PROFILE, tacit.workloads.digits(), **wrong)
    with pytest.raises(TypeError, match=r"must be a profile; try tacit\.Profile\.load"):
        tacit.plan("profile", tacit.workloads.digits())


def test_one_machine_alone_is_recommended_and_run_as_such(tmp_path: Path) -> None:
    """A fast worker beside one that is three times slower, on a slow network."""
    profile = tacit.Profile(
        workers=2, compute=tacit.Constant(mean_s=0.02), speed={0: 1 / 3}, bandwidth_bytes_per_s=1e4, collectives="gloo"
    )
    workload = tacit.workloads.digits(model="softmax")
    plan = tacit.plan(profile, workload, target_loss=0.6, strategies=[LOCAL], steps=200, seeds=(0,), tune=False)
    assert plan.best.ranks == (1,) and "Worker 1 alone needs no network" in plan.why
    assert plan.table()["workers"] == 1 and plan.prediction["step_s"] == pytest.approx(0.02, rel=0.01)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tacit.attach(model, optimizer, plan.save(tmp_path / "plan.toml"), steps=2) as session:
        while not session.is_done:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert session.run.workers == 1 and session.run.strategy == "DDP()"
